"""Listeners hear every turn of an Atlas, whoever asked; one that fails or hangs harms nobody."""

import asyncio
import logging
from typing import Any

from atlas_agents.testing import Scripted, house, says

logging.getLogger("atlas_agents").setLevel(logging.CRITICAL)  # what `clumsy` raises would be logged
spent: list[int] = []


def count(event: Any) -> None:
    spent.append(event.usage.output_tokens)


async def clumsy(event: Any) -> None:
    raise RuntimeError("my own trouble")


async def main() -> None:
    async with house(Scripted(says("One two."), says("One two three."), says("One."))) as atlas:
        stop = atlas.on("stream:end", count)
        atlas.on("stream:end", clumsy)
        await atlas.ask("First")
        await atlas.ask("Second")
        stop()
        await atlas.ask("Third")
    print(spent)


asyncio.run(main())
