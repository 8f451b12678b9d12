"""One process of a cluster leads: it sees to what must happen once. Who leads holds a lock of Postgres."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg

from atlas_agents.dispatch.bus import LINE

logger = logging.getLogger(__name__)
_EVERY = 1.0
_IDLE = "5s"
"""A leader that is stopped and not gone keeps its connection: the server ends it when it has said nothing so long."""


class Lead:
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
            await asyncio.sleep(_EVERY)

    async def _hold(self, line: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async with asyncio.timeout(5 * _EVERY):
                row = await (await line.execute("SELECT pg_try_advisory_lock(%s)", (self._key,))).fetchone()
            if row is not None and row[0]:
                break
            await asyncio.sleep(_EVERY)
        logger.info("this process leads: it sees to jobs, schedules, and runs that nobody is at")
        self.leads, self.backend = True, line.info.backend_pid
        await self._begin()
        while True:
            async with asyncio.timeout(5 * _EVERY):
                await line.execute("SELECT 1")
            await self._beat(line)
            await asyncio.sleep(_EVERY)
