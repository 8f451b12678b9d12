"""Time as a port, so that a test can drive it: the wall, the stop-watch and the alarm."""

import asyncio
import time
from collections.abc import Callable
from datetime import date, timedelta
from typing import Protocol


class Alarm(Protocol):
    """Something that will ring; it can be told not to."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """All waiting and all deadlines go through one of these."""

    def time(self) -> float:
        """Seconds since 1970, for people to read; it may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds for measuring; it never goes back."""
        ...

    def call_later(self, seconds: float, ring: Callable[[], object]) -> Alarm: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock and the running loop's alarms."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, ring: Callable[[], object]) -> Alarm:
        return asyncio.get_running_loop().call_later(seconds, ring)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


def day_of(seconds: float) -> str:
    """The day of a time since 1970, as `2026-11-15`, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def days_ahead(day: str) -> tuple[str, str]:
    """The two days after it: a clock that was put back may have been there before. What is no day stays as it is."""
    try:
        today = date.fromisoformat(day)
        return str(today + timedelta(days=1)), str(today + timedelta(days=2))
    except (ValueError, OverflowError):
        return day, day
