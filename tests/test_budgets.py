"""Budgets: reserved before a model call, settled after it, and never exceeded."""

import asyncio
from collections.abc import AsyncGenerator

from atlas_agents import Agent, Atlas, Plan, QuotaExceeded, Usage
from atlas_agents.providers import base
from atlas_agents.storage.memory import MemoryStore


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


async def ask_all(atlas: Atlas, count: int) -> tuple[int, list[BaseException]]:
    """Ask in sessions of their own at once; return how many turns were answered, and the other errors."""
    turns = [atlas.ask("hi", session=str(n)) for n in range(count)]
    results = await asyncio.gather(*turns, return_exceptions=True)
    failed = [each for each in results if isinstance(each, BaseException)]
    return count - len(failed), failed


async def test_concurrent_turns_stay_within_the_token_plan_of_their_tenant() -> None:
    model = Metered(10, 660)
    async with Atlas([Agent("a", model=model)], store=MemoryStore()) as atlas:
        await atlas.tenancy.put_plan(Plan("small", tokens=1000))
        await atlas.tenancy.use_plan("small")
        answered, failed = await ask_all(atlas, 10)
        used = (await atlas.tenancy.used()).tokens
    assert used <= 1000, f"{used} tokens used of 1,000"
    assert answered == 2, "the second answer was cut to what was left"
    assert all(isinstance(each, QuotaExceeded) for each in failed)
