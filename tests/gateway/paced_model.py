"""A scripted model that streams slowly, so that a test can act in the middle of an answer."""

import asyncio
from collections.abc import AsyncGenerator

from atlas_agents import Chunk, Request, TextChunk
from atlas_agents.testing import Reply, Scripted


class Paced(Scripted):
    """Waits before each text chunk."""

    def __init__(self, *replies: Reply, pause: float = 0.002) -> None:
        super().__init__(*replies)
        self._pause = pause

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        async for chunk in super().stream(request):
            if isinstance(chunk, TextChunk):
                await asyncio.sleep(self._pause)
            yield chunk
