"""Can a process take a turn now?"""

import asyncio
from collections.abc import Awaitable, Callable

from atlas_agents.core.errors import StoreError

_WITHIN = 2.0


class Readiness:
    """Started, not stopping, and its store can be read."""

    def __init__(self, look: Callable[[], Awaitable[object]]) -> None:
        self._look = look
        self.started = False
        self.stopping = False

    async def problem(self) -> str | None:
        """What stands in the way, in a word; None if nothing does."""
        if self.stopping:
            return "draining"
        if not self.started:
            return "starting"
        try:
            async with asyncio.timeout(_WITHIN):
                await self._look()
        except (StoreError, TimeoutError):
            return "the store cannot be used"
        return None
