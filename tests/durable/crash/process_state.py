"""What tools, model, store and client of the current process share; set once in each process, before it begins."""

import asyncio
import time

from atlas_agents.core.aio import SystemClock
from crash.evidence_log import EvidenceLog
from crash.fault_points import Points

_NOON = 1_789_992_000.0
"""Every case begins at noon of the same day: none runs over midnight."""
_SLEEP_FACTOR = 0.02


class Clock(SystemClock):
    """Real time from noon on, wrong by the jump of this life; pauses are short."""

    def __init__(self, began: float, jump: int) -> None:
        self.wrong = _NOON - began + jump

    def time(self) -> float:
        return time.time() + self.wrong

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds * _SLEEP_FACTOR)


class ProcessState:
    """One life."""

    log: EvidenceLog
    points: Points
    clock: Clock
    opening = True
    """The store is being opened, and that has no points: one script that has them is enough."""
    pause = 0.0
    """Seconds that a call takes after it has acted, and a model before each chunk: for signals from outside."""

    async def delay(self) -> None:
        if self.pause:
            await asyncio.sleep(self.pause)


STATE = ProcessState()
