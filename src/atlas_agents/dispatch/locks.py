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
from atlas_agents.dispatch.notifications import LINE

logger = logging.getLogger(__name__)
_LEADER_INTERVAL = 1.0
_IDLE = "5s"
"""Idle timeout of the leader's session: the server ends the session of a leader that is paused but not gone."""


class LeaderElection:
    """Leader election with an advisory lock. `key` is the lock; `begin` is called on winning, `end` on losing the lead,
    and `beat` every second in between."""

    def __init__(
        self,
        url: str,
        key: int,
        begin: Callable[[], Awaitable[None]],
        beat: Callable[[psycopg.AsyncConnection[Any]], Awaitable[None]],
        end: Callable[[], Awaitable[None]],
    ) -> None:
        self._url = url
        self._key = key
        self._begin = begin
        self._send_heartbeats = beat
        self._end = end
        self.leads = False
        self.backend: int | None = None
        """While leading: the Postgres backend process that holds the lock."""

    async def run(self) -> None:
        """Take part in the election until cancelled."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._url, **LINE) as connection:
                    await connection.execute("SELECT set_config('idle_session_timeout', %s, false)", (_IDLE,))
                    await self._hold(connection)
            except (psycopg.Error, OSError, TimeoutError) as error:
                logger.info("leader election interrupted: error=%s", error)
            finally:
                if self.leads:
                    self.leads, self.backend = False, None
                    await self._end()
            await asyncio.sleep(_LEADER_INTERVAL)

    async def _hold(self, connection: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async with asyncio.timeout(5 * _LEADER_INTERVAL):
                row = await (await connection.execute("SELECT pg_try_advisory_lock(%s)", (self._key,))).fetchone()
            if row is not None and row[0]:
                break
            await asyncio.sleep(_LEADER_INTERVAL)
        logger.info("became leader: handling jobs, schedules and runs without an owner")
        self.leads, self.backend = True, connection.info.backend_pid
        await self._begin()
        while True:
            async with asyncio.timeout(5 * _LEADER_INTERVAL):
                await connection.execute("SELECT 1")
            await self._send_heartbeats(connection)
            await asyncio.sleep(_LEADER_INTERVAL)


T = TypeVar("T")
_LONGEST = 15.0
_PAUSE = 0.5


async def reached(work: Callable[[], Awaitable[T]]) -> T:
    """Run an operation, retrying while Postgres is unreachable. Raises StoreLost after the time limit."""
    said = "no response"
    try:
        async with asyncio.timeout(_LONGEST):
            while True:
                try:
                    return await work()
                except (psycopg.OperationalError, ConnectorException, OSError) as error:
                    said = " ".join(str(error.__cause__ or error).split())[:200]
                    logger.warning("waiting for Postgres: error=%s", said)
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise StoreLost(
            f"Postgres was unreachable for {_LONGEST:g} seconds ({said}); check that the server is running"
        ) from None


_LOCK_INTERVAL = 5.0
_PATIENCE = 3.0
"""Seconds to wait for the lock: the server needs a moment to notice that its previous holder was killed."""
_LOOK = 0.2
_WATCHED = """SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),
set_config('tcp_keepalives_count', '5', false)"""
"""TCP keepalives, so that the server detects a lost machine within seconds; its own default is two hours."""
_HELD_EXCLUSIVELY = "another Atlas process uses this database exclusively; stop it, or start every process with --role"
_HELD_BY_CLUSTER = "a cluster uses this database; connect to one of its gateways, or start this process with --role"


@asynccontextmanager
async def tenure(url: str, *, shared: bool, schema: str = "atlas", tenant: str = "default") -> AsyncGenerator[None]:
    """Hold the right to work on a database for the duration of the block, shared with a cluster or exclusively.

    Raises ConfigError if it is held otherwise: an exclusive process treats every open run as interrupted.
    """
    key = int.from_bytes(hashlib.sha256(f"tenure\0{schema}\0{tenant}".encode()).digest()[:8], signed=True)
    connection = await reached(lambda: _acquire_lock(url, key, shared=shared, patience=_PATIENCE))
    if connection is None:
        raise ConfigError(_HELD_EXCLUSIVELY if shared else _HELD_BY_CLUSTER)
    holding = asyncio.create_task(_hold(url, connection, key, shared=shared))
    try:
        yield
    finally:
        holding.cancel()
        with suppress(asyncio.CancelledError):
            await holding


async def _acquire_lock(
    url: str, key: int, *, shared: bool, patience: float = 0.0
) -> psycopg.AsyncConnection[Any] | None:
    """Return a connection that holds the lock; None if others still hold it after the wait."""
    connection = await psycopg.AsyncConnection.connect(url, **LINE)
    try:
        await connection.execute(_WATCHED)
        asked = "SELECT pg_try_advisory_lock_shared(%s)" if shared else "SELECT pg_try_advisory_lock(%s)"
        end = time.monotonic() + patience
        while True:
            row = await (await connection.execute(asked.encode(), (key,))).fetchone()
            if row is not None and row[0]:
                return connection
            if time.monotonic() >= end:
                break
            await asyncio.sleep(_LOOK)
    except BaseException:
        await connection.close()
        raise
    await connection.close()
    return None


async def _hold(url: str, connection: psycopg.AsyncConnection[Any], key: int, *, shared: bool) -> None:
    """Keep the lock until cancelled, reconnecting when the connection is lost."""
    while True:
        try:
            while True:
                await asyncio.sleep(_LOCK_INTERVAL)
                async with asyncio.timeout(_LOCK_INTERVAL):
                    await connection.execute("SELECT 1")
        except (psycopg.Error, OSError, TimeoutError):
            logger.info("database lock connection lost, reconnecting")
        finally:
            await connection.close()
        connection = await _reconnected(url, key, shared=shared)


async def _reconnected(url: str, key: int, *, shared: bool) -> psycopg.AsyncConnection[Any]:
    while True:
        with suppress(psycopg.Error, OSError, TimeoutError):
            connection = await _acquire_lock(url, key, shared=shared)
            if connection is not None:
                return connection
            logger.error("database lock lost: %s", _HELD_EXCLUSIVELY if shared else _HELD_BY_CLUSTER)
        await asyncio.sleep(_LOCK_INTERVAL)
