"""Limit concurrent calls and calls per tick; further calls wait in order."""

import asyncio

from atlas_agents import Limits, tool
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says

clock = VirtualClock()


@tool
async def post(n: int) -> str:
    """Post a message."""
    print(f"{clock.monotonic():>4.1f} s: post {n}")
    await clock.sleep(1)
    return f"posted {n}"


async def main() -> None:
    five = calls("post", n=1) + calls("post", n=2) + calls("post", n=3) + calls("post", n=4) + calls("post", n=5)
    async with in_memory_atlas(
        Scripted(five, says("Done.")), [post], limits=Limits(at_once=2, per_tick=3, tick=5), clock=clock
    ) as atlas:
        stream = atlas.send("Post five messages")
        await clock.advance(10)
        print((await stream.reply()).text)


asyncio.run(main())
