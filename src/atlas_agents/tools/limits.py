"""How much may be done: calls at once, calls a tick, calls a day, and no call over and over.

All of it on a clock that tests can drive, and in this process; the day's count is behind a port, so that a store can
keep it exact over restarts.
"""

import asyncio
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from atlas_agents.core.aio import Clock, day_of
from atlas_agents.core.errors import ConfigError, LimitExceeded
from atlas_agents.core.paths import Environment

Ring: TypeAlias = Callable[[], object]


class Ticker:
    """Rings every so many seconds, as long as somebody waits; between two waits it rests."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._waiting: list[Ring] = []
        self._ringing: asyncio.AbstractEventLoop | None = None

    def next(self, ring: Ring) -> None:
        """Have this called at the next beat, once."""
        if self._ringing is not None and self._ringing.is_closed():
            self._ringing = None  # its alarm will not ring any more, and nobody waits there
            self._waiting.clear()
        self._waiting.append(ring)
        if self._ringing is None:
            self._ringing = asyncio.get_running_loop()
            self._clock.call_later(self._seconds, self._ring)

    def leave(self, ring: Ring) -> None:
        """Do not call this any more."""
        if ring in self._waiting:
            self._waiting.remove(ring)

    def _ring(self) -> None:
        waiting, self._waiting, self._ringing = self._waiting, [], None
        for ring in waiting:
            ring()


PROCESS_CAP = 64


class Slots:
    """Places for so many at once; who finds none waits, first come first served."""

    __slots__ = ("__weakref__", "_free", "_waiting")

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a place at once, if one is free and nobody waits for it."""
        if self._free > 0 and not self._waiting:
            self._free -= 1
            return True
        return False

    async def wait(self) -> None:
        """Take the next place that becomes free."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it was given a place in the very moment that it gave up
                self.give_back()
            elif place in self._waiting:
                self._waiting.remove(place)
            raise

    def give_back(self) -> None:
        while self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._free += 1


_process: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Slots]" = weakref.WeakKeyDictionary()


def process_slots() -> Slots:
    """How many calls may run at once in this process, over all sessions."""
    loop = asyncio.get_running_loop()
    slots = _process.get(loop)
    if slots is None:
        slots = _process[loop] = Slots(PROCESS_CAP)
    return slots


class Limits(msgspec.Struct, frozen=True):
    """None means no limit. `repeats` is how often in a row one turn may make the very same call.

    Args:
        at_once: Concurrent calls of a session.
        per_tick: Calls that start in each `tick`.
        tick: Length of an interval in seconds.
        per_day: Calls per day; with a store, also across restarts.
        repeats: How often in a row a turn may make an identical call.
    """

    at_once: int = 5
    per_tick: int | None = None
    tick: float = 5.0
    per_day: int | None = None
    repeats: int | None = None

    @classmethod
    def of_gateway(cls, environment: Environment) -> "Limits":
        """All limits on, as a gateway has them; `MAX_ACTIONS_PER_DAY` sets the day's."""
        given = environment.get("MAX_ACTIONS_PER_DAY") or "1000"
        if not given.strip().isdigit() or int(given) < 1:
            raise ConfigError(f"MAX_ACTIONS_PER_DAY must be a whole number of at least 1, not {given!r}")
        return cls(per_tick=10, per_day=int(given), repeats=10)

    def __post_init__(self) -> None:
        for name in ("at_once", "per_tick", "per_day", "repeats"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"Limits({name}=…) must be at least 1, not {value}")
        if not self.tick > 0:
            raise ConfigError(f"Limits(tick=…) must be more than 0 seconds, not {self.tick}")


class DayCounter(Protocol):
    """Counts a tenant's calls of a day, agent by agent."""

    async def reserve(self, tenant: str, agent_id: str, day: str, limit: int) -> bool:
        """Count one more if that stays within the limit; say whether it did. Cancelled, it must not have counted."""
        ...

    async def release(self, tenant: str, agent_id: str, day: str) -> None:
        """Take one back that was reserved and then not made."""
        ...


class MemoryCounter:
    """The day's counts in memory."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int] = {}

    async def reserve(self, tenant: str, agent_id: str, day: str, limit: int) -> bool:
        key = (tenant, agent_id, day)
        if self._counts.get(key, 0) >= limit:
            return False
        self._counts[key] = self._counts.get(key, 0) + 1
        return True

    async def release(self, tenant: str, agent_id: str, day: str) -> None:
        key = (tenant, agent_id, day)
        self._counts[key] = max(0, self._counts.get(key, 0) - 1)

    def count(self, tenant: str, agent_id: str, day: str) -> int:
        return self._counts.get((tenant, agent_id, day), 0)


class Ticks:
    """Lets through so many calls of an agent per tick; the rest wait for the next ones, in order."""

    def __init__(self, ticker: Ticker, per_tick: int) -> None:
        self._ticker = ticker
        self._per_tick = per_tick
        self._left: dict[str, int] = {}
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._ticking: asyncio.AbstractEventLoop | None = None
        """The loop on which the next tick is waited for."""

    async def turn(self, agent_id: str) -> None:
        """Wait for this call's turn."""
        self._start()
        left = self._left.get(agent_id, self._per_tick)
        queue = self._queues.setdefault(agent_id, deque())
        if left > 0 and not queue:
            self._left[agent_id] = left - 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # its turn came in the very moment that it gave up
                self._give_back(agent_id)
            elif place in queue:
                queue.remove(place)
            raise

    def waiting(self, agent_id: str) -> int:
        return len(self._queues.get(agent_id, ()))

    def _start(self) -> None:
        if self._ticking is not None:
            if not self._ticking.is_closed():
                return
            self._queues.clear()  # its beat will not ring any more, and nobody waits there
        self._ticking = asyncio.get_running_loop()
        self._ticker.next(self._next)

    def _give_back(self, agent_id: str) -> None:
        for place in self._queues.get(agent_id, ()):
            if not place.done():
                self._queues[agent_id].remove(place)
                place.set_result(None)
                return
        self._left[agent_id] = self._left.get(agent_id, self._per_tick - 1) + 1

    def _next(self) -> None:
        """A new tick: those who waited go first; without anybody waiting the ticking stops."""
        self._left.clear()
        self._ticking = None
        for agent_id, queue in list(self._queues.items()):
            left = self._per_tick
            while queue and left:
                place = queue.popleft()
                if not place.done():
                    place.set_result(None)
                    left -= 1
            self._left[agent_id] = left
            if not queue:
                del self._queues[agent_id]
        if any(left < self._per_tick for left in self._left.values()):
            self._start()


class Repeats:
    """Counts how often in a row a run has made the very same call."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._last = b""
        self._count = 0

    def see(self, fingerprint: bytes) -> None:
        """Take note of a call; LimitReached when it is one too many."""
        self._count = self._count + 1 if fingerprint == self._last else 1
        self._last = fingerprint
        if self._count > self._most:
            raise LimitExceeded(f"The same call was made {self._most} times in a row. Do something else, or answer.")


class Limiter:
    """All limits of a house together."""

    def __init__(self, limits: Limits, clock: Clock, days: DayCounter | None = None) -> None:
        self.limits = limits
        self._clock = clock
        self._zero = clock.time() - clock.monotonic()
        self.days = MemoryCounter() if days is None else days
        self.ticker = Ticker(clock, limits.tick)
        self.ticks = Ticks(self.ticker, limits.per_tick) if limits.per_tick is not None else None
        self._sessions: weakref.WeakValueDictionary[str, Slots] = weakref.WeakValueDictionary()

    def repeats(self) -> Repeats | None:
        """A fresh repeat detector for a run."""
        return Repeats(self.limits.repeats) if self.limits.repeats is not None else None

    def slots(self, session: str) -> Slots:
        """How many calls of a session may run at once."""
        found = self._sessions.get(session)
        if found is None:
            found = self._sessions[session] = Slots(self.limits.at_once)
        return found

    @property
    def counts_days(self) -> bool:
        return self.limits.per_day is not None

    async def reserve(self, tenant: str, agent_id: str) -> str:
        """Count a call against the day and give the day it counts for; LimitReached when the day is spent."""
        day = self.today()
        if not await self.days.reserve(tenant, agent_id, day, self.limits.per_day or 0):
            raise self.spent()
        return day

    def today(self) -> str:
        """Days pass by the stop-watch: setting the wall clock neither gives a new day nor takes this one away."""
        return day_of(self._zero + self._clock.monotonic())

    def spent(self) -> LimitExceeded:
        return LimitExceeded(f"All {self.limits.per_day or 0} calls of today are used. Nothing was run; try tomorrow.")
