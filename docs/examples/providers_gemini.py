"""A Gemini model: its thoughts, then its answer, as they arrive."""

import asyncio

from atlas_agents import Agent, Atlas, GeminiProvider, ModelSettings

assistant = Agent(
    "assistant",
    model=GeminiProvider("gemini-3.8-flash"),  # or "google/gemini-3.8-flash"; the key is in GOOGLE_API_KEY
    settings=ModelSettings(effort="low"),
)


async def main() -> None:
    async with Atlas(agents=[assistant]) as atlas:
        async for event in atlas.send("Write a headline about rain."):
            if event.type == "stream:thinking":
                print(f"[{event.text}]")
            elif event.type == "stream:chunk":
                print(event.text, end="", flush=True)
        print()


asyncio.run(main())
