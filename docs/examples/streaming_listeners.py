"""Listeners receive the events of every turn; one that fails or hangs affects nothing else."""

import asyncio
import logging
from typing import Any

from atlas_agents.testing import Scripted, in_memory_atlas, says

logging.getLogger("atlas_agents").setLevel(logging.CRITICAL)  # hide the logged error of `failing`
spent: list[int] = []


def count(event: Any) -> None:
    spent.append(event.usage.output_tokens)


async def failing(event: Any) -> None:
    raise RuntimeError("a bug in the listener")


async def main() -> None:
    async with in_memory_atlas(Scripted(says("One two."), says("One two three."), says("One."))) as atlas:
        stop = atlas.on("stream:end", count)
        atlas.on("stream:end", failing)
        await atlas.ask("First")
        await atlas.ask("Second")
        stop()
        await atlas.ask("Third")
    print(spent)


asyncio.run(main())
