"""Who may talk to agents here: people whom the owner has let in, by a code that only they were told.

The channel and the owner's command are two processes. They meet in two files, which are changed by one at a time.
"""

import asyncio
import logging
import secrets
import time
from pathlib import Path

import msgspec

from atlas_agents.channels.telegram.types import TelegramUser
from atlas_agents.core.aio import in_thread
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import lock_file, make_private, read_json, write_json

logger = logging.getLogger(__name__)
_PAUSE = 2.0


class PendingDelivery(msgspec.Struct):
    """The answer of a run, on its way to a chat: the messages that hold it so far. While one is `sending`, nobody
    knows whether it is there."""

    user: int
    session: str
    messages: list[int] = []
    sending: bool = False


class PendingQuestion(msgspec.Struct, frozen=True):
    """A question that stands in a chat with its buttons: under which message, and what it says."""

    user: int
    run_id: str
    message: int
    words: str
    expires_at: int


class ActiveSession(msgspec.Struct):
    """The session that somebody is in, and the agent they chose."""

    session: str
    agent: str | None = None


class ChannelState(msgspec.Struct):
    """All of it. `offset` is the number of the first update that was not dealt with, `heard_at` when it was set."""

    offset: int = 0
    heard_at: float = 0.0
    visits: dict[int, ActiveSession] = {}
    owed: dict[str, PendingDelivery] = {}
    questions: dict[str, PendingQuestion] = {}
    trouble: str = ""


class StateFile:
    """Notes in a file, one per bot. What is changed counts once `save` has returned: on a full disk it waits."""

    def __init__(self, folder: Path, bot_id: str) -> None:
        self._path = make_private(folder) / f"notes-{bot_id}.json"
        self.notes = read_json(self._path, ChannelState) or ChannelState()
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
                await in_thread(write_json, self._path, msgspec.to_builtins(self.notes, str_keys=True))
            except OSError as error:
                logger.warning("the Telegram channel waits until it can write %s: %s", self._path, error.strerror)
                await asyncio.sleep(_PAUSE)
            else:
                self._written = now
                return


def trouble_of(folder: Path, bot_id: str) -> str:
    """What keeps a bot from hearing, as its channel last said."""
    found = read_json(folder / f"notes-{bot_id}.json", ChannelState)
    return found.trouble if found else ""


_LETTERS = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""None of them can be taken for another one."""
_LENGTH = 8
_LASTS = 3600.0
_MOST_CODES = 50


class Pair(msgspec.Struct, frozen=True):
    """A person who was let in, as they called themselves then."""

    user: int
    name: str
    username: str = ""
    since: float = 0.0


class Code(msgspec.Struct, frozen=True):
    """What a stranger was told, until when it counts."""

    user: int
    name: str
    username: str
    expires_at: float


class Pairing:
    """The folder `telegram` in a home."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "telegram"
        self._pairs = self.folder / "pairs.json"
        self._codes = self.folder / "codes.json"
        self._seen: tuple[int, int] | None = None
        self._known: dict[int, Pair] = {}

    def pairs(self) -> dict[int, Pair]:
        """Everybody who was let in, as the file says now."""
        try:
            found = self._pairs.stat()
        except FileNotFoundError:
            return {}
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp != self._seen:
            self._known = {each.user: each for each in read_json(self._pairs, list[Pair]) or ()}
            self._seen = stamp
        return self._known

    def code_for(self, user: TelegramUser) -> str | None:
        """The code of a stranger: the same while it counts. None while too many strangers have one."""
        make_private(self.folder)
        with lock_file(self._codes):
            codes = self._open_codes()
            for code, each in codes.items():
                if each.user == user.id:
                    return code
            if len(codes) >= _MOST_CODES:
                return None
            code = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
            write_json(self._codes, codes | {code: Code(user.id, user.name, user.username[:40], time.time() + _LASTS)})
        return code

    def pair(self, code: str) -> Pair:
        """Let in whoever was told this code; ConfigError if nobody was."""
        make_private(self.folder)
        with lock_file(self._codes):
            codes = self._open_codes()
            found = codes.pop(code.strip().upper().replace("-", ""), None)
            if found is None:
                raise ConfigError(f"nobody was told the code {code!r} in the last hour: have them write to the bot")
            pair = Pair(found.user, found.name, found.username, time.time())
            with lock_file(self._pairs):
                write_json(self._pairs, [*({**self.pairs(), pair.user: pair}).values()])
            write_json(self._codes, codes)  # it counts once
        return pair

    def unpair(self, who: str) -> Pair:
        """Let somebody in no longer, by their number or @name; ConfigError if there is no such person."""
        if not self.folder.is_dir():
            raise ConfigError(f"{who!r} is not paired; nobody is")
        with lock_file(self._pairs):
            pairs = self.pairs()
            for pair in pairs.values():
                if who in (str(pair.user), f"@{pair.username}" if pair.username else ""):
                    write_json(self._pairs, [each for each in pairs.values() if each.user != pair.user])
                    return pair
        known = ", ".join(str(user) for user in pairs) or "none"
        raise ConfigError(f"{who!r} is not paired; there are: {known}")

    def _open_codes(self) -> dict[str, Code]:
        now = time.time()
        found = read_json(self._codes, dict[str, Code]) or {}
        return {code: each for code, each in found.items() if each.expires_at > now}
