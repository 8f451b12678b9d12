"""Write path of the Postgres store: waiting commits of a tenant share the next transaction.

If the connection is lost between COMMIT and its answer, only a row that the transaction itself wrote can tell whether
it was committed. `pg_xact_status` cannot: after a crash, Postgres reuses transaction ids that were assigned but not yet
flushed. So every transaction first writes a unique token to its writer's row in `commit_tokens`.
"""

import asyncio
import hashlib
import itertools
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool

from atlas_agents.core.aio import BackgroundTasks, Clock
from atlas_agents.core.errors import StoreBusy, StoreError, StoreLost
from atlas_agents.core.store import Write
from atlas_agents.storage.batch_thread import Job
from atlas_agents.storage.postgres_connection import Connection, Cursor, execute, is_lost, translate_error
from atlas_agents.storage.sql.query import Steps, WriteContext
from atlas_agents.storage.sql.writes import apply_writes

T = TypeVar("T")
Pool: TypeAlias = AsyncConnectionPool[Connection]
Commit: TypeAlias = Job[tuple[Write, ...]]
AfterCommit: TypeAlias = Callable[[], None]
TransactionHook: TypeAlias = Callable[
    [psycopg.AsyncConnection[Any], str, Sequence[Write], Sequence[Any]], Awaitable[AfterCommit | None]
]
"""Further work in the transaction of a commit. It gets the connection, the tenant, the writes and their results. An
exception rolls the commit back; the callable it returns is called after the commit."""

_MAX_GROUP = 64
_RETRY_DELAY = 0.1
_UNCLEAR = "the connection to Postgres was lost while committing: the commit may or may not have been written"
_BEGIN = """BEGIN; INSERT INTO commit_tokens SELECT '{id}', {token:d}, now() FROM pg_advisory_xact_lock({lock:d})
ON CONFLICT (id) DO UPDATE SET token = excluded.token, written_at = excluded.written_at"""
"""One message: takes the tenant's lock, which serialises its transactions, and writes the token."""
_FIND = """SELECT pg_advisory_xact_lock({lock:d});
SELECT 1 FROM commit_tokens WHERE id = '{id}' AND token = {token:d}"""
"""One message, and so one transaction. The lock makes it wait until the transaction in question has ended; the second
statement then sees what that one committed."""
_PRUNE_TOKENS = """DELETE FROM commit_tokens WHERE id IN (
SELECT id FROM commit_tokens WHERE written_at < now() - interval '1 day' FOR UPDATE SKIP LOCKED)"""
"""A token is needed for as long as a writer retries, which is seconds. A live writer whose row is deleted inserts it
again."""


class _Unclear(Exception):
    """The connection was lost between COMMIT and its answer."""

    def __init__(self, token: int, after_commit: Sequence[AfterCommit | None]) -> None:
        super().__init__(token)
        self.token = token
        self.after_commit = after_commit


class _CommitFailed(Exception):
    """One commit of a group failed; the others may succeed."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Writer:
    """A queue per tenant with pending commits, and a task that empties it."""

    def __init__(
        self, pool: Pool, schema: str, clock: Clock, retry_timeout: float, hook: TransactionHook | None = None
    ) -> None:
        self.transactions = 0
        self._pool = pool
        self._schema = schema
        self._clock = clock
        self._retry_timeout = retry_timeout
        self._hook = hook
        self._id = secrets.token_bytes(16)
        self._tokens = itertools.count(1)
        self._waiting: dict[str, deque[Commit]] = {}
        self._tasks = BackgroundTasks("Postgres writer")

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        """Queue the writes and wait for their commit. After a cancellation they may still be written."""
        job = Job(tuple(writes), asyncio.get_running_loop())
        if tenant in self._waiting:
            self._waiting[tenant].append(job)
        else:
            self._waiting[tenant] = deque((job,))
            self._tasks.spawn(self._empty_queue(tenant))
        return await job.future

    async def finish(self) -> None:
        """Wait until every queued commit has a result."""
        await self._tasks.wait()

    async def _empty_queue(self, tenant: str) -> None:
        waiting = self._waiting[tenant]
        while waiting:
            group = [waiting.popleft() for _ in range(min(len(waiting), _MAX_GROUP))]
            try:
                await self._commit_group(tenant, group)
            except BaseException as error:  # noqa: BLE001  the callers must get it, and the queue must go on
                _fail(
                    group,
                    error if isinstance(error, Exception) else StoreLost("the store is shutting down", unclear=True),
                )
            for job in group:
                job.settle()
        del self._waiting[tenant]

    async def _commit_group(self, tenant: str, group: Sequence[Commit]) -> None:
        """Retry until the group is written or rejected, or the retry timeout ends."""
        end = self._clock.monotonic() + self._retry_timeout
        while True:
            try:
                _call(await self._transaction(tenant, group))
                return
            except _Unclear as unclear:
                if await self._was_committed(tenant, unclear.token, end):
                    _call(unclear.after_commit)
                    return
                failure: StoreError = StoreLost("lost Postgres while committing; nothing was written, try again")
            except psycopg.Error as error:
                failure = translate_error(error)
                if not is_lost(error):
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
        for job in group:
            await self._commit_group(tenant, [job])

    async def _transaction(self, tenant: str, group: Sequence[Commit]) -> Sequence[AfterCommit | None]:
        """Commit the group in one transaction and return the callables for after the commit."""
        for job in group:
            job.result = job.error = None
        token = next(self._tokens)
        async with self._pool.connection(timeout=1.0) as connection:
            cursor = connection.cursor()
            try:
                await cursor.execute(self._with_token(_BEGIN, tenant, token))
                if len(group) == 1:
                    after_commit = [await self._apply(cursor, tenant, group[0])]
                else:
                    after_commit = [await self._savepoint(cursor, tenant, job) for job in group]
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
                if is_lost(error):
                    raise _Unclear(token, after_commit) from error
                raise
            self.transactions += 1
            return after_commit

    async def _savepoint(self, cursor: Cursor, tenant: str, job: Commit) -> AfterCommit | None:
        """Apply one commit of several, or nothing of it."""
        await cursor.execute("SAVEPOINT one")
        try:
            return await self._apply(cursor, tenant, job)
        except _CommitFailed as failure:
            await cursor.execute("ROLLBACK TO one")
            job.error = failure.error
            return None

    async def _apply(self, cursor: Cursor, tenant: str, job: Commit) -> AfterCommit | None:
        """Apply one commit. Its failure is its own, unless the connection is lost."""
        try:
            context = WriteContext(tenant, int(self._clock.time() * 1000))
            job.result = results = await _drive(cursor, apply_writes(context, job.request))
            if self._hook is not None:
                return await self._hook(cursor.connection, tenant, job.request, results)
            return None
        except Exception as error:
            if isinstance(error, psycopg.Error) and is_lost(error):
                raise
            raise _CommitFailed(translate_error(error) if isinstance(error, psycopg.Error) else error) from None

    async def _was_committed(self, tenant: str, token: int, end: float) -> bool:
        """Look for the token of a transaction whose COMMIT was not answered. Raises an unclear `StoreLost` on failure.

        No later transaction of this writer and tenant can have overwritten the token: they wait for this answer.
        """
        while True:
            try:
                async with self._pool.connection(timeout=1.0) as connection:
                    cursor = await connection.execute(self._with_token(_FIND, tenant, token))
                    cursor.nextset()
                    return await cursor.fetchone() is not None
            except psycopg.Error as error:
                busy = isinstance(translate_error(error), StoreBusy)  # the transaction in question has not ended yet
                if not (busy or is_lost(error)) or self._clock.monotonic() >= end:
                    raise StoreLost(_UNCLEAR, unclear=True) from error
            await self._clock.sleep(_RETRY_DELAY)

    def _with_token(self, statement: str, tenant: str, token: int) -> bytes:
        id = hashlib.blake2b(tenant.encode(errors="replace"), key=self._id, digest_size=16).hexdigest()
        return statement.format(id=id, token=token, lock=tenant_lock_id(self._schema, tenant)).encode()


async def prune_tokens(connection: Connection) -> None:
    """Delete the tokens of writers that have not written for a day; most of them are gone."""
    await connection.execute(_PRUNE_TOKENS)


async def _roll_back(connection: Connection) -> None:
    try:
        await connection.execute("ROLLBACK")
    except psycopg.Error:
        await connection.close()  # the server rolls back when the connection ends


async def _drive(cursor: Cursor, steps: Steps[T]) -> T:
    """Execute the queries that a generator of steps yields, and return its result."""
    try:
        query = next(steps)
        while True:
            query = steps.send(await execute(cursor, query))
    except StopIteration as end:
        return end.value


def _call(after_commit: Sequence[AfterCommit | None]) -> None:
    for each in after_commit:
        if each is not None:
            each()


def _fail(group: Sequence[Commit], error: Exception) -> None:
    for job in group:
        job.error = error


def tenant_lock_id(schema: str, tenant: str) -> int:
    """The advisory lock of a tenant. If two tenants share one by chance, they only wait for each other."""
    digest = hashlib.sha256(f"{schema}\0{tenant}".encode(errors="replace")).digest()
    return int.from_bytes(digest[:8], signed=True)
