"""A virtual clock: an hour of timeouts and retries takes no time."""

import asyncio

from atlas_agents import tool
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says


@tool(timeout=3600, effect="pure")
async def wait_for_ever() -> None:
    """Never end."""
    await asyncio.Event().wait()


async def main() -> None:
    clock = VirtualClock()
    model = Scripted(calls("wait_for_ever"), says("It took too long."))
    async with in_memory_atlas(model, [wait_for_ever], clock=clock) as atlas:
        stream = atlas.send("Wait")
        await clock.advance(5 * 3600)
        print((await stream.reply()).text)
        print(atlas.conversation().messages[2].tool_results[0].result)


asyncio.run(main())
