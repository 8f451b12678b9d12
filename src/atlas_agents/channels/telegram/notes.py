"""What the channel must still know after a sudden end: how far it has heard Telegram, and what it owes to whom."""

import asyncio
import logging
from pathlib import Path

import msgspec

from atlas_agents.core.calling import in_thread
from atlas_agents.core.keeping import keep, kept
from atlas_agents.core.places import make_private

logger = logging.getLogger(__name__)
_PAUSE = 2.0


class Owed(msgspec.Struct):
    """The answer of a run, on its way to a chat: the messages that hold it so far. While one is `sending`, nobody
    knows whether it is there."""

    user: int
    session: str
    messages: list[int] = []
    sending: bool = False


class Asked(msgspec.Struct, frozen=True):
    """A question that stands in a chat with its buttons: under which message, and what it says."""

    user: int
    run_id: str
    message: int
    words: str
    expires_at: int


class Visit(msgspec.Struct):
    """The session that somebody is in, and the agent they chose."""

    session: str
    agent: str | None = None


class Notes(msgspec.Struct):
    """All of it. `offset` is the number of the first update that was not dealt with, `heard_at` when it was set."""

    offset: int = 0
    heard_at: float = 0.0
    visits: dict[int, Visit] = {}
    owed: dict[str, Owed] = {}
    questions: dict[str, Asked] = {}
    trouble: str = ""


class Notebook:
    """Notes in a file, one per bot. What is changed counts once `save` has returned: on a full disk it waits."""

    def __init__(self, folder: Path, bot_id: str) -> None:
        self._path = make_private(folder) / f"notes-{bot_id}.json"
        self.notes = kept(self._path, Notes) or Notes()
        self._writing = asyncio.Lock()
        self._wanted = 0
        self._written = 0

    async def save(self) -> None:
        """Have all changes so far on the disk; those who ask meanwhile share one writing."""
        self._wanted = mine = self._wanted + 1
        async with self._writing:
            if self._written >= mine:
                return
            await self._write()

    async def _write(self) -> None:
        while True:
            now = self._wanted
            try:
                await in_thread(keep, self._path, msgspec.to_builtins(self.notes, str_keys=True))
            except OSError as error:
                logger.warning("the Telegram channel waits until it can write %s: %s", self._path, error.strerror)
                await asyncio.sleep(_PAUSE)
            else:
                self._written = now
                return


def trouble_of(folder: Path, bot_id: str) -> str:
    """What keeps a bot from hearing, as its channel last said."""
    found = kept(folder / f"notes-{bot_id}.json", Notes)
    return found.trouble if found else ""
