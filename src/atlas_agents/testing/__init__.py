"""Test helpers: scripted models, an in-memory Atlas and a clock under the test's control."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.atlas import Atlas
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ScriptExhausted
from atlas_agents.core.paths import Environment
from atlas_agents.providers.registry import Model, Registry
from atlas_agents.providers.testing import Cassette, Reply, Scripted, calls, fails, refuses, says, thinks
from atlas_agents.testing.comparison import Difference, ReplayResult
from atlas_agents.testing.faults import Effect, EffectLedger, FaultKind, PlannedFault, Simulation
from atlas_agents.testing.fork import ForkedCall, ForkPoint, ForkResult, fork, list_steps
from atlas_agents.testing.replay import ReplayBlocked, load_agents, replay
from atlas_agents.testing.run_record import ReplayError, RunRecord
from atlas_agents.testing.simulator import CaseResult, FaultSimulator, Finding, SimulationReport
from atlas_agents.tools.tool import ToolLike

if TYPE_CHECKING:

    def fault_simulator() -> FaultSimulator:
        """Pytest fixture: a `FaultSimulator`. Import it in `conftest.py`."""
        ...


__all__ = [
    "CaseResult",
    "Cassette",
    "Difference",
    "Effect",
    "EffectLedger",
    "Environment",
    "FaultKind",
    "FaultSimulator",
    "Finding",
    "ForkPoint",
    "ForkResult",
    "ForkedCall",
    "PlannedFault",
    "Registry",
    "ReplayBlocked",
    "ReplayError",
    "ReplayResult",
    "Reply",
    "RunRecord",
    "ScriptExhausted",
    "Scripted",
    "Simulation",
    "SimulationReport",
    "VirtualClock",
    "calls",
    "fails",
    "fault_simulator",
    "fork",
    "in_memory_atlas",
    "list_steps",
    "load_agents",
    "refuses",
    "replay",
    "says",
    "thinks",
]


def __getattr__(name: str) -> Any:
    """Create the pytest fixture when it is imported, so that pytest is needed only then."""
    if name != "fault_simulator":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    def create() -> FaultSimulator:
        """Return a fault simulator."""
        return FaultSimulator()

    found = globals()[name] = pytest.fixture(name=name)(create)
    return found


def in_memory_atlas(
    model: Model,
    tools: Iterable[ToolLike] = (),
    *,
    agent: dict[str, Any] | None = None,
    clock: Clock = SYSTEM_CLOCK,
    **atlas: Any,
) -> Atlas:
    """Return an Atlas with one agent, `assistant`, stored in memory and independent of the environment."""
    assistant = Agent("assistant", model=model, tools=tools, **(agent or {}))
    registry = Registry(Environment({}, dotenv=None))
    return Atlas([assistant], clock=clock, registry=registry, **atlas)


class _Alarm:
    """Handle of a scheduled call."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """Clock that stands still until `advance` is awaited, which then runs the due calls in order.

    Args:
        start: The time, in seconds since 1970.
    """

    def __init__(self, start: float = 1_000_000_000.0) -> None:
        self._start = start
        self._now = 0.0
        self._alarms: list[tuple[float, int, _Alarm]] = []
        self._sequence = itertools.count()

    def time(self) -> float:
        """Return the current time in seconds since the epoch."""
        return self._start + self._now

    def monotonic(self) -> float:
        """Return the seconds since the clock was created."""
        return self._now

    def call_later(self, seconds: float, callback: Callable[[], object]) -> _Alarm:
        """Schedule a function to be called after this many seconds on this clock."""
        alarm = _Alarm(callback)
        heapq.heappush(self._alarms, (self._now + max(0.0, seconds), next(self._sequence), alarm))
        return alarm

    async def sleep(self, seconds: float) -> None:
        """Sleep for this many seconds on this clock."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        alarm = self.call_later(seconds, lambda: woken.done() or woken.set_result(None))
        try:
            await woken
        finally:
            alarm.cancel()

    async def advance(self, seconds: float) -> None:
        """Advance the clock. Tasks that a call wakes run before the next call."""
        end = self._now + seconds
        await _settle()
        while self._alarms and self._alarms[0][0] <= end:
            self._now, _, alarm = heapq.heappop(self._alarms)
            if alarm.callback is not None:
                alarm.callback()
                await _settle()
        self._now = end
        await _settle()


async def _settle() -> None:
    """Run everything that is ready, and what that makes ready."""
    for _ in range(20):
        await asyncio.sleep(0)
