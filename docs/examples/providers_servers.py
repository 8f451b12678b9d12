"""A provider object: URL, key, model and timeouts."""

import asyncio
import os

from atlas_agents import Agent, Atlas, OpenAIProvider, Timeouts

nearby = OpenAIProvider(
    "llama3.2",
    base_url=os.environ.get("OPENAI_BASE_URL", "http://localhost:11434/v1"),
    api_key="not needed here",
    timeouts=Timeouts(first_byte=120),  # a local model may have to be loaded first
)
assistant = Agent("assistant", model=nearby)


async def main() -> None:
    async with Atlas(agents=[assistant]) as atlas:
        reply = await atlas.ask("Hello!")
        print(reply.text, reply.metadata["stop_reason"])


asyncio.run(main())
