"""Record a real model once, then replay the recording without a network."""

import asyncio
import tempfile
from pathlib import Path

from atlas_agents import Agent, Atlas, Cassette, OpenAIProvider


async def ask(model: Cassette) -> str:
    async with Atlas(agents=[Agent("assistant", model=model)]) as atlas:
        return (await atlas.ask("Hello!")).text


async def main() -> None:
    cassette = Path(tempfile.mkdtemp()) / "hello.jsonl"  # in a project: tests/cassettes/hello.jsonl
    recorded = await ask(Cassette(cassette, OpenAIProvider("gpt-5.2")))
    played = await ask(Cassette(cassette))
    print(played == recorded, played)


asyncio.run(main())
