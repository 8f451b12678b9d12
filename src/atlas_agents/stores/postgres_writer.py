"""The writing half of the Postgres store: the commits of a tenant that wait share the next transaction."""

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool

from atlas_agents.core.clock import Clock
from atlas_agents.core.errors import StoreBusy, StoreError, StoreLost
from atlas_agents.core.store import Write
from atlas_agents.stores.lane import Ticket
from atlas_agents.stores.postgres_line import Connection
from atlas_agents.stores.postgres_session import Cursor, fault, is_lost, rows_of
from atlas_agents.stores.query import Place, Steps
from atlas_agents.stores.writes import carry_out

T = TypeVar("T")
Pool: TypeAlias = AsyncConnectionPool[Connection]
Commit: TypeAlias = Ticket[tuple[Write, ...]]
Afterwards: TypeAlias = Callable[[], None]
Beside: TypeAlias = Callable[
    [psycopg.AsyncConnection[Any], str, Sequence[Write], Sequence[Any]], Awaitable[Afterwards | None]
]
"""What else happens in the transaction of a commit: it is given the session, the tenant, the writes and their results.
What it raises undoes that commit; what it gives back is called when the commit is there."""

_AT_MOST = 64
_PAUSE = 0.1
_BEGIN = "BEGIN; SELECT pg_current_xact_id()::text, pg_advisory_xact_lock({:d})"
"""In one go: while a transaction lasts, all others of its tenant wait."""


class _Unclear(Exception):
    """The session was lost between COMMIT and its answer."""

    def __init__(self, transaction: str, afterwards: Sequence[Afterwards | None]) -> None:
        super().__init__(transaction)
        self.transaction = transaction
        self.afterwards = afterwards


class _Refused(Exception):
    """One commit cannot be carried out; others can."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Writer:
    """One queue per tenant that has something to write, and one task that empties it."""

    def __init__(self, pool: Pool, schema: str, clock: Clock, patience: float, beside: Beside | None = None) -> None:
        self.transactions = 0
        self._pool = pool
        self._schema = schema
        self._clock = clock
        self._patience = patience
        self._beside = beside
        self._waiting: dict[str, deque[Commit]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        """Wait for the turn of these writes. Cancelling stops the waiting; they may still be written."""
        ticket = Ticket(tuple(writes), asyncio.get_running_loop())
        if tenant in self._waiting:
            self._waiting[tenant].append(ticket)
        else:
            self._waiting[tenant] = deque((ticket,))
            task = asyncio.create_task(self._empty(tenant))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await ticket.future

    async def finish(self) -> None:
        """Wait until all that was asked is settled."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def _empty(self, tenant: str) -> None:
        waiting = self._waiting[tenant]
        while waiting:
            group = [waiting.popleft() for _ in range(min(len(waiting), _AT_MOST))]
            try:
                await self._group(tenant, group)
            except BaseException as error:  # noqa: BLE001  whoever waits must hear of it, and the queue goes on
                _fail(
                    group, error if isinstance(error, Exception) else StoreLost("the store was stopped", unclear=True)
                )
            for ticket in group:
                ticket.settle()
        del self._waiting[tenant]

    async def _group(self, tenant: str, group: Sequence[Commit]) -> None:
        """Try until it is written, refused, or patience ends."""
        end = self._clock.monotonic() + self._patience
        while True:
            try:
                _call(await self._transaction(tenant, group))
                return
            except _Unclear as unclear:
                if await self._was_committed(unclear.transaction, end):
                    _call(unclear.afterwards)
                    return
                problem: StoreError = StoreLost("Postgres was lost while committing; nothing was written, try again")
            except psycopg.Error as error:
                problem = fault(error)
                if not is_lost(error):
                    await self._apart(tenant, group, problem)
                    return
            if self._clock.monotonic() >= end:
                _fail(group, problem)
                return
            await self._clock.sleep(_PAUSE)

    async def _apart(self, tenant: str, group: Sequence[Commit], problem: StoreError) -> None:
        """The transaction failed as a whole: each commit has a right to its own, unless it would only wait again."""
        if len(group) == 1 or isinstance(problem, StoreBusy):
            _fail(group, problem)
            return
        for ticket in group:
            await self._group(tenant, [ticket])

    async def _transaction(self, tenant: str, group: Sequence[Commit]) -> Sequence[Afterwards | None]:
        """What is to be called now that it is committed."""
        for ticket in group:
            ticket.result = ticket.error = None
        async with self._pool.connection(timeout=1.0) as connection:
            cursor = connection.cursor()
            try:
                await cursor.execute(_BEGIN.format(lock_of(self._schema, tenant)).encode())
                cursor.nextset()
                row = await cursor.fetchone()
                if len(group) == 1:
                    afterwards = [await self._carry_out(cursor, tenant, group[0])]
                else:
                    afterwards = [await self._savepoint(cursor, tenant, ticket) for ticket in group]
            except _Refused as refusal:
                group[0].error = refusal.error
                await _roll_back(connection)
                return []
            except BaseException:
                await _roll_back(connection)
                raise
            try:
                await cursor.execute("COMMIT")
            except psycopg.Error as error:
                if is_lost(error) and row is not None:
                    raise _Unclear(row[0], afterwards) from error
                raise
            self.transactions += 1
            return afterwards

    async def _savepoint(self, cursor: Cursor, tenant: str, ticket: Commit) -> Afterwards | None:
        """One commit of several, all of it or nothing."""
        await cursor.execute("SAVEPOINT one")
        try:
            return await self._carry_out(cursor, tenant, ticket)
        except _Refused as refusal:
            await cursor.execute("ROLLBACK TO one")
            ticket.error = refusal.error
            return None

    async def _carry_out(self, cursor: Cursor, tenant: str, ticket: Commit) -> Afterwards | None:
        """Its failure is its own, unless the session is lost."""
        try:
            place = Place(tenant, int(self._clock.time() * 1000))
            ticket.result = results = await _drive(cursor, carry_out(place, ticket.job))
            if self._beside is not None:
                return await self._beside(cursor.connection, tenant, ticket.job, results)
            return None
        except Exception as error:
            if isinstance(error, psycopg.Error) and is_lost(error):
                raise
            raise _Refused(fault(error) if isinstance(error, psycopg.Error) else error) from None

    async def _was_committed(self, transaction: str, end: float) -> bool:
        """Ask the server what became of it; `StoreLost` that says so if it cannot be asked in time."""
        while True:
            try:
                async with self._pool.connection(timeout=1.0) as connection:
                    asked = await connection.execute("SELECT pg_xact_status(%s::text::xid8)", (transaction,))
                    row = await asked.fetchone()
                    if row is not None and row[0] != "in progress":
                        return row[0] == "committed"
            except psycopg.Error as error:
                if not is_lost(error):
                    raise
            if self._clock.monotonic() >= end:
                raise StoreLost("Postgres was lost while committing: it may or may not be written", unclear=True)
            await self._clock.sleep(_PAUSE)


async def _roll_back(connection: Connection) -> None:
    try:
        await connection.execute("ROLLBACK")
    except psycopg.Error:
        await connection.close()  # the server rolls back what has lost its session


async def _drive(cursor: Cursor, steps: Steps[T]) -> T:
    """Execute what the steps ask for, one query after the other."""
    try:
        query = next(steps)
        while True:
            query = steps.send(await rows_of(cursor, query))
    except StopIteration as end:
        return end.value


def _call(afterwards: Sequence[Afterwards | None]) -> None:
    for each in afterwards:
        if each is not None:
            each()


def _fail(group: Sequence[Commit], error: Exception) -> None:
    for ticket in group:
        ticket.error = error


def lock_of(schema: str, tenant: str) -> int:
    """The number of a tenant's lock; should two tenants share one, they only wait for each other."""
    digest = hashlib.sha256(f"{schema}\0{tenant}".encode(errors="replace")).digest()
    return int.from_bytes(digest[:8], signed=True)
