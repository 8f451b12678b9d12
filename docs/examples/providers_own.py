"""A custom provider: `id`, `capabilities`, and `stream`, which ends with a `DoneChunk`."""

import asyncio
from collections.abc import AsyncGenerator

from atlas_agents import Agent, Atlas, Capabilities, Chunk, DoneChunk, ProviderError, Request, TextChunk, Usage


class Speller:
    """Spell the final word of the message."""

    id = "speller"
    capabilities = Capabilities(tools=False)

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        words = request.messages[-1].text.split()
        if not words:
            raise ProviderError("nothing to spell", "bad_request")
        for letter in words[-1]:
            yield TextChunk(f"{letter.upper()} ")
        yield DoneChunk(Usage(input_tokens=len(words), output_tokens=len(words[-1])))


async def main() -> None:
    async with Atlas(agents=[Agent("teacher", model=Speller())]) as atlas:
        print((await atlas.ask("Please spell atlas")).text)


asyncio.run(main())
