"""Hears what other processes have committed: LISTEN on a connection of its own, made anew whenever it is lost."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from atlas_agents.dispatch.notices import Notice, from_json

logger = logging.getLogger(__name__)
LINE: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "application_name": "atlas-cluster",
}
"""How a connection that is kept open for long is made."""
_PING = 5.0
_PAUSE = 0.5


class Bus:
    """`on_notice` hears every notice while the line holds; `on_renewed` is called whenever it holds anew, because what
    was told in between was not heard."""

    def __init__(
        self, url: str, channel: str, on_notice: Callable[[Notice], None], on_renewed: Callable[[], None]
    ) -> None:
        self._url = url
        self._channel = channel
        self._on_notice = on_notice
        self._on_renewed = on_renewed
        self.ready = asyncio.Event()
        """It listens, or did once."""
        self._since: float | None = None

    @property
    def steady(self) -> float:
        """Seconds for which the line has held without a break."""
        return time.monotonic() - self._since if self._since is not None else 0.0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._url, **LINE) as line:
                    await line.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
                    self.ready.set()
                    self._since = time.monotonic()
                    self._on_renewed()
                    await self._hear(line)
            except (psycopg.Error, OSError, TimeoutError) as trouble:
                logger.warning("news of other processes cannot be heard at the moment: %s", _line(trouble))
            finally:
                self._since = None
            await asyncio.sleep(_PAUSE)

    async def _hear(self, line: psycopg.AsyncConnection[Any]) -> None:
        while True:
            async for told in line.notifies(timeout=_PING):
                notice = from_json(told.payload)
                if notice is not None:
                    self._on_notice(notice)
            async with asyncio.timeout(_PING):  # a server that is stopped keeps its connections, and answers nothing
                await line.execute("SELECT 1")


async def place_of(url: str, schema: str) -> str:
    """A name that is this database's and schema's own, and the same by whichever address they are reached."""
    async with await psycopg.AsyncConnection.connect(url, **LINE) as line:
        asked = await line.execute("SELECT system_identifier, current_database() FROM pg_control_system()")
        system, database = await asked.fetchone() or ("", "")
    return f"{system}\0{database}\0{schema}"


def _line(trouble: BaseException) -> str:
    return " ".join(str(trouble).split())[:200] or type(trouble).__name__
