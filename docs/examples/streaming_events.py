"""All events of a turn, in order."""

import asyncio

from atlas_agents import tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says, thinks


@tool
async def get_weather(city: str) -> str:
    """Get today's weather in a city."""
    return f"Sunny in {city}"


model = Scripted(thinks("Let me look.") + calls("get_weather", city="Lima"), says("Sunny in Lima."))


async def main() -> None:
    async with in_memory_atlas(model, [get_weather]) as atlas:
        stream = atlas.send("Weather in Lima?")
        async for event in stream:
            print(event.type)
        print(repr(stream.text))
        print([event.type async for event in stream].count("stream:chunk"))  # iterating again replays all events


asyncio.run(main())
