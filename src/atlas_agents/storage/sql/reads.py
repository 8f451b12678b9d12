"""Read half of the store port for SQL databases, and vector search in memory for those that cannot compare vectors."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from atlas_agents.core import store
from atlas_agents.core.aio import BackgroundTasks, TimeSlices, run_in_thread, utc_day
from atlas_agents.core.errors import StoreError
from atlas_agents.storage.hash_chain import AuditHead, AuditSigner, CheckRows, audit_head, verify_audit
from atlas_agents.storage.sql import derived_statements as derived_sql
from atlas_agents.storage.sql import statements as sql
from atlas_agents.storage.sql import tables
from atlas_agents.storage.sql.derived import (
    AUDIT,
    AUDIT_BLOCK,
    AUDIT_FIELDS,
    BATCH,
    OPEN_DAYS_MS,
    OVERLAP_MS,
    SESSIONS,
    add_tool_call,
    entry_needles,
    first_number,
    indexed_value,
    matches_entry,
    read_entry,
    search_words,
)
from atlas_agents.storage.sql.dialect import Dialect
from atlas_agents.storage.sql.tables import Query, Row, bind
from atlas_agents.storage.sql.text_search import key_range, scope_values

logger = logging.getLogger(__name__)
_VECTOR_PAGE = 5_000
_MAX_CACHE_BYTES = 1 << 30
"""Memory limit of the vector cache; the least recently searched libraries are evicted first."""
_MAX_QUERY_WORDS = 16
_MAX_WAIT = 2.0
_AUDIT_PAGE, _AUDIT_BLOCKS = 250, 16
_MAX_EXAMINED = 8_000
"""Audit rows that are compared with a filter before an incomplete page is returned."""
_INDEXED_WRITES = (store.AddMessage, store.AddMessages, store.AddAudit)
_REFRESH_AFTER, _REFRESH_SESSIONS = 500, 64
"""Number of writes, and of sessions, after which the derived tables are refreshed in the background."""
_REFRESH_DELAY = 1.0
"""Seconds from opening a store until its derived tables are checked, so that a start comes first."""
_SHORT_CONVERSATION = 256
"""Number of messages above which a conversation is read like a search, so that short reads do not wait for it."""
_REFRESH_PAUSE, _LOG_INTERVAL = 0.01, 5.0
_MANY_BATCHES = 50
"""Number of batches after which the statistics of the derived tables are updated."""
_SEQ = tables.AUDIT.names.index("seq")
_USAGE_KEYS, _USAGE_AMOUNTS = tables.USAGE.names[:4], tables.USAGE.names[4:]
_MIN_SESSIONS = 250
_MAX_INTEGER = (1 << 63) - 1


class Library(NamedTuple):
    """The unit of search: passages of one kind with vectors of one model."""

    tenant: str
    kind: str
    model: str


class SqlReads(ABC):
    """All reads that SQLite and Postgres have in common. A subclass executes queries and searches text."""

    _analyze: Query | None = None
    """Statement that updates the statistics of the derived tables, if the database chooses its plans by them."""

    _dialect: Dialect

    def __init__(self, audit: AuditSigner | None = None) -> None:
        self._vectors = VectorCache(self)
        self.audit_signer = audit
        """Signer of the audit log; None if it is not signed."""
        self._refreshing = BackgroundTasks("derived tables", expected=StoreError)
        self._unrefreshed: Counter[str] = Counter()

    @abstractmethod
    async def fetch(self, query: Query) -> list[Row]:
        """Execute a query that only reads."""

    @abstractmethod
    async def commit(self, tenant: str, writes: Sequence[store.Write]) -> list[Any]: ...

    async def search(self, query: Query) -> list[Row]:
        """Execute a query that only reads and may take a while."""
        return await self.fetch(query)

    async def scan(self, query: Query) -> list[Row]:
        """Execute a query that reads a whole table."""
        return await self.search(query)

    @abstractmethod
    async def search_text(
        self, tenant: str, where: store.Where, words: Sequence[str], *, limit: int = 50
    ) -> list[store.Hit]: ...

    async def session(self, tenant: str, key: str) -> store.Session | None:
        return tables.SESSIONS.first(await self.fetch(bind(tenant, sql.SESSION, key=key)))

    async def sessions(
        self,
        tenant: str,
        *,
        limit: int = 100,
        before: int | None = None,
        before_key: str = "",
        prefix: str = "",
        archived: bool | None = None,
        branches: bool = False,
    ) -> list[store.Session]:
        before = _MAX_INTEGER if before is None else before
        conditions, values = _prefix_condition(prefix, sql.KEY_WITH_PREFIX)
        if archived is not None:
            conditions.append("archived" if archived else "NOT archived")
        if branches:
            conditions.append(self._dialect.IS_BRANCH)
        named = {"limit": max(limit, 0), "before": before, "before_key": before_key, **values}
        return await tables.SESSIONS.decode_all(await self.fetch(bind(tenant, sql.list_sessions(*conditions), **named)))

    @abstractmethod
    async def match_sessions(
        self, tenant: str, words: Sequence[str], prefix: str, before: int, limit: int
    ) -> list[Row]:
        """Return id, session and number of the latest texts with all words and an id less than `before`."""

    async def search_sessions(
        self, tenant: str, query: str, *, limit: int = 30, prefix: str = "", wait: float = _MAX_WAIT
    ) -> store.SessionMatches:
        words = list(dict.fromkeys(search_words(query)))[:_MAX_QUERY_WORDS]
        if not words or limit < 1:
            return store.SessionMatches()
        is_current = await self._refresh_sessions(tenant, time.monotonic() + wait)
        found: dict[str, store.SessionMatch] = {}
        before = _MAX_INTEGER
        for page in (4 * limit, 16 * limit, 64 * limit):
            rows = await self.match_sessions(tenant, words, prefix, before, page)
            for _, session, seq in rows:
                if session.startswith(prefix) and session not in found:
                    found[session] = store.SessionMatch(session, seq)
            before = rows[-1][0] if rows else before
            if len(rows) < page:
                return store.SessionMatches(tuple(found.values())[:limit], is_current and len(found) <= limit)
            if len(found) >= limit:
                break
        return store.SessionMatches(tuple(found.values())[:limit], complete=False)

    async def _refresh_sessions(self, tenant: str, end: float) -> bool:
        """Index the sessions that changed, until a time; return whether that was enough."""
        slices = TimeSlices()
        while await self._count_unindexed_sessions(tenant, 1):
            if time.monotonic() > end:
                return False
            try:
                await self.commit(tenant, [store.RefreshIndexes()])
            except StoreError as error:  # a full disk must not prevent searching
                logger.warning("cannot refresh the search index: tenant=%s error=%s", tenant, error)
                return False
            await slices.pause()
        return True

    async def _count_unindexed_sessions(self, tenant: str, limit: int) -> int:
        position = first_number(await self.search(bind(tenant, derived_sql.POSITION, name=SESSIONS)))
        newest = first_number(await self.search(bind(tenant, derived_sql.NEWEST_SESSION)))
        since = min(position, newest) - OVERLAP_MS
        return len(await self.search(bind(tenant, derived_sql.UNINDEXED_SESSIONS, position=since, limit=limit)))

    def _note_writes(self, tenant: str, writes: Sequence[store.Write]) -> None:
        """Refresh the derived tables in the background once many rows were added."""
        self._unrefreshed[tenant] = count = self._unrefreshed[tenant] + sum(
            [type(w) in _INDEXED_WRITES for w in writes]
        )
        if count >= _REFRESH_AFTER and not len(self._refreshing):
            self._refreshing.spawn(self._refresh_noted())

    async def _refresh_noted(self) -> None:
        """Refresh the derived tables of tenants to which many rows were added, also meanwhile."""
        while busy := [tenant for tenant, count in self._unrefreshed.items() if count >= _REFRESH_AFTER]:
            self._unrefreshed[busy[0]] = 0
            await self._refresh_until_current(busy[0])

    async def _refresh_all(self) -> None:
        """Refresh the derived tables of all tenants for which much is missing."""
        await asyncio.sleep(_REFRESH_DELAY)
        tenant = ""
        while found := await self.search(Query(derived_sql.NEXT_SESSION_TENANT, {"after": tenant})):
            ((tenant,),) = found
            position = first_number(await self.search(bind(tenant, derived_sql.POSITION, name=AUDIT)))
            behind = bind(tenant, sql.AUDIT, after=position + _REFRESH_AFTER, limit=1)
            until = utc_day(time.time() - OPEN_DAYS_MS / 1000)
            if (
                await self.search(behind)
                or await self.search(bind(tenant, derived_sql.NEXT_OPEN_DAY, since="", until=until))
                or await self._count_unindexed_sessions(tenant, _REFRESH_SESSIONS) == _REFRESH_SESSIONS
            ):
                await self._refresh_until_current(tenant)
        await self._refresh_noted()

    async def _refresh_until_current(self, tenant: str) -> None:
        """Refresh in batches, with pauses in which other commits are made.

        The last sessions of a busy tenant are left: they change again at once, and a search refreshes them.
        """
        started = logged = time.monotonic()
        batches = 0
        while (await self.commit(tenant, [store.RefreshIndexes()]))[0] >= BATCH:
            batches += 1
            now = time.monotonic()
            if now - logged > _LOG_INTERVAL:
                logged = now
                (counts,) = await self.search(bind(tenant, derived_sql.INDEX_PROGRESS, name=AUDIT))
                logger.info(
                    "refreshing the indexes: tenant=%s sessions=%d of=%d audit_rows=%d of=%d seconds=%.0f",
                    *(tenant, *counts, now - started),
                )
            await asyncio.sleep(_REFRESH_PAUSE)
        if logged > started:
            logger.info("refreshed the indexes: tenant=%s seconds=%.0f", tenant, time.monotonic() - started)
        if batches >= _MANY_BATCHES and self._analyze is not None:
            await self.search(self._analyze)

    async def session_totals(self, tenant: str, prefix: str) -> store.SessionTotals:
        (counts,) = await self.search(bind(tenant, sql.SESSION_TOTALS, **key_range(prefix)))
        return store.SessionTotals(*map(int, counts))

    async def messages(
        self,
        tenant: str,
        session: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        last: bool = False,
    ) -> list[store.StoredMessage]:
        statement = sql.LAST_MESSAGES if last else sql.MESSAGES
        values = {"session": session, "after": after, "before": _MAX_INTEGER if before is None else before}
        most = _SHORT_CONVERSATION if limit is None else limit
        found = await self.fetch(bind(tenant, statement, **values, limit=limit_or_max(most)))
        if limit is None and len(found) == most:  # a long one is read at once, so that no change comes in between
            found = await self.search(bind(tenant, statement, **values, limit=limit_or_max(None)))
        rows = await tables.MESSAGES.decode_all(found)
        return rows[::-1] if last else rows

    async def message(self, tenant: str, session: str, id: str) -> store.StoredMessage | None:
        named = {"session": session, "id": id, "id_number": tables.message_number(tenant, session, id)}
        return tables.MESSAGES.first(await self.fetch(bind(tenant, sql.MESSAGE_OF_ID, **named)))

    async def run(self, tenant: str, run_id: str) -> store.RunRow | None:
        return tables.RUNS.first(await self.fetch(bind(tenant, sql.RUN, run_id=run_id)))

    async def runs(
        self, tenant: str, session: str, *, open_only: bool = False, last: int | None = None
    ) -> list[store.RunRow]:
        statement = sql.LAST_OPEN_RUNS if open_only else sql.LAST_RUNS
        query = bind(tenant, statement, session=session, limit=limit_or_max(last))
        return (await tables.RUNS.decode_all(await self.fetch(query)))[::-1]

    async def failed_runs(self, tenant: str, session: str, first: int, last: int) -> list[store.RunRow]:
        named = {"session": session, "first": first, "last": last}
        return await tables.RUNS.decode_all(await self.fetch(bind(tenant, sql.FAILED_RUNS, **named)))

    async def queued_runs(self, tenant: str, session: str) -> list[store.RunRow]:
        return await tables.RUNS.decode_all(
            await self.fetch(bind(tenant, self._dialect.QUEUED_RUNS_OF, session=session))
        )

    async def open_runs(self) -> list[store.RunRow]:
        return await tables.RUNS.decode_all(await self.fetch(Query(sql.OPEN_RUNS, {})))

    async def orphaned_runs(self) -> list[store.RunRow]:
        return await self.open_runs()

    async def journal(self, tenant: str, run_id: str) -> list[store.JournalRow]:
        query = bind(tenant, self._dialect.JOURNAL, run_id=run_id, run_key=tables.run_key(run_id))
        return tables.unpack_steps(await tables.JOURNAL.decode_all(await self.fetch(query)))

    async def audit(
        self, tenant: str, *, after: int = 0, limit: int | None = None, last: bool = False
    ) -> list[store.AuditRow]:
        query = bind(tenant, sql.LAST_AUDIT if last else sql.AUDIT, after=after, limit=limit_or_max(limit))
        rows = await tables.AUDIT.decode_all(await self.fetch(query))
        return rows[::-1] if last else rows

    async def check_audit(self, tenant: str, after: int, limit: int, check: CheckRows) -> str | None:
        """Call a function with the next audit rows and return its result, then let other tasks run.

        It gets the columns as they were read, because a verification of millions of rows needs no objects for them.
        """
        slices = TimeSlices()
        problem = check(await self.fetch(bind(tenant, sql.AUDIT, after=after, limit=limit)))
        await slices.pause()
        return problem

    async def find_audit(
        self, tenant: str, where: store.AuditFilter, *, before: int | None = None, limit: int = 100
    ) -> store.AuditMatches:
        end, slices = _MAX_INTEGER if before is None else before, TimeSlices()
        position = first_number(await self.fetch(bind(tenant, derived_sql.POSITION, name=AUDIT)))
        found: list[store.AuditRow] = []
        examined, is_plain, needles = 0, where == store.AuditFilter(), entry_needles(where)
        while len(found) < limit and examined < _MAX_EXAMINED:
            after = 0 if is_plain else position
            if end > after + 1:  # not indexed yet, or no index is needed
                query = bind(tenant, derived_sql.AUDIT_BEFORE, before=end, after=after, limit=_AUDIT_PAGE)
                rows = await self.search(query)
                is_last = is_plain and len(rows) < _AUDIT_PAGE
                next_end = rows[-1][_SEQ] if len(rows) == _AUDIT_PAGE else after + 1
            else:
                blocks = [block for (block,) in await self.search(_blocks_query(tenant, where, end))]
                rows = await self._read_blocks(tenant, blocks, end)
                is_last = len(blocks) < _AUDIT_BLOCKS
                next_end = min(blocks, default=0) * AUDIT_BLOCK + 1
            for row in _with_needles(await tables.AUDIT.decode_all(rows), needles):
                if is_plain or matches_entry(read_entry(row.entry), where):
                    found.append(row)
                    if len(found) == limit:
                        return store.AuditMatches(tuple(found), row.seq if row.seq > 1 else None)
            await slices.pause()
            examined, end = examined + len(rows), next_end
            if is_last or end <= 1:
                return store.AuditMatches(tuple(found))
        return store.AuditMatches(tuple(found), end)

    async def _read_blocks(self, tenant: str, blocks: Sequence[int], before: int) -> list[Row]:
        """Return the audit rows of some blocks before a number, latest first."""
        if not blocks:
            return []
        ranges = {f"after{n}": block * AUDIT_BLOCK for n, block in enumerate(blocks)}
        ranges |= {f"last{n}": min((block + 1) * AUDIT_BLOCK, before - 1) for n, block in enumerate(blocks)}
        rows = await self.search(bind(tenant, derived_sql.audit_in_ranges(len(blocks)), **ranges))
        return sorted(rows, key=itemgetter(_SEQ), reverse=True)

    async def tool_days(
        self, tenant: str, *, since: str = "", until: str = "9999", limit: int | None = None
    ) -> list[store.ToolDay]:
        position, indexed, slices = -1, list[Row](), TimeSlices()
        while (now := first_number(await self.fetch(bind(tenant, derived_sql.POSITION, name=AUDIT)))) != position:
            position = now
            query = bind(tenant, derived_sql.TOOL_DAYS, since=since, until=until, limit=limit_or_max(limit))
            indexed = await self.search(query)
        sums: dict[tuple[str, str], list[float]] = {}
        while rows := await self.audit(tenant, after=position, limit=_AUDIT_PAGE):
            position = rows[-1].seq
            for row in rows:
                add_tool_call(read_entry(row.entry), sums)
            await slices.pause()
        for day, tool, *amounts in indexed:
            if (more := sums.get((day, tool))) is not None:
                sums[day, tool] = [number + other for number, other in zip(amounts, more, strict=True)]
        recent: list[Row] = [(*key, *amounts) for key, amounts in sums.items() if since <= key[0] < until]
        if recent:
            indexed = sorted([*recent, *[row for row in indexed if row[:2] not in sums]], key=_latest_day_first)
        return [store.ToolDay(*row) for row in indexed[:limit]]

    async def audit_ends(self) -> dict[str, AuditHead]:
        """Return the last audit row of each tenant."""
        ends: dict[str, AuditHead] = {}
        tenant = ""
        while found := await self.fetch(Query(sql.NEXT_AUDIT_TENANT, {"after": tenant})):
            ((tenant,),) = found
            ((seq, hash),) = await self.fetch(bind(tenant, sql.AUDIT_END))
            ends[tenant] = audit_head(seq, hash)
        return ends

    async def verify_audit(self, tenant: str = "default") -> str | None:
        """Verify the audit log of a tenant; return None if it is intact and complete, else the problem."""
        return (await verify_audit(self, tenant)).problem

    def _note_audit(self, tenant: str, results: list[Any]) -> None:
        """Record the audit rows among the results of a commit for signing."""
        if self.audit_signer is not None:
            for result in results:
                if isinstance(result, store.AuditRow):
                    self.audit_signer.note(tenant, result)

    async def approval(self, tenant: str, id: str) -> store.ApprovalRow | None:
        return tables.APPROVALS.first(await self.fetch(bind(tenant, sql.APPROVAL, id=id)))

    async def pending_approvals(self, tenant: str) -> list[store.ApprovalRow]:
        return await tables.APPROVALS.decode_all(await self.fetch(bind(tenant, self._dialect.PENDING_APPROVALS)))

    async def grants(self, tenant: str, binding: str) -> list[store.ApprovalRow]:
        return await tables.APPROVALS.decode_all(await self.fetch(bind(tenant, sql.GRANTS, binding=binding)))

    async def events(
        self, tenant: str, run_id: str, *, after: int = 0, limit: int | None = None
    ) -> list[store.EventRow]:
        query = bind(tenant, self._dialect.EVENTS, run_id=run_id, after=after, limit=limit_or_max(limit))
        return await tables.EVENTS.decode_all(await self.fetch(query))

    async def call_count(self, tenant: str, agent_id: str, day: str) -> int:
        rows = await self.fetch(bind(tenant, sql.CALL_COUNT, agent_id=agent_id, day=day))
        return next((used for (used,) in rows), 0)

    async def usage(self, tenant: str, *, since: str = "", until: str = "9999") -> list[store.UsageRow]:
        return await tables.USAGE.decode_all(await self.fetch(bind(tenant, sql.USAGE, since=since, until=until)))

    async def sum_usage(
        self,
        tenant: str,
        group_by: store.UsageKey,
        *,
        by_day: bool = False,
        since: str = "",
        until: str = "9999",
        owner: str = "",
        session: str = "",
        limit: int | None = None,
    ) -> list[store.UsageRow]:
        keys: tuple[str, ...] = (group_by, "day") if by_day and group_by != "day" else (group_by,)
        named: dict[str, Any] = {"since": since, "until": until, "owner": owner, "limit": limit_or_max(limit)}
        if session:
            rows = await self.search(bind(tenant, derived_sql.usage_of_session(keys), session=session, **named))
        elif group_by == "session":
            rows = await self._sum_by_session(tenant, keys, named)
        else:
            rows = await self.search(bind(tenant, derived_sql.usage_by(keys), all=not owner, **named))
        places = [keys.index(name) if name in keys else None for name in _USAGE_KEYS]
        found, slices = list[store.UsageRow](), TimeSlices()
        for row in rows:
            found.append(tables.USAGE.decode(["" if n is None else row[n] for n in places] + list(row[len(keys) :])))
            await slices.pause()
        return found

    async def _sum_by_session(self, tenant: str, keys: tuple[str, ...], named: dict[str, Any]) -> list[Row]:
        """Examine sessions, those with the most tokens first, until no other one can be among the result."""
        owned, limit = bool(named["owner"]), named["limit"]
        inputs, outputs = [len(keys) + _USAGE_AMOUNTS.index(name) for name in ("input_tokens", "output_tokens")]
        sessions = max(limit, _MIN_SESSIONS)
        while True:
            statement = derived_sql.usage_by_session(keys, owned=owned)
            rows = await self.search(bind(tenant, statement, sessions=sessions, **named))
            bound = await self.search(bind(tenant, derived_sql.usage_bound(owned=owned), sessions=sessions, **named))
            if not bound or (len(rows) == limit and rows[-1][inputs] + rows[-1][outputs] >= bound[0][0]):
                return rows
            sessions *= 4

    async def document(self, tenant: str, kind: store.DocumentKind, id: str) -> store.Document | None:
        return tables.DOCUMENTS.first(await self.fetch(bind(tenant, sql.DOCUMENT, kind=kind, id=id)))

    async def documents(
        self, tenant: str, where: store.Where, *, after: str = "", limit: int | None = None
    ) -> list[store.Document]:
        statement = sql.DOCUMENTS if where.collection is None else sql.DOCUMENTS_OF
        query = bind(tenant, statement, **scope_values(where), after=after, limit=limit_or_max(limit))
        return await tables.DOCUMENTS.decode_all(await self.fetch(query))

    async def latest_documents(
        self, tenant: str, where: store.Where, *, before: int | None = None, before_id: str = "", limit: int = 100
    ) -> list[store.Document]:
        statement = sql.LATEST_DOCUMENTS if where.collection is None else sql.LATEST_DOCUMENTS_OF
        place = {"before": _MAX_INTEGER if before is None else before, "before_id": before_id}
        query = bind(tenant, statement, **scope_values(where), **place, limit=max(limit, 0))
        return await tables.DOCUMENTS.decode_all(await self.fetch(query))

    async def collections(self, tenant: str, kind: store.DocumentKind) -> list[str]:
        return [name for (name,) in await self.fetch(bind(tenant, sql.COLLECTIONS, kind=kind))]

    async def passages(self, tenant: str, ids: Sequence[int]) -> list[store.PassageRow]:
        if not ids:
            return []
        numbers = {f"id{n}": id for n, id in enumerate(ids)}
        rows = await tables.PASSAGES.decode_all(
            await self.fetch(bind(tenant, sql.passages_by_id(len(numbers)), **numbers))
        )
        found = {row.id: row for row in rows}
        return [found[id] for id in ids if id in found]

    async def document_passages(
        self, tenant: str, kind: store.DocumentKind, document: str, *, after: int = -1, limit: int | None = None
    ) -> list[store.PassageRow]:
        query = bind(tenant, sql.PASSAGES_OF, kind=kind, id=document, after=after, limit=limit_or_max(limit))
        return await tables.PASSAGES.decode_all(await self.fetch(query))

    async def find_nearest(
        self, tenant: str, where: store.Where, model: str, vector: bytes, *, limit: int = 50
    ) -> list[store.Hit]:
        return await self._vectors.search(Library(tenant, where.kind, model), where.collection, vector, limit)

    async def library_version(self, library: Library) -> tuple[int, int]:
        """Return a number that changes with every write to a library, and the number of its vectors."""
        rows = await self.fetch(bind(library.tenant, sql.LIBRARY, kind=library.kind, model=library.model))
        return next(((version, vectors) for version, vectors in rows), (0, 0))

    async def vectors(self, library: Library, after: int, limit: int) -> list[tuple[int, str, bytes]]:
        named = {"kind": library.kind, "model": library.model, "after": after, "limit": limit}
        rows = await self.search(bind(library.tenant, sql.VECTORS, **named))
        return [(id, collection, vector) for id, collection, vector in rows]

    async def vector_ids(self, library: Library) -> list[int]:
        query = bind(library.tenant, sql.VECTOR_IDS, kind=library.kind, model=library.model)
        return [id for (id,) in await self.search(query)]

    async def job(self, tenant: str, id: str) -> store.JobRow | None:
        return tables.JOBS.first(await self.fetch(bind(tenant, sql.JOB, id=id)))

    async def jobs(
        self,
        tenant: str,
        *,
        states: Sequence[store.JobState] = (),
        limit: int = 100,
        before: int | None = None,
        prefix: str = "",
    ) -> list[store.JobRow]:
        conditions, values = _prefix_condition(prefix, sql.SESSION_WITH_PREFIX)
        distinct = dict.fromkeys(states)
        named = {f"state{n}": state for n, state in enumerate(distinct)} | values
        before = _MAX_INTEGER if before is None else before
        query = bind(tenant, sql.list_jobs(len(distinct), *conditions), limit=max(limit, 0), before=before, **named)
        return await tables.JOBS.decode_all(await self.fetch(query))

    async def child_jobs(self, tenant: str, parent: str) -> list[store.JobRow]:
        return await tables.JOBS.decode_all(await self.fetch(bind(tenant, sql.CHILD_JOBS, parent=parent)))

    async def pending_jobs(self, tenant: str, now: int, *, limit: int = 1000) -> list[store.JobRow]:
        return await tables.JOBS.decode_all(
            await self.fetch(bind(tenant, sql.PENDING_JOBS, until=now, limit=max(limit, 0)))
        )

    async def record(self, tenant: str, kind: store.RecordKind, key: str) -> store.StoredRecord | None:
        return tables.RECORDS.first(await self.fetch(bind(tenant, sql.RECORD, kind=kind, key=key)))

    async def records(self, tenant: str, kind: store.RecordKind, *, prefix: str = "") -> list[store.StoredRecord]:
        statement, keys = (sql.RECORDS_WITH_PREFIX, key_range(prefix)) if prefix else (sql.RECORDS, {})
        return await tables.RECORDS.decode_all(await self.fetch(bind(tenant, statement, kind=kind, **keys)))

    async def last_turns(self, tenant: str) -> list[tuple[str, str, int]]:
        await self._refresh_sessions(tenant, time.monotonic() + _MAX_WAIT)
        return [(agent, user, at) for agent, user, at in await self.fetch(bind(tenant, sql.LAST_TURNS))]

    async def tokens(self, tenant: str, since: str, until: str) -> int:
        ((count,),) = await self.fetch(bind(tenant, sql.TOKENS, since=since, until=until))
        return int(count)

    async def budget_rows(self, tenant: str, key: str, period: str) -> list[store.BudgetRow]:
        return await tables.BUDGETS.decode_all(await self.fetch(bind(tenant, sql.BUDGET_ROWS, key=key, period=period)))

    async def storage_bytes(self, tenant: str) -> int:
        ((size,),) = await self.scan(bind(tenant, sql.STORAGE_BYTES))
        return int(size)

    async def prunable(self, tenant: str, what: store.Prunable, before: int) -> store.Pruned:
        limit: dict[str, Any] = {"day": utc_day(before / 1000)} if what == "counters" else {"before": before}
        (counts,) = await self.scan(bind(tenant, self._dialect.COUNT_PRUNABLE[what], **limit))
        return store.Pruned(*map(int, counts))

    async def tenants(self) -> list[str]:
        return [tenant for (tenant,) in await self.fetch(Query(sql.TENANTS, {}))]


class VectorCache:
    """LRU cache of the vectors of each library, as one matrix."""

    def __init__(self, source: "SqlReads") -> None:
        self._source = source
        self._matrices: OrderedDict[Library, _Matrix] = OrderedDict()

    async def search(self, library: Library, collection: str | None, vector: bytes, limit: int) -> list[store.Hit]:
        """Return the best matches, best first; new vectors are read from the database before."""
        version, count = await self._source.library_version(library)
        if not count or limit < 1:
            return []
        matrix = self._matrices.get(library)
        if matrix is None:
            matrix = self._matrices[library] = _Matrix(len(vector) // 2)
        self._matrices.move_to_end(library)
        async with matrix.lock:
            if matrix.version != version:
                await self._refresh(library, matrix)
            query = matrix.query(vector)
            hits = await run_in_thread(matrix.search, collection, query, limit)
        self._evict()
        return hits

    async def _refresh(self, library: Library, matrix: "_Matrix") -> None:
        version, _ = await self._source.library_version(library)
        while rows := await self._source.vectors(library, matrix.last, _VECTOR_PAGE):
            await run_in_thread(matrix.add, rows)
        after, count = await self._source.library_version(library)
        if len(matrix) != count or after != version:
            await run_in_thread(matrix.retain, await self._source.vector_ids(library))
        matrix.version = version

    def _evict(self) -> None:
        while len(self._matrices) > 1 and sum(matrix.size for matrix in self._matrices.values()) > _MAX_CACHE_BYTES:
            self._matrices.popitem(last=False)


class _Matrix:
    """Rows of unit length, ordered by passage id. Capacity doubles when it is full."""

    def __init__(self, width: int) -> None:
        import numpy

        self._np = numpy
        self.lock = asyncio.Lock()
        self.version = -1
        self._count = 0
        self._rows = numpy.zeros((64, width), numpy.float32)
        self._ids = numpy.zeros(64, numpy.int64)
        self._collections = numpy.zeros(64, numpy.int32)
        self._names: dict[str, int] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def last(self) -> int:
        return int(self._ids[self._count - 1]) if self._count else 0

    @property
    def size(self) -> int:
        return self._rows.nbytes

    def query(self, vector: bytes) -> Any:
        return self._normalize(self._decode([vector]))[0]

    def add(self, rows: Sequence[tuple[int, str, Any]]) -> None:
        end = self._count + len(rows)
        self._grow(end)
        self._rows[self._count : end] = self._normalize(self._decode([vector for _, _, vector in rows]))
        self._ids[self._count : end] = [id for id, _, _ in rows]
        self._collections[self._count : end] = [self._names.setdefault(name, len(self._names)) for _, name, _ in rows]
        self._count = end

    def retain(self, ids: Sequence[int]) -> None:
        """Remove the rows of all other passages, which were deleted."""
        retained = self._np.isin(self._ids[: self._count], self._np.asarray(ids, self._np.int64))
        for name in ("_rows", "_ids", "_collections"):
            setattr(self, name, getattr(self, name)[: self._count][retained])
        self._count = len(self._ids)

    def search(self, collection: str | None, query: Any, limit: int) -> list[store.Hit]:
        np = self._np
        ids, rows = self._ids[: self._count], self._rows[: self._count]
        if collection is not None:
            indices = np.flatnonzero(self._collections[: self._count] == self._names.get(collection, -1))
            ids, rows = ids[indices], rows[indices]
        scores = rows @ query
        best = np.argpartition(-scores, limit - 1)[:limit] if limit < len(scores) else np.arange(len(scores))
        best = best[np.lexsort((ids[best], -scores[best]))]
        return [store.Hit(int(ids[index]), float(scores[index])) for index in best]

    def _decode(self, vectors: Sequence[Any]) -> Any:
        """Decode vectors: bytes of 16-bit floats, or lists of numbers from Postgres."""
        np = self._np
        width = self._rows.shape[1]
        if vectors and isinstance(vectors[0], bytes):
            if any(len(vector) != width * 2 for vector in vectors):
                raise StoreError("vectors of one model differ in length: ingest all documents again")
            return np.frombuffer(b"".join(vectors), np.float16).astype(np.float32).reshape(-1, width)
        return np.asarray(vectors, np.float32)

    def _normalize(self, rows: Any) -> Any:
        return rows / self._np.maximum(self._np.linalg.norm(rows, axis=1, keepdims=True), 1e-9)

    def _grow(self, count: int) -> None:
        np = self._np
        if count <= len(self._ids):
            return
        capacity = max(count, 2 * len(self._ids))
        for name in ("_rows", "_ids", "_collections"):
            old = getattr(self, name)
            new = np.zeros((capacity, *old.shape[1:]), old.dtype)
            new[: self._count] = old[: self._count]
            setattr(self, name, new)


def _prefix_condition(prefix: str, condition: str) -> tuple[list[str], dict[str, Any]]:
    """Return the condition for keys with a prefix, and its values. For a user's own sessions there is an index."""
    if not prefix:
        return [], {}
    if prefix.startswith("@") and prefix.find("/") == len(prefix) - 1:
        return [sql.OF_OWNER], {"owner": prefix}
    return [condition], key_range(prefix)


def _latest_day_first(row: Row) -> tuple[int, str]:
    day, tool, *_ = row
    return -int(day.replace("-", "")), tool


def _with_needles(rows: Sequence[store.AuditRow], needles: Sequence[bytes]) -> Sequence[store.AuditRow]:
    """Return the audit rows whose entry contains all needles, without decoding the others."""
    for needle in needles:
        rows = [row for row in rows if needle in row.entry]
    return rows


def _blocks_query(tenant: str, where: store.AuditFilter, before: int) -> Query:
    """Return the next blocks before a number that contain all values of a filter."""
    values = {name: indexed_value(value) for name in AUDIT_FIELDS if (value := getattr(where, name)) is not None}
    times = {"since": where.since or 0, "until": _MAX_INTEGER if where.until is None else where.until}
    block = {"block": (before - 2) // AUDIT_BLOCK, "blocks": _AUDIT_BLOCKS}
    if (run := values.get("run_id")) is not None:
        values["run_id"] = tables.run_key(run)
    return bind(tenant, derived_sql.find_audit_blocks(tuple(values)), **values, **times, **block)


def limit_or_max(limit: int | None) -> int:
    return _MAX_INTEGER if limit is None else max(limit, 0)
