"""Quotas: limits on the data that each user stores and uploads, and on a user's share of a gateway's work."""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from tempfile import SpooledTemporaryFile

from atlas_agents.core.aio import Clock, run_in_thread
from atlas_agents.core.errors import QuotaExceeded
from atlas_agents.core.store import SessionTotals, Store
from atlas_agents.gateway.settings import GatewaySettings

_TOTALS_TTL = 10.0
"""Seconds for which the totals of a user are cached; additions in the meantime are counted."""
_MAX_USERS = 1000
_MAX_WAITING = 16
"""Maximum number of waiting large requests of one user."""
_MAX_LARGE = 2
"""Maximum number of concurrent large requests of all users except the owner."""
SESSION_SIZE = 1000
"""Bytes that a session counts in addition to its messages and metadata."""
_MAX_IN_MEMORY = 256 * 1024
_MAX_UPLOAD = 64 * 1024 * 1024


class UserQuotas:
    """Limits the storage of each user who has sessions of their own. The owner's sessions have no limit.

    The keys of a user's sessions start with `@` and the user's name.
    """

    def __init__(self, store: Store, tenant: str, settings: GatewaySettings, clock: Clock) -> None:
        self._store = store
        self._tenant = tenant
        self._settings = settings
        self._clock = clock
        self._totals: dict[str, tuple[float, SessionTotals]] = {}
        self.uploads: Counter[str] = Counter()
        """Bytes that each user is uploading in parts."""

    async def check(
        self, session: str, *, sessions: int = 0, messages: int = 0, size: int = 0, archived: bool = False
    ) -> None:
        """Raise QuotaExceeded unless this much can be added with a session, which may be new; otherwise count it.

        The number of sessions does not matter for one that is `archived` from the start.
        """
        if not session.startswith("@"):
            return
        size += SESSION_SIZE * sessions
        prefix = session.partition("/")[0] + "/"
        limits, totals = self._settings, await self._read_totals(prefix)
        if limits.user_messages and totals.messages + messages > limits.user_messages:
            raise QuotaExceeded(_text("messages", limits.user_messages, totals.messages, messages))
        if limits.user_bytes and totals.size + size > limits.user_bytes:
            raise QuotaExceeded(_text("bytes", limits.user_bytes, totals.size, size))
        is_full = limits.user_sessions and totals.sessions >= limits.user_sessions and not archived
        if is_full and await self._store.session(self._tenant, session) is None:
            raise QuotaExceeded(_text("sessions", limits.user_sessions, totals.sessions, 1))
        at, totals = self._totals.get(prefix, (-math.inf, totals))
        added = SessionTotals(
            totals.sessions + sessions * (not archived), totals.messages + messages, totals.size + size
        )
        self._totals[prefix] = at, added

    def forget(self, session: str) -> None:
        """Read the totals again at the next check, because sessions were deleted or copied."""
        self._totals.pop(session.partition("/")[0] + "/", None)

    async def _read_totals(self, prefix: str) -> SessionTotals:
        found, now = self._totals.get(prefix), self._clock.monotonic()
        if found is None or now - found[0] > _TOTALS_TTL:
            found = now, await self._store.session_totals(self._tenant, prefix)
            self._totals[prefix] = found
            while len(self._totals) > _MAX_USERS:
                self._totals.pop(next(iter(self._totals)))
        return found[1]


def _text(what: str, limit: int, used: int, more: int) -> str:
    return (
        f"this user can store at most {limit:,} {what}: {used:,} are stored, and this adds {more:,}; "
        "delete sessions that are not needed, or ask the owner to raise the limit"
    )


class Upload:
    """A text that a client uploads in parts, in a temporary file so that it takes no memory.

    `lock` orders the parts, `parts` is their number so far, or -1 after `close`.
    """

    def __init__(self, uploads: Counter[str], user: str) -> None:
        self._uploads = uploads
        self._user = user
        self._file = SpooledTemporaryFile(_MAX_IN_MEMORY)  # noqa: SIM115 - open for several requests
        self.lock = asyncio.Lock()
        self.parts = 0
        self.size = 0
        self.line_count = 0

    async def add(self, text: str) -> None:
        """Append a part; raise QuotaExceeded if this user uploads too much at the same time."""
        part = text.encode()
        if self._uploads[self._user] + len(part) > _MAX_UPLOAD:
            raise QuotaExceeded(f"a user can upload at most {_MAX_UPLOAD:,} bytes at the same time")
        self._uploads[self._user] += len(part)
        self.size += len(part)
        self.line_count += part.count(b"\n")
        self.parts += 1
        await run_in_thread(self._file.write, part)

    def lines(self) -> Generator[str, None, None]:
        """Yield the lines of the whole text."""
        self._file.seek(0)
        for line in self._file:
            yield line.decode().rstrip("\n")

    def close(self) -> None:
        self._file.close()
        self._uploads[self._user] -= self.size
        self.size, self.parts = 0, -1


class WorkLimiter:
    """Runs large requests, such as imports and searches, one at a time per user and a few at a time in total."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._waiting: Counter[str] = Counter()
        self._all = asyncio.Semaphore(_MAX_LARGE)

    @asynccontextmanager
    async def slot(self, user: str, *, limited: bool) -> AsyncGenerator[None, None]:
        """Wait for the turn of this user. A request that is not `limited` waits only for others of the same user."""
        if self._waiting[user] >= _MAX_WAITING:
            raise QuotaExceeded(f"{_MAX_WAITING} large requests of this user are waiting already; try again later")
        self._waiting[user] += 1
        try:
            async with self._locks[user]:
                if not limited:
                    yield
                    return
                async with self._all:
                    yield
        finally:
            self._waiting[user] -= 1
            if not self._waiting[user]:
                del self._waiting[user], self._locks[user]
