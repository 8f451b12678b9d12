"""Read half of the store port for SQL databases."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from atlas_agents.core.store import (
    ApprovalRow,
    AuditRow,
    Document,
    DocumentKind,
    EventRow,
    Hit,
    JobRow,
    JobState,
    JournalRow,
    PassageRow,
    Prunable,
    Pruned,
    RecordKind,
    RunRow,
    Session,
    StoredMessage,
    StoredRecord,
    UsageRow,
    Where,
)
from atlas_agents.storage.sql import statements as sql
from atlas_agents.storage.sql import tables
from atlas_agents.storage.sql.query import Query, Row, bind
from atlas_agents.storage.sql.text_search import scope_values
from atlas_agents.storage.vectors import Library, Vectors

_MAX = (1 << 63) - 1


class SqlReads(ABC):
    """All reads that SQLite and Postgres have in common. A subclass executes queries and searches text."""

    def __init__(self) -> None:
        self._vectors = Vectors(self)

    @abstractmethod
    async def fetch(self, query: Query) -> list[Row]:
        """Execute a query that only reads."""

    async def search(self, query: Query) -> list[Row]:
        """Execute a query that only reads and may take a while."""
        return await self.fetch(query)

    @abstractmethod
    async def search_text(self, tenant: str, where: Where, words: Sequence[str], *, limit: int = 50) -> list[Hit]: ...

    async def session(self, tenant: str, key: str) -> Session | None:
        return tables.SESSIONS.first(await self.fetch(bind(tenant, sql.SESSION, key=key)))

    async def sessions(self, tenant: str, *, limit: int = 100, before: int | None = None) -> list[Session]:
        query = bind(tenant, sql.SESSIONS, limit=max(limit, 0), before=_MAX if before is None else before)
        return tables.SESSIONS.all(await self.fetch(query))

    async def messages(
        self,
        tenant: str,
        session: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        last: bool = False,
    ) -> list[StoredMessage]:
        statement = sql.LAST_MESSAGES if last else sql.MESSAGES
        end = _MAX if before is None else before
        query = bind(tenant, statement, session=session, after=after, before=end, limit=_limit_or_max(limit))
        rows = tables.MESSAGES.all(await self.fetch(query))
        return rows[::-1] if last else rows

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        return tables.RUNS.first(await self.fetch(bind(tenant, sql.RUN, run_id=run_id)))

    async def runs(self, tenant: str, session: str, *, open_only: bool = False) -> list[RunRow]:
        statement = sql.OPEN_RUNS_OF if open_only else sql.RUNS
        return tables.RUNS.all(await self.fetch(bind(tenant, statement, session=session)))

    async def open_runs(self) -> list[RunRow]:
        return tables.RUNS.all(await self.fetch(Query(sql.OPEN_RUNS, {})))

    async def journal(self, tenant: str, run_id: str) -> list[JournalRow]:
        return tables.JOURNAL.all(await self.fetch(bind(tenant, sql.JOURNAL, run_id=run_id)))

    async def audit(
        self, tenant: str, *, after: int = 0, limit: int | None = None, last: bool = False
    ) -> list[AuditRow]:
        query = bind(tenant, sql.LAST_AUDIT if last else sql.AUDIT, after=after, limit=_limit_or_max(limit))
        rows = tables.AUDIT.all(await self.fetch(query))
        return rows[::-1] if last else rows

    async def approval(self, tenant: str, id: str) -> ApprovalRow | None:
        return tables.APPROVALS.first(await self.fetch(bind(tenant, sql.APPROVAL, id=id)))

    async def pending_approvals(self, tenant: str) -> list[ApprovalRow]:
        return tables.APPROVALS.all(await self.fetch(bind(tenant, sql.PENDING_APPROVALS)))

    async def grants(self, tenant: str, binding: str) -> list[ApprovalRow]:
        return tables.APPROVALS.all(await self.fetch(bind(tenant, sql.GRANTS, binding=binding)))

    async def events(self, tenant: str, run_id: str, *, after: int = 0, limit: int | None = None) -> list[EventRow]:
        query = bind(tenant, sql.EVENTS, run_id=run_id, after=after, limit=_limit_or_max(limit))
        return tables.EVENTS.all(await self.fetch(query))

    async def call_count(self, tenant: str, agent_id: str, day: str) -> int:
        rows = await self.fetch(bind(tenant, sql.COUNTED, agent_id=agent_id, day=day))
        return next((used for (used,) in rows), 0)

    async def usage(self, tenant: str, *, since: str = "", until: str = "9999") -> list[UsageRow]:
        return tables.USAGE.all(await self.fetch(bind(tenant, sql.USAGE, since=since, until=until)))

    async def document(self, tenant: str, kind: DocumentKind, id: str) -> Document | None:
        return tables.DOCUMENTS.first(await self.fetch(bind(tenant, sql.DOCUMENT, kind=kind, id=id)))

    async def documents(
        self, tenant: str, where: Where, *, after: str = "", limit: int | None = None
    ) -> list[Document]:
        query = bind(tenant, sql.DOCUMENTS, **scope_values(where), after=after, limit=_limit_or_max(limit))
        return tables.DOCUMENTS.all(await self.fetch(query))

    async def passages(self, tenant: str, ids: Sequence[int]) -> list[PassageRow]:
        if not ids:
            return []
        numbers = {f"id{n}": id for n, id in enumerate(ids)}
        rows = tables.PASSAGES.all(await self.fetch(bind(tenant, sql.passages(len(numbers)), **numbers)))
        found = {row.id: row for row in rows}
        return [found[id] for id in ids if id in found]

    async def document_passages(
        self, tenant: str, kind: DocumentKind, document: str, *, after: int = -1, limit: int | None = None
    ) -> list[PassageRow]:
        query = bind(tenant, sql.PASSAGES_OF, kind=kind, id=document, after=after, limit=_limit_or_max(limit))
        return tables.PASSAGES.all(await self.fetch(query))

    async def find_nearest(self, tenant: str, where: Where, model: str, vector: bytes, *, limit: int = 50) -> list[Hit]:
        return await self._vectors.search(Library(tenant, where.kind, model), where.collection, vector, limit)

    async def library(self, library: Library) -> tuple[int, int]:
        rows = await self.fetch(bind(library.tenant, sql.LIBRARY, kind=library.kind, model=library.model))
        return next(((version, vectors) for version, vectors in rows), (0, 0))

    async def vectors(self, library: Library, after: int, limit: int) -> list[tuple[int, str, bytes]]:
        named = {"kind": library.kind, "model": library.model, "after": after, "limit": limit}
        rows = await self.search(bind(library.tenant, sql.VECTORS, **named))
        return [(id, collection, vector) for id, collection, vector in rows]

    async def vector_ids(self, library: Library) -> list[int]:
        query = bind(library.tenant, sql.VECTOR_IDS, kind=library.kind, model=library.model)
        return [id for (id,) in await self.search(query)]

    async def job(self, tenant: str, id: str) -> JobRow | None:
        return tables.JOBS.first(await self.fetch(bind(tenant, sql.JOB, id=id)))

    async def jobs(
        self, tenant: str, *, states: Sequence[JobState] = (), limit: int = 100, before: int | None = None
    ) -> list[JobRow]:
        statement = sql.jobs_in(len(states)) if states else sql.JOBS
        named = {f"state{n}": state for n, state in enumerate(states)}
        query = bind(tenant, statement, limit=max(limit, 0), before=_MAX if before is None else before, **named)
        return tables.JOBS.all(await self.fetch(query))

    async def child_jobs(self, tenant: str, parent: str) -> list[JobRow]:
        return tables.JOBS.all(await self.fetch(bind(tenant, sql.JOBS_UNDER, parent=parent)))

    async def pending_jobs(self, tenant: str, now: int, *, limit: int = 1000) -> list[JobRow]:
        return tables.JOBS.all(await self.fetch(bind(tenant, sql.PENDING_JOBS, until=now, limit=max(limit, 0))))

    async def record(self, tenant: str, kind: RecordKind, key: str) -> StoredRecord | None:
        return tables.RECORDS.first(await self.fetch(bind(tenant, sql.RECORD, kind=kind, key=key)))

    async def records(self, tenant: str, kind: RecordKind) -> list[StoredRecord]:
        return tables.RECORDS.all(await self.fetch(bind(tenant, sql.RECORDS, kind=kind)))

    async def last_turns(self, tenant: str) -> list[tuple[str, str, int]]:
        return [(agent, user, at) for agent, user, at in await self.fetch(bind(tenant, sql.ACTIVE))]

    async def tokens(self, tenant: str, since: str, until: str) -> int:
        ((count,),) = await self.fetch(bind(tenant, sql.TOKENS, since=since, until=until))
        return int(count)

    async def storage_bytes(self, tenant: str) -> int:
        ((size,),) = await self.fetch(bind(tenant, sql.STORED))
        return int(size)

    async def prunable(self, tenant: str, what: Prunable, before: int) -> Pruned:
        (counts,) = await self.search(bind(tenant, sql.COUNT_PRUNABLE[what], before=before))
        return Pruned(*map(int, counts))

    async def tenants(self) -> list[str]:
        return [tenant for (tenant,) in await self.fetch(Query(sql.TENANTS, {}))]


def _limit_or_max(limit: int | None) -> int:
    return _MAX if limit is None else max(limit, 0)
