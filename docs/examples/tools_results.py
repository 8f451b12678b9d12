"""Results of tools: an object of your own, an image, and a generator that reports progress."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

from atlas_agents import Image, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


@dataclass
class Booking:
    day: date
    seats: int


@tool
async def book(day: date) -> Booking:
    """Book two seats."""
    return Booking(day, seats=2)


@tool
async def draw() -> Image:
    """Draw a picture."""
    return Image.of(b"hello!", "image/png")


@tool
def bake(cakes: int) -> Iterator[str]:
    """Bake some cakes."""
    for cake in range(1, cakes + 1):
        yield f"{cake} of {cakes} in the oven"
    yield "all done"


async def main() -> None:
    model = Scripted(calls("book", day="2026-11-20"), calls("draw"), calls("bake", cakes=2), says("Done."))
    async with in_memory_atlas(model, [book, draw, bake]) as atlas:
        async for event in atlas.send("Prepare the party"):
            if event.type == "tool:progress":
                print("…", event.message)
            elif event.type == "tool:result":
                print(event.name, event.result)


if __name__ == "__main__":
    asyncio.run(main())
