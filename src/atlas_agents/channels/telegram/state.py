"""Files of the Telegram channel: its delivery state, and the users that the owner has paired with one-time codes.

The channel and the owner's `atlas telegram` commands are separate processes; they share the files under file locks.
"""

import asyncio
import logging
import secrets
import time
from pathlib import Path

import msgspec

from atlas_agents.builtin_tools.telegram_api import TelegramUser
from atlas_agents.core.aio import run_in_thread
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import lock_file, make_private_folder, read_json, write_json

logger = logging.getLogger(__name__)
_WRITE_RETRY_DELAY = 2.0
_CODE_ALPHABET = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""Alphabet of pairing codes, without characters that look alike."""
_CODE_LENGTH = 8
_CODE_TTL = 3600.0
_MAX_CODES = 50


class PendingDelivery(msgspec.Struct):
    """An answer that is being delivered to a chat, and the ids of its messages so far.

    While `sending` is set, it is unknown whether the next message has arrived.
    """

    user: int
    session: str
    messages: list[int] = []
    sending: bool = False


class PendingQuestion(msgspec.Struct, frozen=True):
    """An open approval request in a chat: the message with its buttons, and the first line of that message."""

    user: int
    run_id: str
    message: int
    title: str
    expires_at: int


class ActiveSession(msgspec.Struct):
    """The current session of a user, and the agent that they chose."""

    session: str
    agent: str | None = None


class ChannelState(msgspec.Struct):
    """State of the channel. `offset` is the id of the first unprocessed update, `polled_at` when it was set."""

    offset: int = 0
    polled_at: float = 0.0
    sessions: dict[int, ActiveSession] = {}
    deliveries: dict[str, PendingDelivery] = {}
    questions: dict[str, PendingQuestion] = {}
    error: str = ""


class StateFile:
    """The channel state of one bot. A change is durable once `save` has returned; on a full disk `save` waits."""

    def __init__(self, folder: Path, bot_id: str) -> None:
        self._path = make_private_folder(folder) / f"state-{bot_id}.json"
        self.state = read_json(self._path, ChannelState) or ChannelState()
        self._lock = asyncio.Lock()
        self._requested = 0
        self._written = 0

    async def save(self) -> None:
        """Write all changes so far to disk; concurrent calls share one write."""
        self._requested = mine = self._requested + 1
        async with self._lock:
            if self._written < mine:
                await self._write()

    async def _write(self) -> None:
        while True:
            version = self._requested
            try:
                await run_in_thread(write_json, self._path, msgspec.to_builtins(self.state, str_keys=True))
            except OSError as error:
                logger.warning("cannot write Telegram state, retrying: path=%s error=%s", self._path, error.strerror)
                await asyncio.sleep(_WRITE_RETRY_DELAY)
            else:
                self._written = version
                return


def read_channel_error(folder: Path, bot_id: str) -> str:
    """Return the error that keeps the channel of a bot from receiving messages; empty if there is none."""
    found = read_json(folder / f"state-{bot_id}.json", ChannelState)
    return found.error if found else ""


class PairedUser(msgspec.Struct, frozen=True):
    """A user that the owner has paired, with the names they had at that time."""

    user: int
    name: str
    username: str = ""
    since: float = 0.0


class PairingCode(msgspec.Struct, frozen=True):
    """The user that a one-time code was sent to, and when the code expires."""

    user: int
    name: str
    username: str
    expires_at: float


class Pairing:
    """Paired users and pairing codes, in the `telegram` folder of a home."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "telegram"
        self._pairs_file = self.folder / "pairs.json"
        self._codes_file = self.folder / "codes.json"
        self._stamp: tuple[int, int] | None = None
        self._pairs: dict[int, PairedUser] = {}

    def pairs(self) -> dict[int, PairedUser]:
        """Return the paired users by id. The file is read again when it has changed."""
        try:
            found = self._pairs_file.stat()
        except FileNotFoundError:
            return {}
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp != self._stamp:
            self._pairs = {each.user: each for each in read_json(self._pairs_file, list[PairedUser]) or ()}
            self._stamp = stamp
        return self._pairs

    def code_for(self, user: TelegramUser) -> str | None:
        """Return the unexpired code of a user, or a new one; None if too many codes are open."""
        make_private_folder(self.folder)
        with lock_file(self._codes_file):
            codes = self._open_codes()
            for code, each in codes.items():
                if each.user == user.id:
                    return code
            if len(codes) >= _MAX_CODES:
                return None
            code = "".join(secrets.choice(_CODE_ALPHABET) for _ in range(_CODE_LENGTH))
            issued = PairingCode(user.id, user.name, user.username[:40], time.time() + _CODE_TTL)
            write_json(self._codes_file, codes | {code: issued})
        return code

    def pair(self, code: str) -> PairedUser:
        """Pair the user that a code was sent to; the code becomes invalid."""
        make_private_folder(self.folder)
        with lock_file(self._codes_file):
            codes = self._open_codes()
            found = codes.pop(code.strip().upper().replace("-", ""), None)
            if found is None:
                raise ConfigError(
                    f"unknown or expired pairing code {code!r}: ask the person to write to the bot for a new one"
                )
            pair = PairedUser(found.user, found.name, found.username, time.time())
            with lock_file(self._pairs_file):
                write_json(self._pairs_file, [*({**self.pairs(), pair.user: pair}).values()])
            write_json(self._codes_file, codes)
        return pair

    def unpair(self, who: str) -> PairedUser:
        """Remove a paired user, by id or @username."""
        if not self.folder.is_dir():
            raise ConfigError(f"{who!r} is not paired; no users are paired")
        with lock_file(self._pairs_file):
            pairs = self.pairs()
            for pair in pairs.values():
                if who in (str(pair.user), f"@{pair.username}" if pair.username else ""):
                    write_json(self._pairs_file, [each for each in pairs.values() if each.user != pair.user])
                    return pair
        raise ConfigError(f"{who!r} is not paired; paired users: {', '.join(map(str, pairs)) or 'none'}")

    def _open_codes(self) -> dict[str, PairingCode]:
        now = time.time()
        found = read_json(self._codes_file, dict[str, PairingCode]) or {}
        return {code: each for code, each in found.items() if each.expires_at > now}
