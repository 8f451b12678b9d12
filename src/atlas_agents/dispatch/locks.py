"""Who works on a database: one process alone, or the members of one cluster. Postgres keeps the two apart."""

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
"""A leader that is stopped and not gone keeps its connection: the server ends it when it has said nothing so long."""


class LeaderElection:
    """Tries to lead until it does, and again when it has lost the lead. `key` is the lock; `begin` is called when it
    leads, `end` when it does not any more, and `beat` every second in between."""

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
        self._beat = beat
        self._end = end
        self.leads = False
        self.backend: int | None = None
        """While it leads: the process of Postgres that holds the lock for it."""

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._url, **LINE) as line:
                    await line.execute("SELECT set_config('idle_session_timeout', %s, false)", (_IDLE,))
                    await self._hold(line)
            except (psycopg.Error, OSError, TimeoutError) as trouble:
                logger.info("whether this process leads cannot be said at the moment: %s", trouble)
            finally:
                if self.leads:
                    self.leads, self.backend = False, None
                    await self._end()
            await asyncio.sleep(_LEADER_INTERVAL)

    async def _hold(self, line: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async with asyncio.timeout(5 * _LEADER_INTERVAL):
                row = await (await line.execute("SELECT pg_try_advisory_lock(%s)", (self._key,))).fetchone()
            if row is not None and row[0]:
                break
            await asyncio.sleep(_LEADER_INTERVAL)
        logger.info("this process leads: it sees to jobs, schedules, and runs that nobody is at")
        self.leads, self.backend = True, line.info.backend_pid
        await self._begin()
        while True:
            async with asyncio.timeout(5 * _LEADER_INTERVAL):
                await line.execute("SELECT 1")
            await self._beat(line)
            await asyncio.sleep(_LEADER_INTERVAL)


T = TypeVar("T")
_LONGEST = 15.0
_PAUSE = 0.5


async def reached(work: Callable[[], Awaitable[T]]) -> T:
    """What it gives, tried again while Postgres cannot be reached. StoreLost if that takes too long."""
    said = "it does not answer"
    try:
        async with asyncio.timeout(_LONGEST):
            while True:
                try:
                    return await work()
                except (psycopg.OperationalError, ConnectorException, OSError) as trouble:
                    said = " ".join(str(trouble.__cause__ or trouble).split())[:200]
                    logger.warning("Postgres cannot be reached, and is waited for: %s", said)
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise StoreLost(f"Postgres could not be reached for {_LONGEST:g} seconds ({said}): see that it runs") from None


_LOCK_INTERVAL = 5.0
_PATIENCE = 3.0
"""Seconds for which a place is waited for: the server needs a moment to see that who had it was killed."""
_LOOK = 0.2
_WATCHED = """SELECT set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '2', false),
set_config('tcp_keepalives_count', '5', false)"""
"""The server finds out by itself that a machine is gone; by its own settings that takes it two hours."""
_TAKEN = "another Atlas works alone on this database: end it, or start all of them with --role"
_SHARED = "a cluster works on this database: use one of its gateways, or start this one with --role"


@asynccontextmanager
async def tenure(url: str, *, shared: bool, schema: str = "atlas", tenant: str = "default") -> AsyncGenerator[None]:
    """Work on a database as long as the block lasts, with others who share it, or alone. ConfigError if that cannot be:
    who works alone takes every open turn for one that was cut short."""
    key = int.from_bytes(hashlib.sha256(f"tenure\0{schema}\0{tenant}".encode()).digest()[:8], signed=True)
    line = await reached(lambda: _taken(url, key, shared=shared, patience=_PATIENCE))
    if line is None:
        raise ConfigError(_TAKEN if shared else _SHARED)
    holding = asyncio.create_task(_hold(url, line, key, shared=shared))
    try:
        yield
    finally:
        holding.cancel()
        with suppress(asyncio.CancelledError):
            await holding


async def _taken(url: str, key: int, *, shared: bool, patience: float = 0.0) -> psycopg.AsyncConnection[Any] | None:
    """A line that holds the place; None if others have it, also after a while."""
    line = await psycopg.AsyncConnection.connect(url, **LINE)
    try:
        await line.execute(_WATCHED)
        asked = "SELECT pg_try_advisory_lock_shared(%s)" if shared else "SELECT pg_try_advisory_lock(%s)"
        end = time.monotonic() + patience
        while True:
            row = await (await line.execute(asked.encode(), (key,))).fetchone()
            if row is not None and row[0]:
                return line
            if time.monotonic() >= end:
                break
            await asyncio.sleep(_LOOK)
    except BaseException:
        await line.close()
        raise
    await line.close()
    return None


async def _hold(url: str, line: psycopg.AsyncConnection[Any], key: int, *, shared: bool) -> None:
    """Until cancelled; a line that is lost is made anew."""
    while True:
        try:
            while True:
                await asyncio.sleep(_LOCK_INTERVAL)
                async with asyncio.timeout(_LOCK_INTERVAL):
                    await line.execute("SELECT 1")
        except (psycopg.Error, OSError, TimeoutError):
            logger.info("the line that holds this process's place on the database is lost; it is made anew")
        finally:
            await line.close()
        line = await _renewed(url, key, shared=shared)


async def _renewed(url: str, key: int, *, shared: bool) -> psycopg.AsyncConnection[Any]:
    while True:
        with suppress(psycopg.Error, OSError, TimeoutError):
            line = await _taken(url, key, shared=shared)
            if line is not None:
                return line
            logger.error("this process has lost its place on the database: %s", _TAKEN if shared else _SHARED)
        await asyncio.sleep(_LOCK_INTERVAL)
