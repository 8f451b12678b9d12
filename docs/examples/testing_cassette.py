"""Record a real model once, then play the recording back without a network."""

import asyncio
import tempfile
from pathlib import Path

from atlas_agents import Agent, Atlas, Cassette, OpenAIProvider


async def ask(model: Cassette) -> str:
    async with Atlas(agents=[Agent("assistant", model=model)]) as atlas:
        return (await atlas.ask("Hello!")).text


async def main() -> None:
    tape = Path(tempfile.mkdtemp()) / "hello.jsonl"  # in a project: tests/tapes/hello.jsonl
    recorded = await ask(Cassette(tape, OpenAIProvider("gpt-5.2")))
    played = await ask(Cassette(tape))
    print(played == recorded, played)


asyncio.run(main())
