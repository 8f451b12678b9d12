"""The reading half of the port, over one verb: fetch the rows of a query."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from atlas_agents.core.forgetting import Forgettable, Forgotten
from atlas_agents.core.jobs import JobRow, JobState
from atlas_agents.core.records import Record, RecordKind
from atlas_agents.core.shelves import Document, Hit, Kind, PassageRow, Where
from atlas_agents.core.store import (
    ApprovalRow,
    AuditRow,
    EventRow,
    JournalRow,
    RunRow,
    Session,
    StoredMessage,
    UsageRow,
)
from atlas_agents.stores import forgetting_statements as forgetting_sql
from atlas_agents.stores import job_statements as job_sql
from atlas_agents.stores import record_statements as record_sql
from atlas_agents.stores import shelf_statements as shelf
from atlas_agents.stores import statements as sql
from atlas_agents.stores.query import Query, Row, query
from atlas_agents.stores.rows import (
    approval_of,
    audit_of,
    event_of,
    job_of,
    journal_of,
    message_of,
    run_of,
    session_of,
    usage_of,
)
from atlas_agents.stores.vectors import Library, Vectors
from atlas_agents.stores.words import on_shelf

_ALL = (1 << 63) - 1


class SqlReads(ABC):
    """What both databases answer alike; each says how it fetches, and how it finds words."""

    def __init__(self) -> None:
        self._vectors = Vectors(self)

    @abstractmethod
    async def matching(self, tenant: str, where: Where, words: Sequence[str], *, limit: int = 50) -> list[Hit]:
        """Each has an index of words of its own kind."""

    async def search(self, query: Query) -> list[Row]:
        """Execute one reading statement that may take a while."""
        return await self.fetch(query)

    @abstractmethod
    async def fetch(self, query: Query) -> list[Row]:
        """Execute one reading statement."""

    async def session(self, tenant: str, key: str) -> Session | None:
        rows = await self.fetch(query(tenant, sql.SESSION, key=key))
        return session_of(rows[0]) if rows else None

    async def sessions(self, tenant: str, *, limit: int = 100, before: int | None = None) -> list[Session]:
        asked = query(tenant, sql.SESSIONS, limit=max(limit, 0), before=_ALL if before is None else before)
        return [session_of(row) for row in await self.fetch(asked)]

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
        end = _ALL if before is None else before
        asked = query(tenant, statement, session=session, after=after, before=end, limit=_at_most(limit))
        rows = await self.fetch(asked)
        return [message_of(row) for row in (reversed(rows) if last else rows)]

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        rows = await self.fetch(query(tenant, sql.RUN, run_id=run_id))
        return run_of(rows[0]) if rows else None

    async def runs(self, tenant: str, session: str, *, open_only: bool = False) -> list[RunRow]:
        statement = sql.OPEN_RUNS_OF if open_only else sql.RUNS
        return [run_of(row) for row in await self.fetch(query(tenant, statement, session=session))]

    async def open_runs(self) -> list[RunRow]:
        return [run_of(row) for row in await self.fetch(Query(sql.OPEN_RUNS, {}))]

    async def journal(self, tenant: str, run_id: str) -> list[JournalRow]:
        return [journal_of(row) for row in await self.fetch(query(tenant, sql.JOURNAL, run_id=run_id))]

    async def audit(
        self, tenant: str, *, after: int = 0, limit: int | None = None, last: bool = False
    ) -> list[AuditRow]:
        asked = query(tenant, sql.LAST_AUDIT if last else sql.AUDIT, after=after, limit=_at_most(limit))
        rows = await self.fetch(asked)
        return [audit_of(row) for row in (reversed(rows) if last else rows)]

    async def approval(self, tenant: str, id: str) -> ApprovalRow | None:
        rows = await self.fetch(query(tenant, sql.APPROVAL, id=id))
        return approval_of(rows[0]) if rows else None

    async def pending_approvals(self, tenant: str) -> list[ApprovalRow]:
        return [approval_of(row) for row in await self.fetch(query(tenant, sql.PENDING_APPROVALS))]

    async def grants(self, tenant: str, binding: str) -> list[ApprovalRow]:
        return [approval_of(row) for row in await self.fetch(query(tenant, sql.GRANTS, binding=binding))]

    async def events(self, tenant: str, run_id: str, *, after: int = 0, limit: int | None = None) -> list[EventRow]:
        asked = query(tenant, sql.EVENTS, run_id=run_id, after=after, limit=_at_most(limit))
        return [event_of(row) for row in await self.fetch(asked)]

    async def counted(self, tenant: str, agent_id: str, day: str) -> int:
        rows = await self.fetch(query(tenant, sql.COUNTED, agent_id=agent_id, day=day))
        return rows[0][0] if rows else 0

    async def usage(self, tenant: str, *, since: str = "", until: str = "9999") -> list[UsageRow]:
        return [usage_of(row) for row in await self.fetch(query(tenant, sql.USAGE, since=since, until=until))]

    async def document(self, tenant: str, kind: Kind, id: str) -> Document | None:
        rows = await self.fetch(query(tenant, shelf.DOCUMENT, kind=kind, id=id))
        return Document(*rows[0]) if rows else None

    async def documents(
        self, tenant: str, where: Where, *, after: str = "", limit: int | None = None
    ) -> list[Document]:
        asked = query(tenant, shelf.DOCUMENTS, **on_shelf(where), after=after, limit=_at_most(limit))
        return [Document(*row) for row in await self.fetch(asked)]

    async def passages(self, tenant: str, ids: Sequence[int]) -> list[PassageRow]:
        if not ids:
            return []
        numbers = {f"id{n}": id for n, id in enumerate(ids)}
        rows = await self.fetch(query(tenant, shelf.passages(len(numbers)), **numbers))
        found = {row[0]: PassageRow(*row) for row in rows}
        return [found[id] for id in ids if id in found]

    async def passages_of(
        self, tenant: str, kind: Kind, document: str, *, after: int = -1, limit: int | None = None
    ) -> list[PassageRow]:
        asked = query(tenant, shelf.PASSAGES_OF, kind=kind, id=document, after=after, limit=_at_most(limit))
        return [PassageRow(*row) for row in await self.fetch(asked)]

    async def nearest(self, tenant: str, where: Where, model: str, vector: bytes, *, limit: int = 50) -> list[Hit]:
        return await self._vectors.nearest(Library(tenant, where.kind, model), where.shelf, vector, limit)

    async def library(self, library: Library) -> tuple[int, int]:
        rows = await self.fetch(query(library.tenant, shelf.LIBRARY, kind=library.kind, model=library.model))
        return (rows[0][0], rows[0][1]) if rows else (0, 0)

    async def vectors(self, library: Library, after: int, limit: int) -> list[tuple[int, str, bytes]]:
        named = {"kind": library.kind, "model": library.model, "after": after, "limit": limit}
        rows = await self.search(query(library.tenant, shelf.VECTORS, **named))
        return [(id, name, vector) for id, name, vector in rows]

    async def vector_ids(self, library: Library) -> list[int]:
        asked = query(library.tenant, shelf.VECTOR_IDS, kind=library.kind, model=library.model)
        return [row[0] for row in await self.search(asked)]

    async def job(self, tenant: str, id: str) -> JobRow | None:
        rows = await self.fetch(query(tenant, job_sql.JOB, id=id))
        return job_of(rows[0]) if rows else None

    async def jobs(
        self, tenant: str, *, states: Sequence[JobState] = (), limit: int = 100, before: int | None = None
    ) -> list[JobRow]:
        statement = job_sql.jobs_in(len(states)) if states else job_sql.JOBS
        named = {f"state{n}": state for n, state in enumerate(states)}
        asked = query(tenant, statement, limit=max(limit, 0), before=_ALL if before is None else before, **named)
        return [job_of(row) for row in await self.fetch(asked)]

    async def jobs_under(self, tenant: str, parent: str) -> list[JobRow]:
        return [job_of(row) for row in await self.fetch(query(tenant, job_sql.JOBS_UNDER, parent=parent))]

    async def pending_jobs(self, tenant: str, now: int, *, limit: int = 1000) -> list[JobRow]:
        asked = query(tenant, job_sql.PENDING_JOBS, until=now, limit=max(limit, 0))
        return [job_of(row) for row in await self.fetch(asked)]

    async def record(self, tenant: str, kind: RecordKind, key: str) -> Record | None:
        rows = await self.fetch(query(tenant, record_sql.RECORD, kind=kind, key=key))
        return Record(*rows[0]) if rows else None

    async def records(self, tenant: str, kind: RecordKind) -> list[Record]:
        return [Record(*row) for row in await self.fetch(query(tenant, record_sql.RECORDS, kind=kind))]

    async def active(self, tenant: str) -> list[tuple[str, str, int]]:
        return [(row[0], row[1], row[2]) for row in await self.fetch(query(tenant, record_sql.ACTIVE))]

    async def tokens(self, tenant: str, since: str, until: str) -> int:
        return int((await self.fetch(query(tenant, record_sql.TOKENS, since=since, until=until)))[0][0])

    async def stored(self, tenant: str) -> int:
        return int((await self.fetch(query(tenant, record_sql.STORED)))[0][0])

    async def forgettable(self, tenant: str, what: Forgettable, before: int) -> Forgotten:
        rows = await self.search(query(tenant, forgetting_sql.COUNT[what], before=before))
        return Forgotten(*map(int, rows[0]))

    async def tenants(self) -> list[str]:
        return [row[0] for row in await self.fetch(Query(record_sql.TENANTS, {}))]


def _at_most(limit: int | None) -> int:
    return _ALL if limit is None else max(limit, 0)
