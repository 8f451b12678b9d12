"""The engine's tick: one beat for all that waits for the next one, be it a call of an agent or a job that is due."""

import asyncio
from collections.abc import Callable
from typing import TypeAlias

from atlas_agents.core.clock import Clock

Ring: TypeAlias = Callable[[], object]


class Beat:
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
