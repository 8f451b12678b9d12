"""Steer a running turn: the message enters it after the current tool calls."""

import asyncio

from atlas_agents import Agent, Atlas, tool
from atlas_agents.testing import Scripted, calls, says

searching = asyncio.Event()
asked = asyncio.Event()


@tool
async def search_flights(to: str) -> str:
    """Search for flights."""
    searching.set()
    await asked.wait()
    return "7:10 and 9:40"


async def main() -> None:
    model = Scripted(calls("search_flights", to="Oslo"), says("Take the one at 9:40, in an aisle seat."))
    agent = Agent("travel", model=model, tools=[search_flights])
    async with Atlas(agents=[agent]) as atlas:
        stream = atlas.send("Book a flight to Oslo.", session="ana")
        await searching.wait()  # the turn runs, and its tool has not answered yet
        steering = atlas.send("Not before 9, and an aisle seat.", session="ana", when_busy="steer")
        print((await steering.accepted()).status)
        asked.set()
        print((await stream.reply()).text)
        print(await steering.reply() == await stream.reply())
        print([message.text or message.role for message in atlas.conversation("ana")])


asyncio.run(main())
