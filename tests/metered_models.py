"""Models for tests of budgets: their usage is fixed, or they never end."""

import asyncio
from collections.abc import AsyncGenerator

from atlas_agents import Usage
from atlas_agents.providers import base


class Metered:
    """Model that reports a fixed usage, as far as the request's limit of output tokens allows."""

    def __init__(self, input: int = 0, output: int = 0, model: str = "metered", text: str = "Yes.") -> None:
        self.id = "metered"
        self.model = model
        self.input, self.output = input, output
        self.text = text
        self.requests: list[base.Request] = []

    @property
    def capabilities(self) -> base.Capabilities:
        return base.Capabilities()

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        self.requests.append(request)
        limit = request.settings.max_tokens
        output = self.output if limit is None else min(self.output, limit)
        await asyncio.sleep(0)
        yield base.TextChunk(self.text)
        await asyncio.sleep(0)
        stop: base.StopReason = "length" if output < self.output else "stop"
        yield base.DoneChunk(Usage(self.input, output), stop, model=self.model)


class Hanging(Metered):
    """Model that streams a text and then never ends."""

    def __init__(self, text: str) -> None:
        super().__init__(text=text)

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        yield base.TextChunk(self.text)
        await asyncio.Event().wait()
