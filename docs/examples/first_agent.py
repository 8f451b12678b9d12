"""A first agent with one tool; its answer is printed as it streams."""

import asyncio

from atlas_agents import Agent, Atlas, tool


@tool
async def get_weather(city: str) -> str:
    """Get today's weather in a city."""
    return f"Sunny in {city}, 24 degrees."


assistant = Agent("assistant", system_prompt="Be brief.", tools=[get_weather])


async def main() -> None:
    async with Atlas(agents=[assistant]) as atlas:
        async for event in atlas.send("What is the weather in Lima?"):
            match event.type:
                case "tool:called":
                    print(f"→ {event.name} {event.arguments}")
                case "tool:result":
                    print(f"← {event.result}")
                case "stream:chunk":
                    print(event.text, end="", flush=True)
                case "stream:end":
                    print(f"\n({event.usage.output_tokens} tokens)")
                case _:
                    pass


asyncio.run(main())
