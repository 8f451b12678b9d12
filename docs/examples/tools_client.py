"""Run a tool in the program that sends the message, in place of the process that runs the agent."""

import asyncio

from atlas_agents import Agent, Atlas, ClientResult, ClientTool, MemoryStore
from atlas_agents.testing import Scripted, calls, says

PLACE = {"type": "object", "properties": {"label": {"type": "string"}}, "required": ["label"]}
click = ClientTool("click", "Click the button with this label on the user's screen.", PLACE)


async def main() -> None:
    model = Scripted(calls("click", label="Save"), says("It is saved."))
    async with Atlas([Agent("helper", model=model)], store=MemoryStore()) as atlas:
        stream = atlas.send("Save this, please", session="ana", user="ana", client_tools=[click])
        async for event in stream:
            if event.type == "tool:pending":  # the turn waits, also across a restart
                for call in event.calls:
                    print("run", call.tool, call.arguments)
                    await atlas.post_results([ClientResult(call.id, "clicked")], user="ana")
        print((await stream.reply()).text)


asyncio.run(main())
