"""A model that reasons between its tool calls, over the Responses API."""

import asyncio

from atlas_agents import Agent, Atlas, ModelSettings, OpenAIResponsesProvider, tool


@tool
async def get_weather(city: str) -> str:
    """Return the weather in a city."""
    return f"Sunny in {city}."


assistant = Agent(
    "assistant",
    model=OpenAIResponsesProvider("gpt-5.6"),  # or "openai-responses/gpt-5.6"; the key is in OPENAI_API_KEY
    settings=ModelSettings(effort="high"),
    tools=[get_weather],
)


async def main() -> None:
    async with Atlas(agents=[assistant]) as atlas:
        reply = await atlas.ask("What is the weather in Lima?")
        print(reply.text)


asyncio.run(main())
