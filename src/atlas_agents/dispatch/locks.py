"""Advisory locks on Postgres: leader election, and exclusive or shared use of a database."""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import psycopg
from procrastinate.exceptions import ConnectorException

from atlas_agents.core.errors import ConfigError, StoreLost
from atlas_agents.dispatch.notifications import CONNECTION_OPTIONS, deliver_cancellation, describe_error

logger = logging.getLogger(__name__)
_LEADER_INTERVAL = 1.0
_TICK_TIMEOUT = 30.0
"""Seconds after which a leader gives up its lead if the server does not answer: a stopped one acknowledges packets."""
_IDLE_TIMEOUT = "5s"
"""Idle timeout of the leader's session: the server ends the session of a leader that is paused but not gone."""
_SET_IDLE_TIMEOUTS = """SELECT set_config('idle_session_timeout', %(timeout)s, false),
set_config('idle_in_transaction_session_timeout', %(timeout)s, false)"""
"""Two settings, because the first one does not apply inside a transaction."""
T = TypeVar("T")
_CONNECT_TIMEOUT = 15.0
_CONNECT_RETRY_DELAY = 0.5
_LOCK_INTERVAL = 5.0
_LOCK_TIMEOUT = 3.0
"""Seconds to wait for the lock: the server needs a moment to notice that its previous holder was killed."""
_LOCK_RETRY_DELAY = 0.2
_SET_KEEPALIVES = """SELECT set_config('tcp_keepalives_idle', '5', false),
set_config('tcp_keepalives_interval', '2', false), set_config('tcp_keepalives_count', '5', false)"""
"""TCP keepalives, so that the server detects a lost machine within seconds; its own default is two hours."""
_HELD_EXCLUSIVELY = "another Atlas process uses this database exclusively; stop it, or start every process with --role"
_HELD_BY_CLUSTER = "a cluster uses this database; connect to one of its gateways, or start this process with --role"
_WORKER_LOCK_LOST = "worker lock lost: another connection holds it exclusively (see pg_locks); sending heartbeats only"


class LeaderElection:
    """Leader election with the advisory lock `key`: calls `on_elected` on winning, `on_tick` every second while
    leading, and `on_lost` on losing the lead."""

    def __init__(
        self,
        url: str,
        key: int,
        on_elected: Callable[[], Awaitable[None]],
        on_tick: Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]],
        on_lost: Callable[[], Awaitable[None]],
    ) -> None:
        self._url = url
        self._key = key
        self._on_elected = on_elected
        self._on_tick = on_tick
        self._on_lost = on_lost
        self.is_leader = False
        self.backend: int | None = None
        """While leading: the Postgres backend process that holds the lock."""
        self._connected_at: float | None = None

    @property
    def connected_for(self) -> float:
        """Seconds since the connection for the lock was established."""
        return time.monotonic() - self._connected_at if self._connected_at is not None else 0.0

    async def run(self) -> None:
        """Take part in the election until cancelled."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._url, **CONNECTION_OPTIONS) as connection:
                    await connection.execute(_SET_IDLE_TIMEOUTS, {"timeout": _IDLE_TIMEOUT})
                    self._connected_at = time.monotonic()
                    await self._lead(connection)
            except (psycopg.Error, OSError) as error:
                logger.info("leader election interrupted: error=%s", error)
            finally:
                self._connected_at = None
                if self.is_leader:
                    self.is_leader, self.backend = False, None
                    await self._on_lost()
            deliver_cancellation()
            await asyncio.sleep(_LEADER_INTERVAL)

    async def _lead(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async with asyncio.timeout(5 * _LEADER_INTERVAL):
                row = await (await connection.execute("SELECT pg_try_advisory_lock(%s)", (self._key,))).fetchone()
            if row is not None and row[0]:
                break
            await asyncio.sleep(_LEADER_INTERVAL)
        logger.info("became leader: handling jobs, schedules and runs without an owner")
        self.is_leader, self.backend = True, connection.info.backend_pid
        await self._on_elected()
        while True:
            async with asyncio.timeout(5 * _LEADER_INTERVAL):
                await connection.execute("SELECT 1")
            async with asyncio.timeout(_TICK_TIMEOUT):
                await self._on_tick(connection)
            await asyncio.sleep(_LEADER_INTERVAL)


async def retry_while_unreachable(operation: Callable[[], Awaitable[T]]) -> T:
    """Run an operation, retrying while Postgres is unreachable. Raises StoreLost after the time limit."""
    reason = "no response"
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            while True:
                try:
                    return await operation()
                except (psycopg.OperationalError, ConnectorException, OSError) as error:
                    reason = describe_error(error.__cause__ or error)
                    logger.warning("waiting for Postgres: error=%s", reason)
                await asyncio.sleep(_CONNECT_RETRY_DELAY)
    except TimeoutError:
        raise StoreLost(
            f"Postgres was unreachable for {_CONNECT_TIMEOUT:g} seconds ({reason}); check that the server is running"
        ) from None


def lock_key(*names: str) -> int:
    """Return the key of the advisory lock with these names."""
    return int.from_bytes(hashlib.sha256("\0".join(names).encode()).digest()[:8], signed=True)


async def hold_shared_lock(url: str, key: int) -> None:
    """Hold a shared lock until cancelled. Postgres releases it as soon as this process ends, also if it is killed."""
    connection = await _reacquire_lock(url, key, _WORKER_LOCK_LOST, shared=True, interval=_LEADER_INTERVAL)
    await _hold_lock(url, connection, key, _WORKER_LOCK_LOST, shared=True, interval=_LEADER_INTERVAL)


@asynccontextmanager
async def database_lock(
    url: str, *, shared: bool, schema: str = "atlas", tenant: str = "default"
) -> AsyncGenerator[None]:
    """Hold the right to work on a database for the duration of the block, shared with a cluster or exclusively.

    Raises ConfigError if it is held in the other mode: an exclusive process treats every open run as interrupted.
    """
    key = lock_key("tenure", schema, tenant)
    connection = await retry_while_unreachable(lambda: _acquire_lock(url, key, shared=shared, wait=_LOCK_TIMEOUT))
    held = _HELD_EXCLUSIVELY if shared else _HELD_BY_CLUSTER
    if connection is None:
        raise ConfigError(held)
    holding = asyncio.create_task(_hold_lock(url, connection, key, f"database lock lost: {held}", shared=shared))
    try:
        yield
    finally:
        holding.cancel()
        with suppress(asyncio.CancelledError):
            await holding


async def _acquire_lock(url: str, key: int, *, shared: bool, wait: float = 0.0) -> psycopg.AsyncConnection[Any] | None:
    """Return a connection that holds the lock; None if others still hold it after the wait."""
    connection = await psycopg.AsyncConnection.connect(url, **CONNECTION_OPTIONS)
    try:
        await connection.execute(_SET_KEEPALIVES)
        statement = "SELECT pg_try_advisory_lock_shared(%s)" if shared else "SELECT pg_try_advisory_lock(%s)"
        deadline = time.monotonic() + wait
        while True:
            row = await (await connection.execute(statement.encode(), (key,))).fetchone()
            if row is not None and row[0]:
                return connection
            if time.monotonic() >= deadline:
                break
            await asyncio.sleep(_LOCK_RETRY_DELAY)
    except BaseException:
        await connection.close()
        raise
    await connection.close()
    return None


async def _hold_lock(
    url: str,
    connection: psycopg.AsyncConnection[Any],
    key: int,
    lost: str,
    *,
    shared: bool,
    interval: float = _LOCK_INTERVAL,
) -> None:
    """Keep the lock until cancelled, reconnecting when the connection is lost. `lost` is logged while another
    connection holds the lock."""
    while True:
        try:
            while True:
                await asyncio.sleep(interval)
                async with asyncio.timeout(_LOCK_INTERVAL):
                    await connection.execute("SELECT 1")
        except (psycopg.Error, OSError):
            logger.info("connection of an advisory lock lost, reconnecting")
        finally:
            await connection.close()
        deliver_cancellation()
        connection = await _reacquire_lock(url, key, lost, shared=shared, interval=interval)


async def _reacquire_lock(
    url: str, key: int, lost: str, *, shared: bool, interval: float
) -> psycopg.AsyncConnection[Any]:
    while True:
        with suppress(psycopg.Error, OSError):
            connection = await _acquire_lock(url, key, shared=shared)
            if connection is not None:
                return connection
            logger.error(lost)
        deliver_cancellation()
        await asyncio.sleep(interval)
