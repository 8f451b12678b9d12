"""For tests of agents, ours and yours: models that follow a script, a house in memory, a clock that you drive."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.atlas import Atlas
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ScriptExhausted
from atlas_agents.core.paths import Environment
from atlas_agents.providers.registry import Model, Registry
from atlas_agents.providers.testing import Cassette, Reply, Scripted, calls, fails, says, thinks
from atlas_agents.tools.tool import Function, Tool

__all__ = [
    "Cassette",
    "Environment",
    "Registry",
    "Reply",
    "ScriptExhausted",
    "Scripted",
    "VirtualClock",
    "calls",
    "fails",
    "in_memory_atlas",
    "says",
    "thinks",
]


def in_memory_atlas(
    model: Model,
    tools: Iterable[Tool | Function] = (),
    *,
    agent: dict[str, Any] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    **atlas: Any,
) -> Atlas:
    """An Atlas with one agent, `assistant`, everything in memory and nothing read from the environment."""
    assistant = Agent("assistant", model=model, tools=tools, **(agent or {}))
    registry = Registry(Environment({}, dotenv=None))
    return Atlas([assistant], clock=clock, registry=registry, **atlas)


class _Alarm:
    """One call to come; `cancel` takes it off."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self.ring: Callable[[], object] | None = ring

    def cancel(self) -> None:
        self.ring = None


class VirtualClock:
    """Stands still until `advance` is awaited; then every alarm on the way rings at its time, in order."""

    def __init__(self, start: float = 1_000_000_000.0) -> None:
        self._start = start
        self._now = 0.0
        self._alarms: list[tuple[float, int, _Alarm]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        """Return the current time in seconds since the epoch."""
        return self._start + self._now

    def monotonic(self) -> float:
        """Return the seconds since the clock was created."""
        return self._now

    def call_later(self, seconds: float, ring: Callable[[], object]) -> _Alarm:
        """Call a function once this many seconds have passed on this clock."""
        alarm = _Alarm(ring)
        heapq.heappush(self._alarms, (self._now + max(0.0, seconds), next(self._numbers), alarm))
        return alarm

    async def sleep(self, seconds: float) -> None:
        """Wait until this many seconds have passed on this clock."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = self.call_later(seconds, lambda: woken.done() or woken.set_result(None))
        try:
            await woken
        finally:
            alarm.cancel()

    async def advance(self, seconds: float) -> None:
        """Let time pass. Whoever is woken gets to run before the next alarm rings."""
        end = self._now + seconds
        await _settle()
        while self._alarms and self._alarms[0][0] <= end:
            self._now, _, alarm = heapq.heappop(self._alarms)
            if alarm.ring is not None:
                alarm.ring()
                await _settle()
        self._now = end
        await _settle()


async def _settle() -> None:
    """Let everything that is ready to run do so, and what that makes ready too."""
    for _ in range(20):
        await asyncio.sleep(0)
