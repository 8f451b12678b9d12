"""State that tools, model, store and client of a process share; set once before the process runs."""

import asyncio
import time

from atlas_agents.core.aio import SystemClock
from crash.evidence_log import EvidenceLog
from crash.fault_points import Points

_NOON = 1_789_992_000.0
"""Every case starts at noon of the same day, so that none crosses midnight."""
_SLEEP_FACTOR = 0.02


class Clock(SystemClock):
    """Real time from noon on, plus the clock error of this process; sleeps are shortened."""

    def __init__(self, began: float, jump: int) -> None:
        self.wrong = _NOON - began + jump

    def time(self) -> float:
        return time.time() + self.wrong

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds * _SLEEP_FACTOR)


class ProcessState:
    """State of one process."""

    log: EvidenceLog
    points: Points
    clock: Clock
    opening = True
    """Opening the store has no fault points, except in one script."""
    steering_sent: asyncio.Event
    """Not set while a steering message is sent: the model waits for it, so that its turn does not end before."""
    pause = 0.0
    """Delay in seconds after a call and before each chunk of the model, for signals from outside."""

    def __init__(self) -> None:
        self.steering_sent = asyncio.Event()
        self.steering_sent.set()

    async def delay(self) -> None:
        if self.pause:
            await asyncio.sleep(self.pause)


STATE = ProcessState()
