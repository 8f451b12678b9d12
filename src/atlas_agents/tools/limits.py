"""Limits on tool calls: concurrent calls, calls per tick, calls per day, and identical calls in a row.

Everything runs on a clock that tests can drive. The daily count is behind a port, so that a store can keep it exact
across restarts.
"""

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from atlas_agents.core.aio import Clock, utc_day
from atlas_agents.core.errors import ConfigError, LimitExceeded
from atlas_agents.core.paths import Environment

Callback: TypeAlias = Callable[[], object]
MAX_CALLS_PER_PROCESS = 64


class Ticker:
    """Calls scheduled callbacks every `seconds` in the event loop that scheduled them.

    The timer of a loop runs only while a callback is scheduled there.
    """

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._callbacks: dict[asyncio.AbstractEventLoop, list[Callback]] = {}

    def schedule(self, callback: Callback) -> None:
        """Schedule a callback to be called once, at the next tick of this loop."""
        loop = asyncio.get_running_loop()
        callbacks = self._callbacks.get(loop)
        if callbacks is None:
            for other in [each for each in list(self._callbacks) if each.is_closed()]:  # its timer will never fire
                self._callbacks.pop(other, None)
            self._callbacks[loop] = [callback]
            self._clock.call_later(self._seconds, lambda: self._fire(loop))
        elif callback not in callbacks:
            callbacks.append(callback)

    def unschedule(self, callback: Callback) -> None:
        for callbacks in list(self._callbacks.values()):
            if callback in callbacks:
                callbacks.remove(callback)

    def _fire(self, loop: asyncio.AbstractEventLoop) -> None:
        for callback in self._callbacks.pop(loop, ()):
            callback()


class Slots:
    """Semaphore with a first-in, first-out queue that can be used from one event loop after another."""

    __slots__ = ("__weakref__", "_waiters", "free")

    def __init__(self, count: int) -> None:
        self.free = count
        self._waiters: deque[asyncio.Future[None]] | None = None
        """Waiting calls; None until the first call waits, because each turn has slots."""

    def take(self) -> bool:
        """Take a slot if one is free and no call waits for one; return whether it did."""
        if self.free <= 0 or self._waiters:
            return False
        self.free -= 1
        return True

    async def acquire(self) -> None:
        """Take a slot, waiting for one if none is free."""
        if self.take():
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiters = deque[asyncio.Future[None]]() if self._waiters is None else self._waiters
        waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # cancelled in the moment that it got a slot
                self.release()
            elif waiter in waiters:
                waiters.remove(waiter)
            raise

    def release(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1


_process_slots: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Slots]" = weakref.WeakKeyDictionary()


def process_slots() -> Slots:
    """Return the slots for concurrent calls of all sessions of this process."""
    loop = asyncio.get_running_loop()
    slots = _process_slots.get(loop)
    if slots is None:
        slots = _process_slots[loop] = Slots(MAX_CALLS_PER_PROCESS)
    return slots


class Limits(msgspec.Struct, frozen=True):
    """Limits on the tool calls of an Atlas; None means no limit.

    Args:
        at_once: Concurrent calls of a session in an event loop.
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
    def from_environment(cls, environment: Environment) -> "Limits":
        """Return the gateway's default limits; `MAX_ACTIONS_PER_DAY` sets the daily limit."""
        given = environment.get("MAX_ACTIONS_PER_DAY") or "1000"
        if not given.strip().isdigit() or int(given) < 1:
            raise ConfigError(f"MAX_ACTIONS_PER_DAY must be a whole number of at least 1, got {given!r}")
        return cls(per_tick=10, per_day=int(given), repeats=10)

    def __post_init__(self) -> None:
        for name in ("at_once", "per_tick", "per_day", "repeats"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"Limits({name}=…) must be at least 1, got {value}")
        if not self.tick > 0:
            raise ConfigError(f"Limits(tick=…) must be more than 0 seconds, got {self.tick}")


class DayCounter(Protocol):
    """Counts the calls of each agent of a tenant per day."""

    async def reserve(self, tenant: str, agent_id: str, day: str, limit: int) -> bool:
        """Count one more call if it stays within the limit, and return whether it did. Must not count if cancelled."""
        ...

    async def release(self, tenant: str, agent_id: str, day: str) -> None:
        """Subtract a call that was reserved but not made."""
        ...


class MemoryCounter:
    """Daily counts in memory."""

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


class TickLimiter:
    """Rate limiter: lets a number of calls per agent start in each tick; the others wait in order.

    The event loops of all threads share the counts. One of them starts the ticks; while it does not run, as between two
    sync calls, another takes over.
    """

    def __init__(self, ticker: Ticker, per_tick: int) -> None:
        self._ticker = ticker
        self._per_tick = per_tick
        self._remaining: dict[str, int] = {}
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop that starts the next tick."""
        self._lock = threading.RLock()

    def take(self, agent_id: str) -> bool:
        """Let this agent start a call if it may do so now; return whether it may."""
        with self._lock:
            self._start()
            remaining = self._remaining.get(agent_id, self._per_tick)
            if remaining <= 0 or self._queues.get(agent_id):
                return False
            self._remaining[agent_id] = remaining - 1
            return True

    async def acquire(self, agent_id: str) -> None:
        """Wait until this agent may start a call."""
        with self._lock:
            if self.take(agent_id):
                return
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._queues.setdefault(agent_id, deque()).append(waiter)
            self._ticker.schedule(self._on_tick)  # also if another loop starts the next tick: it may stop running
        try:
            await waiter
        except asyncio.CancelledError:
            with self._lock:
                if not waiter.cancelled():  # cancelled in the moment that it could start
                    self._release(agent_id)
                elif (queue := self._queues.get(agent_id)) and waiter in queue:
                    queue.remove(waiter)
            raise

    def queue_length(self, agent_id: str) -> int:
        return len(self._queues.get(agent_id, ()))

    def _start(self) -> None:
        """Let this loop start the next tick, unless another one that runs does."""
        if self._loop is not None and self._loop.is_running():
            return
        if self._loop is not None and self._loop.is_closed():
            for agent_id, queue in list(self._queues.items()):  # no call waits in a closed loop
                self._queues[agent_id] = deque(waiter for waiter in queue if not waiter.get_loop().is_closed())
        self._loop = asyncio.get_running_loop()
        self._ticker.schedule(self._on_tick)

    def _release(self, agent_id: str) -> None:
        queue = self._queues.get(agent_id)
        while queue:
            if self._wake(agent_id, queue.popleft()):
                return
        self._remaining[agent_id] = self._remaining.get(agent_id, self._per_tick - 1) + 1

    def _on_tick(self) -> None:
        """Start a new tick: waiting calls start first. Ticking stops once no call has started or waits."""
        with self._lock:
            loop = asyncio.get_running_loop()
            if self._loop is not loop:
                self._start()
                if any(waiter.get_loop() is loop for queue in self._queues.values() for waiter in queue):
                    self._ticker.schedule(self._on_tick)
                return
            self._remaining.clear()
            self._loop = None
            for agent_id, queue in list(self._queues.items()):
                remaining = self._per_tick
                while queue and remaining:
                    remaining -= self._wake(agent_id, queue.popleft())
                self._remaining[agent_id] = remaining
                if not queue:
                    del self._queues[agent_id]
            if any(remaining < self._per_tick for remaining in self._remaining.values()):
                self._start()

    def _wake(self, agent_id: str, waiter: asyncio.Future[None]) -> bool:
        """Let a waiting call of any loop start; return False if it does not wait any more."""
        if waiter.done():
            return False
        if (loop := waiter.get_loop()) is asyncio.get_running_loop():
            waiter.set_result(None)
            return True
        try:
            loop.call_soon_threadsafe(self._settle, agent_id, waiter)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _settle(self, agent_id: str, waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)
            return
        with self._lock:  # cancelled before it could start
            self._release(agent_id)


class RepeatDetector:
    """Detects that a run makes the same call again and again."""

    def __init__(self, max_repeats: int) -> None:
        self._max_repeats = max_repeats
        self._last = b""
        self._count = 0

    def check(self, fingerprint: bytes) -> None:
        """Count a call; raises LimitExceeded if it is one repetition too many."""
        self._count = self._count + 1 if fingerprint == self._last else 1
        self._last = fingerprint
        if self._count > self._max_repeats:
            raise LimitExceeded(
                f"The same call was made {self._max_repeats} times in a row. Do something else, or answer."
            )


class Limiter:
    """All limits of an Atlas."""

    def __init__(self, limits: Limits, clock: Clock, day_counter: DayCounter | None = None) -> None:
        self.limits = limits
        self._clock = clock
        self._clock_offset = clock.time() - clock.monotonic()
        self.day_counter = MemoryCounter() if day_counter is None else day_counter
        self.ticker = Ticker(clock, limits.tick)
        self.tick_limiter = TickLimiter(self.ticker, limits.per_tick) if limits.per_tick is not None else None
        self._sessions: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, weakref.WeakValueDictionary[str, Slots]
        ] = weakref.WeakKeyDictionary()

    def repeat_detector(self) -> RepeatDetector | None:
        """Return a new repeat detector for a run."""
        return RepeatDetector(self.limits.repeats) if self.limits.repeats is not None else None

    def session_slots(self, session: str) -> Slots:
        """Return the slots for concurrent calls of a session in this event loop."""
        loop = asyncio.get_running_loop()
        sessions = self._sessions.get(loop)
        if sessions is None:
            sessions = self._sessions[loop] = weakref.WeakValueDictionary()
        slots = sessions.get(session)
        if slots is None:
            slots = sessions[session] = Slots(self.limits.at_once)
        return slots

    @property
    def has_daily_limit(self) -> bool:
        return self.limits.per_day is not None

    async def reserve(self, tenant: str, agent_id: str) -> str:
        """Count a call and return the day it counts for; raises LimitExceeded if the daily limit is used up."""
        day = self.today()
        if not await self.day_counter.reserve(tenant, agent_id, day, self.limits.per_day or 0):
            raise self.daily_limit_error()
        return day

    def today(self) -> str:
        """Return the current day by the monotonic clock, so that setting the wall clock does not change the day."""
        return utc_day(self._clock_offset + self._clock.monotonic())

    def daily_limit_error(self) -> LimitExceeded:
        limit = self.limits.per_day or 0
        return LimitExceeded(
            f"The daily limit of tool calls ({limit:,}) is used up. Nothing was run; try again tomorrow."
        )
