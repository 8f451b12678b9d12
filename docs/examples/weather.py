"""Ask an agent with one tool, then stream from it. This is the README example."""

import asyncio

from atlas_agents import Agent, Atlas, tool


@tool
async def get_weather(city: str) -> str:
    """Get today's weather in a city."""
    return f"Sunny in {city}"


assistant = Agent("assistant", model="anthropic/claude-opus-4-6", system_prompt="Be brief.", tools=[get_weather])


async def main() -> None:
    async with Atlas(agents=[assistant]) as atlas:
        reply = await atlas.ask("Weather in Lima?")
        print(reply.text)

        stream = atlas.send("And in Oslo?")
        async for event in stream:
            if event.type == "stream:chunk":
                print(event.text, end="")


asyncio.run(main())
