"""The store in memory: the port in plain Python, to read and to test with. Nothing outlives it."""

from collections.abc import Sequence
from typing import Any

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
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
    Write,
)
from atlas_agents.stores.memory_desk import Desk
from atlas_agents.stores.memory_forgetting import forgettable
from atlas_agents.stores.memory_jobs import pending
from atlas_agents.stores.memory_shelves import matching
from atlas_agents.stores.memory_writes import carry_out
from atlas_agents.stores.query import Place, query
from atlas_agents.stores.vectors import Library, Vectors


class MemoryStore:
    """One desk per tenant; a commit never waits, so that nothing comes between its writes."""

    def __init__(self, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._desks: dict[str, Desk] = {}
        self._vectors = Vectors(self)

    async def open(self) -> None:
        """There is nothing to open."""

    async def close(self) -> None:
        """There is nothing to close."""

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        place = Place(tenant, int(self._clock.time() * 1000))
        desk = self._desk(tenant)
        try:
            results = carry_out(desk, place, writes)
        except BaseException:
            desk.undo()
            raise
        desk.keep()
        return results

    async def session(self, tenant: str, key: str) -> Session | None:
        return self._desk(tenant).sessions.get(key)

    async def sessions(self, tenant: str, *, limit: int = 100, before: int | None = None) -> list[Session]:
        found = [s for s in self._desk(tenant).sessions.values() if before is None or s.updated_at < before]
        return sorted(found, key=lambda s: -s.updated_at)[: max(limit, 0)]

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
        rows = self._desk(tenant).messages.get(session, {})
        begin, end = max(after, 0) + 1, len(rows) + 1 if before is None else min(before, len(rows) + 1)
        if limit is not None and last:
            begin = max(begin, end - max(limit, 0))
        elif limit is not None:
            end = min(end, begin + max(limit, 0))
        return [rows[n] for n in range(begin, end)]

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        return self._desk(tenant).runs.get(run_id)

    async def runs(self, tenant: str, session: str, *, open_only: bool = False) -> list[RunRow]:
        desk = self._desk(tenant)
        ids = (desk.open_of if open_only else desk.runs_of).get(session) or ()
        return [desk.runs[id] for id in ids]

    async def open_runs(self) -> list[RunRow]:
        return [
            desk.runs[id]
            for _, desk in sorted(self._desks.items())
            for _, ids in sorted(desk.open_of.items())
            for id in ids
        ]

    async def journal(self, tenant: str, run_id: str) -> list[JournalRow]:
        return list(self._desk(tenant).journal.get(run_id, {}).values())

    async def audit(
        self, tenant: str, *, after: int = 0, limit: int | None = None, last: bool = False
    ) -> list[AuditRow]:
        rows = self._desk(tenant).audit
        begin, end = max(after, 0) + 1, len(rows) + 1
        if limit is not None and last:
            begin = max(begin, end - max(limit, 0))
        elif limit is not None:
            end = min(end, begin + max(limit, 0))
        return [rows[n] for n in range(begin, end)]

    async def approval(self, tenant: str, id: str) -> ApprovalRow | None:
        return self._desk(tenant).approvals.get(id)

    async def pending_approvals(self, tenant: str) -> list[ApprovalRow]:
        desk = self._desk(tenant)
        runs = [run_id for ids in desk.open_of.values() for run_id in ids]
        found = [desk.approvals[id] for run_id in runs for id in desk.pending_of.get(run_id, {})]
        return sorted(found, key=lambda approval: (approval.created_at, approval.id))

    async def grants(self, tenant: str, binding: str) -> list[ApprovalRow]:
        desk = self._desk(tenant)
        found = [desk.approvals[id] for id in desk.granting.get(binding, {})]
        return sorted(found, key=lambda approval: (approval.answered_at or 0, approval.id))

    async def events(self, tenant: str, run_id: str, *, after: int = 0, limit: int | None = None) -> list[EventRow]:
        rows = self._desk(tenant).events.get(run_id, {})
        found = [rows[seq] for seq in sorted(rows) if seq > after]
        return found if limit is None else found[: max(limit, 0)]

    async def counted(self, tenant: str, agent_id: str, day: str) -> int:
        return self._desk(tenant).counters.get((agent_id, day), 0)

    async def usage(self, tenant: str, *, since: str = "", until: str = "9999") -> list[UsageRow]:
        return [row for _, row in sorted(self._desk(tenant).usage.items()) if since <= row.day < until]

    async def document(self, tenant: str, kind: Kind, id: str) -> Document | None:
        return self._desk(tenant).documents.get((kind, id))

    async def documents(
        self, tenant: str, where: Where, *, after: str = "", limit: int | None = None
    ) -> list[Document]:
        found = [
            document
            for (kind, id), document in sorted(self._desk(tenant).documents.items())
            if kind == where.kind and id > after and where.shelf in (None, document.shelf)
        ]
        return found if limit is None else found[: max(limit, 0)]

    async def passages(self, tenant: str, ids: Sequence[int]) -> list[PassageRow]:
        kept = self._desk(tenant).passages
        return [kept[id].row for id in ids if id in kept]

    async def passages_of(
        self, tenant: str, kind: Kind, document: str, *, after: int = -1, limit: int | None = None
    ) -> list[PassageRow]:
        desk = self._desk(tenant)
        rows = [desk.passages[id].row for id in desk.passages_of.get((kind, document), {})]
        return [row for row in sorted(rows, key=lambda row: row.place) if row.place > after][:limit]

    async def matching(self, tenant: str, where: Where, words: Sequence[str], *, limit: int = 50) -> list[Hit]:
        return matching(self._desk(tenant), where, words)[: max(limit, 0)]

    async def nearest(self, tenant: str, where: Where, model: str, vector: bytes, *, limit: int = 50) -> list[Hit]:
        return await self._vectors.nearest(Library(tenant, where.kind, model), where.shelf, vector, limit)

    async def library(self, library: Library) -> tuple[int, int]:
        return self._desk(library.tenant).libraries.get((library.kind, library.model), (0, 0))

    async def vectors(self, library: Library, after: int, limit: int) -> list[tuple[int, str, bytes]]:
        found = [
            (id, kept.row.shelf, kept.vector)
            for id, kept in sorted(self._desk(library.tenant).passages.items())
            if id > after and kept.vector and (kept.kind, kept.model) == (library.kind, library.model)
        ]
        return found[:limit]

    async def vector_ids(self, library: Library) -> list[int]:
        return [id for id, _, _ in await self.vectors(library, 0, 1 << 62)]

    async def job(self, tenant: str, id: str) -> JobRow | None:
        return self._desk(tenant).jobs.get(id)

    async def jobs(
        self, tenant: str, *, states: Sequence[JobState] = (), limit: int = 100, before: int | None = None
    ) -> list[JobRow]:
        found = [job for job in self._desk(tenant).jobs.values() if not states or job.state in states]
        later = [job for job in found if before is None or job.seq < before]
        return sorted(later, key=lambda job: -job.seq)[: max(limit, 0)]

    async def jobs_under(self, tenant: str, parent: str) -> list[JobRow]:
        return [job for job in self._desk(tenant).jobs.values() if parent and job.parent == parent]

    async def pending_jobs(self, tenant: str, now: int, *, limit: int = 1000) -> list[JobRow]:
        return pending(self._desk(tenant), now)[: max(limit, 0)]

    async def record(self, tenant: str, kind: RecordKind, key: str) -> Record | None:
        return self._desk(tenant).records.get((kind, key))

    async def records(self, tenant: str, kind: RecordKind) -> list[Record]:
        return [record for (of, _), record in sorted(self._desk(tenant).records.items()) if of == kind]

    async def active(self, tenant: str) -> list[tuple[str, str, int]]:
        last: dict[tuple[str, str], int] = {}
        for run in self._desk(tenant).runs.values():
            last[run.agent_id, run.user] = max(run.created_at, last.get((run.agent_id, run.user), 0))
        return [(agent, user, at) for (agent, user), at in sorted(last.items())]

    async def tokens(self, tenant: str, since: str, until: str) -> int:
        return sum(row.input_tokens + row.output_tokens for row in await self.usage(tenant, since=since, until=until))

    async def stored(self, tenant: str) -> int:
        desk = self._desk(tenant)
        messages = [len(row.body) for rows in desk.messages.values() for row in rows.values()]
        steps = [len(row.payload) for rows in desk.journal.values() for row in rows.values()]
        return sum(messages) + sum(steps) + sum(len(r.body) for rows in desk.events.values() for r in rows.values())

    async def forgettable(self, tenant: str, what: Forgettable, before: int) -> Forgotten:
        return forgettable(self._desk(tenant), what, before)

    async def tenants(self) -> list[str]:
        return sorted(name for name, desk in self._desks.items() if any(kind == "tenant" for kind, _ in desk.records))

    def _desk(self, tenant: str) -> Desk:
        desk = self._desks.get(tenant)
        if desk is None:
            query(tenant, "")  # the same names are refused as on a disk
            desk = self._desks[tenant] = Desk()
        return desk
