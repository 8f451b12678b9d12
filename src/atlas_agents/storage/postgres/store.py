"""Postgres store: several processes share one database. `PostgresStore` reads; its `Writer` commits in groups.

Waiting commits of a tenant in one process share a transaction (group commit), as on SQLite. The commits of a turn are
sent in two messages (`pipelined`): they share their tenant's advisory lock and lock their sessions.
All others hold the lock alone and run step by step (`sql.writes`), one after the other across all processes. Indexing
has a `Writer` of its own and shares the lock, so that turns do not wait for it.
"""

import asyncio
import hashlib
import itertools
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool

from atlas_agents.core.aio import SYSTEM_CLOCK, BackgroundTasks, Clock, QueuedRequest
from atlas_agents.core.errors import StoreBusy, StoreError, StoreLost
from atlas_agents.core.store import (
    DropSession,
    EventRow,
    Hit,
    PutDocument,
    RefreshIndexes,
    StoredMessage,
    Where,
    Write,
)
from atlas_agents.storage.hash_chain import START, AuditSigner, ChainEnds
from atlas_agents.storage.history_cache import HistoryCache
from atlas_agents.storage.postgres import connection as postgres_connection
from atlas_agents.storage.postgres import statements as sql
from atlas_agents.storage.postgres.connection import Cursor
from atlas_agents.storage.postgres.pipelined import (
    Batch,
    NotPipelined,
    content_size,
    is_pipelined,
    unknown_journals,
)
from atlas_agents.storage.sql import tables
from atlas_agents.storage.sql.derived import DERIVED_TABLES, NotShared
from atlas_agents.storage.sql.reads import SqlReads, limit_or_max
from atlas_agents.storage.sql.statements import LAST_AUDIT
from atlas_agents.storage.sql.tables import (
    AUDIT,
    Query,
    Row,
    Steps,
    Vector,
    WriteContext,
    bind,
    unpack_events,
    unpack_hash,
)
from atlas_agents.storage.sql.text_search import (
    MAX_WORDS,
    CostLimits,
    choose_words,
    key_range,
    plain_words,
    scope_values,
)
from atlas_agents.storage.sql.writes import apply_writes

T = TypeVar("T")
Pool: TypeAlias = AsyncConnectionPool[postgres_connection.Connection]
Commit: TypeAlias = QueuedRequest[tuple[Write, ...]]
AfterCommit: TypeAlias = Callable[[], None]
TransactionHook: TypeAlias = Callable[
    [psycopg.AsyncConnection[Any], str, Sequence[Write], Sequence[Any]], Awaitable[AfterCommit | None]
]
"""Further work in the transaction of one or several commits. It gets the connection, which may be in pipeline mode, the
tenant, the writes and their results. An exception rolls them back, and then the hook is called for each commit alone; a
function that it returns is called after the commit."""

_MAX_GROUP = 64
_MAX_GROUP_BYTES = 8 << 20
"""Maximum size of commits that share a transaction: more would delay the waiting commits."""
_RETRY_DELAY = 0.1
_BORROW_TIMEOUT = 5.0
_UNCLEAR = "the connection to Postgres was lost while committing: the commit may or may not have been written"
_TOKEN_STEP = 2
_MAX_PAUSE = 0.03
"""Seconds between two groups of commits, at most."""
_LAST_AUDIT_ROWS = 1000
"""Number of rows at the end of the audit log that are searched for the rows of a commit with an unclear outcome."""
_SEARCH_LIMITS = CostLimits(500, 2_000)
"""Lower than on SQLite, because Postgres reads the whole row of each passage: 6,000 passages took 60 ms."""


class PostgresStore(SqlReads):
    """Store on Postgres; all tables live in one schema.

    Args:
        url: Address of the database, `postgresql://…`.
        schema: Schema of the tables.
        connections: Maximum number of connections; at least 2.
        retry_timeout: Seconds for which a lost connection is retried; then callers get `StoreLost`, and the next call
            tries again.
        busy_timeout: Seconds to wait for a lock.
        answer_timeout: Seconds after which a server that has not answered counts as lost; more than `busy_timeout`.
        clock: Source of time.
        pgvector: Whether the extension `pgvector` compares vectors, if the server has it; otherwise this process does.
        transaction_hook: Does further work in the transaction of each commit.
        history_cache: Cache of conversations, so that one that was read before is not read again.
        audit: Signs the audit log.
    """

    _dialect = sql
    _analyze = Query(f"ANALYZE {', '.join(DERIVED_TABLES)}", {})
    """Postgres analyzes tables itself up to a minute later; until then, some sums of usage take 20 times as long."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "atlas",
        connections: int = 8,
        retry_timeout: float = 5.0,
        busy_timeout: float = 5.0,
        answer_timeout: float = 10.0,
        clock: Clock = SYSTEM_CLOCK,
        pgvector: bool = True,
        transaction_hook: TransactionHook | None = None,
        history_cache: HistoryCache | None = None,
        audit: AuditSigner | None = None,
    ) -> None:
        super().__init__(audit)
        if not schema.isidentifier():
            raise StoreError(f"invalid Postgres schema {schema!r}: expected an identifier")
        if answer_timeout <= busy_timeout:
            raise StoreError(f"answer_timeout must exceed busy_timeout ({busy_timeout:g} s), got {answer_timeout:g} s")
        self._url = url
        self._schema = schema
        self._connections = max(2, connections)
        self._retry_timeout = retry_timeout
        self._busy_timeout = busy_timeout
        self._answer_timeout = answer_timeout
        self._clock = clock
        self._pgvector = pgvector
        self._transaction_hook = transaction_hook
        self._history_cache = history_cache
        self._pgvector_schema: str | None = None
        self._indexed: dict[tuple[str, int], bool] = {}
        self._open: tuple[Pool, Writer, Writer] | None = None
        self._reads = BackgroundTasks("Postgres reads")
        self._groups = {
            statement: ReadGroup(self._reads, self._execute, grouped) for statement, grouped in sql.GROUPED.items()
        }

    @property
    def transactions(self) -> int:
        """Transactions of this process so far; fewer than the commits if some shared one."""
        return self._require_open()[1].transactions

    async def open(self) -> None:
        if self._open is not None:
            raise StoreError("the store is already open: call close() first")
        try:
            async with await postgres_connection.connect(self._url) as connection:
                await self._configure(connection)
                await postgres_connection.migrate(connection, self._schema)
                await prune_tokens(connection)
                self._pgvector_schema = await postgres_connection.find_pgvector(connection) if self._pgvector else None
        except psycopg.Error as error:
            raise postgres_connection.translate_error(error) from error
        pool: Pool = AsyncConnectionPool(
            self._url,
            connection_class=postgres_connection.Connection,
            kwargs=postgres_connection.CONNECT_OPTIONS,
            configure=self._configure,
            min_size=1,
            max_size=self._connections,
            reconnect_timeout=1.0,
            open=False,
            name="atlas-postgres",
        )
        await pool.open()
        key = self.audit_signer.row_key if self.audit_signer else None
        self._open = (
            pool,
            Writer(pool, self._schema, self._clock, self._retry_timeout, self._transaction_hook, key),
            Writer(pool, self._schema, self._clock, self._retry_timeout, is_shared=True),
        )
        if self.audit_signer is not None:
            try:
                await self.audit_signer.open(self, self.audit_ends)
            except BaseException:
                await self.close()
                raise
        self._refreshing.spawn(self._refresh_all())

    async def close(self) -> None:
        """Finish all commits that were submitted, then disconnect."""
        await self._refreshing.close()
        if self.audit_signer is not None:
            await self.audit_signer.close()
        if self._open is not None:
            pool, *writers = self._open
            self._open = None
            for writer in writers:
                await writer.finish()
            await self._reads.wait()
            await pool.close()

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        for write in writes:
            if isinstance(write, PutDocument) and write.passages and (vector := write.passages[0].vector):
                # Building the index is fast while the table is small.
                await self._ensure_indexed(write.document.model, len(vector) // 2)
        _, writer, indexer = self._require_open()
        is_indexing = [type(write) for write in writes] == [RefreshIndexes]
        results = await (indexer if is_indexing else writer).commit(tenant, writes)
        self._note_audit(tenant, results)
        self._note_writes(tenant, writes)
        if self._history_cache is not None:
            for write in writes:
                if isinstance(write, DropSession):
                    self._history_cache.evict(tenant, write.key)
        return results

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
        if self._history_cache is not None and after == 0 and before is None and limit is None:
            return await self._history_cache.read(self.fetch, tenant, session)
        return await super().messages(tenant, session, after=after, before=before, limit=limit, last=last)

    async def events(self, tenant: str, run_id: str, *, after: int = 0, limit: int | None = None) -> list[EventRow]:
        keys = {"run_id": run_id, "run_key": tables.run_key(run_id)}
        query = bind(tenant, sql.EVENTS, **keys, after=after, limit=limit_or_max(limit))
        return unpack_events(await self.fetch(query), after)[:limit]

    async def fetch(self, query: Query) -> list[Row]:
        group = self._groups.get(query.sql)
        return await (self._execute(query) if group is None else group.read(query))

    async def search(self, query: Query) -> list[Row]:
        """Execute a search without a prepared statement: the best plan depends on the values."""
        return await self._execute(query, prepare=False)

    async def _execute(self, query: Query, *, prepare: bool | None = None) -> list[Row]:
        pool = self._require_open()[0]
        end = self._clock.monotonic() + self._retry_timeout
        while True:
            try:
                async with pool.connection(timeout=1.0) as connection:
                    return await postgres_connection.execute(connection.cursor(binary=True), query, prepare=prepare)
            except psycopg.Error as error:
                if not postgres_connection.is_lost(error) or self._clock.monotonic() >= end:
                    raise postgres_connection.translate_error(error) from error
            await self._clock.sleep(_RETRY_DELAY)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[postgres_connection.Connection]:
        """Borrow a connection of the pool, for queries of other layers on the same database."""
        pool = self._require_open()[0]
        try:
            async with pool.connection(timeout=_BORROW_TIMEOUT) as connection:
                yield connection
        except psycopg.Error as error:
            raise postgres_connection.translate_error(error) from error

    @property
    def has_pgvector(self) -> bool:
        """Whether the server compares vectors; otherwise this process compares them in memory."""
        return self._pgvector_schema is not None

    async def search_text(self, tenant: str, where: Where, words: Sequence[str], *, limit: int = 50) -> list[Hit]:
        wanted = [f"'{word}'" for word in plain_words(words)[:MAX_WORDS]]
        if not wanted:
            return []
        each = {f"match{n}": word for n, word in enumerate(wanted)}
        scope = scope_values(where)
        counts = bind(tenant, sql.count_matches(len(wanted)), **scope, max_rows=_SEARCH_LIMITS.common_from, **each)
        chosen = choose_words(_SEARCH_LIMITS, wanted, await self.search(counts), " | ", " & ")
        values = {"match": chosen, "max_rows": _SEARCH_LIMITS.max_scored, "limit": max(limit, 0)}
        return [Hit(id, score) for id, score in await self.search(bind(tenant, sql.MATCHING, **scope, **values))]

    async def match_sessions(
        self, tenant: str, words: Sequence[str], prefix: str, before: int, limit: int
    ) -> list[Row]:
        match = " & ".join([f"'{word}'{':*' if len(word) > 1 else ''}" for word in words])
        keys = {"all": not prefix, **key_range(prefix or "@")}
        return await self.search(bind(tenant, sql.SESSION_MATCHES, match=match, before=before, limit=limit, **keys))

    async def find_nearest(self, tenant: str, where: Where, model: str, vector: bytes, *, limit: int = 50) -> list[Hit]:
        dimensions = len(vector) // 2
        if not await self._ensure_indexed(model, dimensions):
            return await super().find_nearest(tenant, where, model, vector, limit=limit)
        statement = sql.find_nearest(dimensions)
        values = {"model": model, "vector": Vector(vector), "limit": max(limit, 0)}
        rows = await self.search(bind(tenant, statement, **scope_values(where), **values))
        hits = [Hit(id, score) for id, score in rows]
        return sorted(hits, key=lambda hit: (-hit.score, hit.passage))  # the index does not define the order of ties

    async def _ensure_indexed(self, model: str, dimensions: int) -> bool:
        if self._pgvector_schema is None:
            return False
        if (model, dimensions) not in self._indexed:
            try:
                async with self._require_open()[0].connection(timeout=1.0) as connection:
                    self._indexed[model, dimensions] = await postgres_connection.ensure_vector_index(
                        connection, model, dimensions
                    )
            except psycopg.Error as error:
                raise postgres_connection.translate_error(error) from error
        return self._indexed[model, dimensions]

    async def _configure(self, connection: postgres_connection.Connection) -> None:
        await postgres_connection.configure(
            connection, self._schema, self._busy_timeout, self._answer_timeout, self._pgvector_schema
        )

    def _require_open(self) -> tuple[Pool, "Writer", "Writer"]:
        if self._open is None:
            raise StoreError("the store is not open: call open() first")
        return self._open


class ReadGroup:
    """Group read: reads of one kind and tenant that wait while another one runs share the next statement.

    Each parameter of the statement, except the tenant, is an array with one value per read. A read sees everything that
    was committed before it was requested.
    """

    def __init__(
        self, tasks: BackgroundTasks, execute: Callable[[Query], Awaitable[list[Row]]], statement: str
    ) -> None:
        self._tasks = tasks
        self._execute = execute
        self._statement = statement
        self._waiting: dict[str, list[QueuedRequest[Query]]] = {}

    async def read(self, query: Query) -> list[Row]:
        """Return the rows of one read."""
        tenant, queued = query.values["tenant"], QueuedRequest(query, asyncio.get_running_loop())
        if tenant in self._waiting:
            self._waiting[tenant].append(queued)
        else:
            self._waiting[tenant] = [queued]
            self._tasks.spawn(self._read_queue(tenant))
        return await queued.future

    async def _read_queue(self, tenant: str) -> None:
        while group := self._waiting[tenant]:
            self._waiting[tenant] = []
            try:
                rows = await self._execute(self._bind(tenant, [queued.request for queued in group]))
                found: list[list[Row]] = [[] for _ in group]
                for row in rows:
                    number: int = row[0]
                    found[number - 1].append(row[1:])
                for queued, rows_of_one in zip(group, found, strict=True):
                    queued.result = rows_of_one
            except BaseException as error:  # noqa: BLE001  the callers must get it, and the queue must go on
                for queued in group:
                    queued.error = error if isinstance(error, Exception) else StoreLost("the store is shutting down")
            for queued in group:
                queued.settle()
        del self._waiting[tenant]

    def _bind(self, tenant: str, reads: Sequence[Query]) -> Query:
        names = [name for name in reads[0].values if name != "tenant"]
        return bind(tenant, self._statement, **{name: [read.values[name] for read in reads] for name in names})


class _UnclearCommit(Exception):
    """The connection was lost between COMMIT and its answer."""

    def __init__(self, token: int, after_commit: Sequence[AfterCommit | None], batch: Batch | None = None) -> None:
        super().__init__(token)
        self.token = token
        self.after_commit = after_commit
        self.batch = batch


class _CommitFailed(Exception):
    """One commit of a group failed; the others may succeed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Writer:
    """Group commit: a queue of pending commits per tenant, and a task that empties it.

    After a group of several commits, the next group waits for as long as that group took, so that turns that continue
    meanwhile share its transaction; otherwise many processes would each write small groups. A single commit without
    others close to it does not wait.

    With `is_shared`, commits that run step by step share the lock of the tenant with those of turns where they can.
    """

    def __init__(
        self,
        pool: Pool,
        schema: str,
        clock: Clock,
        retry_timeout: float,
        hook: TransactionHook | None = None,
        audit_key: bytes | None = None,
        *,
        is_shared: bool = False,
    ) -> None:
        self.transactions = 0
        self._is_shared = is_shared
        self._audit_key = audit_key
        self._pool = pool
        self._schema = schema
        self._clock = clock
        self._retry_timeout = retry_timeout
        self._hook = hook
        self._id = secrets.token_bytes(16)
        self._tokens = itertools.count(_TOKEN_STEP, _TOKEN_STEP)
        self._journals = ChainEnds()
        self._waiting: dict[str, deque[Commit]] = {}
        self._pause_until = 0.0
        """Time of the event loop until which the next group waits for further commits."""
        self._tasks = BackgroundTasks("Postgres writer")

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        """Queue the writes and wait for their commit. After a cancellation they may still be written."""
        queued = QueuedRequest(tuple(writes), asyncio.get_running_loop())
        if tenant in self._waiting:
            self._waiting[tenant].append(queued)
        else:
            self._waiting[tenant] = deque((queued,))
            self._tasks.spawn(self._commit_queue(tenant))
        return await queued.future

    async def finish(self) -> None:
        """Wait until every queued commit has a result."""
        await self._tasks.wait()

    async def _commit_queue(self, tenant: str) -> None:
        waiting = self._waiting[tenant]
        loop = asyncio.get_running_loop()
        while waiting:
            if (pause := self._pause_until - loop.time()) > 0:
                await asyncio.sleep(pause)
            group, started = _take_group(waiting), loop.time()
            try:
                await self._commit_group(tenant, group)
            except BaseException as error:  # noqa: BLE001  the callers must get it, and the queue must go on
                _fail(
                    group,
                    error if isinstance(error, Exception) else StoreLost("the store is shutting down", unclear=True),
                )
            for queued in group:
                queued.settle()
            if len(group) > 1:
                ended = loop.time()
                self._pause_until = ended + min(ended - started, _MAX_PAUSE)
        del self._waiting[tenant]

    async def _commit_group(self, tenant: str, group: Sequence[Commit]) -> None:
        """Retry until the group is written or rejected, or the retry timeout ends."""
        end = self._clock.monotonic() + self._retry_timeout
        while True:
            try:
                _call_all(await self._commit_transaction(tenant, group))
                return
            except _UnclearCommit as unclear:
                if await self._was_committed(tenant, unclear.token, end, unclear.batch):
                    _call_all(unclear.after_commit)
                    return
                failure: StoreError = StoreLost("lost Postgres while committing; nothing was written, try again")
            except psycopg.Error as error:
                failure = postgres_connection.translate_error(error)
                if not postgres_connection.is_lost(error):
                    await self._commit_each(tenant, group, failure)
                    return
            if self._clock.monotonic() >= end:
                _fail(group, failure)
                return
            await self._clock.sleep(_RETRY_DELAY)

    async def _commit_each(self, tenant: str, group: Sequence[Commit], failure: StoreError) -> None:
        """Give each commit a transaction of its own after the shared one failed, unless the lock is still busy."""
        if len(group) == 1 or isinstance(failure, StoreBusy):
            _fail(group, failure)
            return
        for queued in group:
            await self._commit_group(tenant, [queued])

    async def _commit_transaction(self, tenant: str, group: Sequence[Commit]) -> Sequence[AfterCommit | None]:
        """Commit a group, and return the functions to call after the commit."""
        if is_pipelined(group[0].request):
            with suppress(NotPipelined):
                return await self._commit_pipelined(tenant, group)
        for queued in group:  # the steps write journals without the cache
            self._journals.drop_all(tenant, queued.request)
        if self._is_shared:
            with suppress(NotShared):
                return await self._commit_stepwise(tenant, group, is_shared=True)
        return await self._commit_stepwise(tenant, group)

    async def _commit_pipelined(self, tenant: str, group: Sequence[Commit]) -> Sequence[AfterCommit | None]:
        """Commit a group in two messages; raises `NotPipelined` if it must be repeated step by step."""
        commits = [queued.request for queued in group]
        token = next(self._tokens)
        committing, after_commit, batch = False, list[AfterCommit | None](), None
        async with self._pool.connection(timeout=1.0) as connection:
            try:
                batch = await self._plan(connection, tenant, commits)
                queries = batch.queries(self._token_values(tenant, token))
                async with connection.pipeline():
                    await connection.execute("BEGIN", prepare=False)
                    cursors = [await postgres_connection.send(connection, query) for query in queries]
                    batch.finish([await postgres_connection.receive(cursor) for cursor in cursors])
                    after_commit = [batch.note_committed, await self._call_hook(connection, tenant, batch, commits)]
                    for queued, queued.result in zip(group, batch.results, strict=True):
                        queued.error = None
                    committing = True
                    # The end of the audit chain is locked last: until the COMMIT, which is in the same message.
                    cursors = [await postgres_connection.send(connection, query) for query in batch.final_queries]
                    await connection.execute("COMMIT", prepare=False)
                    answered = cursors if batch.is_chained_by_server else ()
                    ends = [await postgres_connection.receive(cursor) for cursor in answered]
            except BaseException as error:
                await _roll_back(connection)
                if not isinstance(error, Exception):
                    raise
                if not isinstance(error, psycopg.Error) or not postgres_connection.is_retried(error):
                    raise NotPipelined from error
                if committing and postgres_connection.is_lost(error):
                    raise _UnclearCommit(token, after_commit, batch) from error
                raise
            batch.finish_audit(ends)  # nothing is repeated from here on
            self.transactions += 1
            return after_commit

    async def _plan(
        self, connection: postgres_connection.Connection, tenant: str, commits: Sequence[tuple[Write, ...]]
    ) -> Batch:
        """Plan the statements of a group, outside of its transaction."""
        if (query := unknown_journals(tenant, commits, self._journals)) is not None:
            for run_id, seq, hash in await postgres_connection.execute(connection.cursor(), query):
                self._journals.put(tenant, run_id, seq or 0, unpack_hash(hash or START))
        context = WriteContext(tenant, int(self._clock.time() * 1000), sql, self._audit_key)
        return Batch(context, commits, self._journals, tenant_lock_id(self._schema, tenant, "audit"))

    async def _call_hook(
        self,
        connection: postgres_connection.Connection,
        tenant: str,
        batch: Batch,
        commits: Sequence[tuple[Write, ...]],
    ) -> AfterCommit | None:
        """Call the hook once for all commits of a group."""
        if self._hook is None:
            return None
        writes = [write for each in commits for write in each]
        return await self._hook(connection, tenant, writes, [result for each in batch.results for result in each])

    async def _commit_stepwise(
        self, tenant: str, group: Sequence[Commit], *, is_shared: bool = False
    ) -> Sequence[AfterCommit | None]:
        """Commit the group in one transaction and return the functions to call after the commit."""
        for queued in group:
            queued.result = queued.error = None
        token = next(self._tokens)
        async with self._pool.connection(timeout=1.0) as connection:
            cursor = connection.cursor()
            try:
                await cursor.execute("BEGIN")
                begin = sql.BEGIN_SHARED if is_shared else sql.BEGIN_STEPWISE
                await postgres_connection.execute(cursor, Query(begin, self._token_values(tenant, token)))
                context = WriteContext(tenant, int(self._clock.time() * 1000), sql, self._audit_key, is_shared)
                if len(group) == 1:
                    after_commit = [await self._apply(cursor, context, group[0])]
                else:
                    after_commit = [await self._apply_in_savepoint(cursor, context, queued) for queued in group]
            except _CommitFailed as failure:
                group[0].error = failure.error
                await _roll_back(connection)
                return []
            except BaseException:
                await _roll_back(connection)
                raise
            try:
                await cursor.execute("COMMIT")
            except psycopg.Error as error:
                if postgres_connection.is_lost(error):
                    raise _UnclearCommit(token, after_commit) from error
                raise
            self.transactions += 1
            return after_commit

    async def _apply_in_savepoint(self, cursor: Cursor, context: WriteContext, queued: Commit) -> AfterCommit | None:
        """Apply one commit of several completely, or not at all."""
        await cursor.execute("SAVEPOINT one")
        try:
            return await self._apply(cursor, context, queued)
        except _CommitFailed as failure:
            await cursor.execute("ROLLBACK TO one")
            queued.error = failure.error
            return None

    async def _apply(self, cursor: Cursor, context: WriteContext, queued: Commit) -> AfterCommit | None:
        """Apply one commit. A failure affects only this commit, unless the connection or shared lock is at fault."""
        try:
            queued.result = results = await _run_steps(cursor, apply_writes(context, queued.request))
            if self._hook is not None:
                return await self._hook(cursor.connection, context.tenant, queued.request, results)
            return None
        except NotShared:
            raise
        except Exception as error:
            if isinstance(error, psycopg.Error) and postgres_connection.is_lost(error):
                raise
            raise _CommitFailed(
                postgres_connection.translate_error(error) if isinstance(error, psycopg.Error) else error
            ) from None

    async def _was_committed(self, tenant: str, token: int, end: float, batch: Batch | None = None) -> bool:
        """Return whether a transaction whose COMMIT was not answered was committed; if not, it never will be. Raises an
        unclear `StoreLost` if that cannot be decided in time.

        No later transaction of this writer and tenant can have overwritten the token: they wait for this result.
        """
        while True:
            try:
                async with self._pool.connection(timeout=1.0) as connection:
                    fence = Query(sql.FENCE, self._token_values(tenant, token))
                    if await postgres_connection.execute(connection.cursor(), fence) != [(True,)]:
                        return False
                    if batch is not None:  # the answer with its audit rows was lost as well
                        query = bind(tenant, LAST_AUDIT, after=0, limit=_LAST_AUDIT_ROWS)
                        rows = await postgres_connection.execute(connection.cursor(binary=True), query)
                        batch.find_audit(AUDIT.all(rows)[::-1])
                    return True
            except psycopg.Error as error:
                busy = isinstance(
                    postgres_connection.translate_error(error), StoreBusy
                )  # the transaction in question has not ended yet
                if not (busy or postgres_connection.is_lost(error)) or self._clock.monotonic() >= end:
                    raise StoreLost(_UNCLEAR, unclear=True) from error
            await self._clock.sleep(_RETRY_DELAY)

    def _token_values(self, tenant: str, token: int) -> dict[str, Any]:
        id = hashlib.blake2b(tenant.encode(errors="replace"), key=self._id, digest_size=16).hexdigest()
        return {"id": id, "token": token, "lock": tenant_lock_id(self._schema, tenant)}


def tenant_lock_id(schema: str, tenant: str, purpose: str = "") -> int:
    """Return the key of an advisory lock of a tenant. If two tenants share one by chance, they only wait for each
    other."""
    digest = hashlib.sha256("\0".join(filter(None, (schema, tenant, purpose))).encode(errors="replace")).digest()
    return int.from_bytes(digest[:8], signed=True)


async def prune_tokens(connection: postgres_connection.Connection) -> None:
    """Delete the tokens of writers that have not written for a day; most of them are gone."""
    await connection.execute(sql.PRUNE_TOKENS)


async def _roll_back(connection: postgres_connection.Connection) -> None:
    """Roll back with psycopg's method, which also forgets statements that it wrongly considers prepared: those after a
    failed one in a pipeline."""
    try:
        await connection.rollback()
    except psycopg.Error:
        await connection.close()  # the server rolls back when the connection ends


async def _run_steps(cursor: Cursor, steps: Steps[T]) -> T:
    """Execute the queries that a generator of steps yields, and return its result."""
    try:
        query = next(steps)
        while True:
            query = steps.send(await postgres_connection.execute(cursor, query))
    except StopIteration as end:
        return end.value


def _take_group(waiting: deque[Commit]) -> list[Commit]:
    """Take the next commits that can share a transaction."""
    kind, group = is_pipelined(waiting[0].request), [waiting.popleft()]
    size = content_size(group[0].request) if waiting else 0
    while waiting and len(group) < _MAX_GROUP and is_pipelined(waiting[0].request) == kind:
        size += content_size(waiting[0].request)
        if size > _MAX_GROUP_BYTES:
            break
        group.append(waiting.popleft())
    return group


def _call_all(after_commit: Sequence[AfterCommit | None]) -> None:
    for each in after_commit:
        if each is not None:
            each()


def _fail(group: Sequence[Commit], error: Exception) -> None:
    for queued in group:
        queued.error = error
