"""A Gemini model: its thoughts, and a tool."""

import asyncio

from atlas_agents import Agent, Atlas, GeminiProvider, ModelSettings, tool


@tool
async def get_weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Sunny in {city}."


assistant = Agent(
    "assistant",
    model=GeminiProvider("gemini-3.8-flash"),  # or "google/gemini-3.8-flash"; the key is in GOOGLE_API_KEY
    settings=ModelSettings(effort="low"),
    tools=[get_weather],
)


async def main() -> None:
    async with Atlas(agents=[assistant]) as atlas:
        reply = await atlas.ask("What is the weather in Lima?")
        print(reply.text)


asyncio.run(main())
