"""Cancel a turn: the model and its tools stop, and the history stays valid for the next turn."""

import asyncio

from atlas_agents import Cancelled, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


@tool
async def backup() -> str:
    """Make a backup, which takes an hour."""
    await asyncio.sleep(3600)
    return "done"


async def main() -> None:
    model = Scripted(says("One moment. ") + calls("backup"), says("It was stopped half-way."))
    async with in_memory_atlas(model, [backup]) as atlas:
        stream = atlas.send("Make a backup")
        async for event in stream:
            if event.type == "tool:called":
                stream.cancel()
            if event.type == "stream:end":
                print("cancelled:", event.cancelled)
        try:
            await stream.reply()
        except Cancelled:
            print("no reply, but this text was streamed:", stream.text)

        for result in atlas.conversation().messages[-1].tool_results:
            print(result.status, "|", result.result)
        reply = await atlas.ask("What happened to the backup?")
        print(reply.text)


asyncio.run(main())
