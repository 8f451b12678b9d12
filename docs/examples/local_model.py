"""A model on this machine: no key, no account. The first run downloads it (98 MB); later runs start at once."""

import asyncio

from atlas_agents import Agent, Atlas, LocalProvider, tool


@tool
async def get_weather(city: str) -> str:
    """Tell the weather in a city right now."""
    return f"18 degrees in {city}"


assistant = Agent("assistant", model=LocalProvider(), tools=[get_weather])


async def main() -> None:
    async with Atlas(agents=[assistant]) as atlas:
        async for event in atlas.send("What is the weather in Paris?"):
            if event.type == "tool:result":
                print(event.name, event.arguments, "->", event.result)
            elif event.type == "message:received":
                print(event.message.metadata["provider"], "answered")


asyncio.run(main())
