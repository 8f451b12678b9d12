"""Runs turns in many sessions in its own process and prints its memory use after each phase.

Phases: 100 new sessions, 300 more new sessions, then a second turn in 100 of the sessions that have left the cache.
"""

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from atlas_agents import Agent, Atlas, Capabilities, Chunk, DoneChunk, Request, TextChunk, ToolCall, ToolCallChunk, tool
from atlas_agents.storage.sqlite import SqliteStore


class Model:
    """Calls a tool, then answers with text; keeps no state."""

    id = "model"
    capabilities = Capabilities()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if request.messages[-1].role == "tool":
            yield TextChunk("That is what it says. " * 20)
        else:
            yield ToolCallChunk(ToolCall("", "look", {"what": "weather"}))
        yield DoneChunk()


@tool(effect="pure")
async def look(what: str) -> str:
    """Look at something."""
    return f"{what}: " + "fine " * 50


def report() -> None:
    """Print resident KiB and allocated Python blocks."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4
    print(resident, sys.getallocatedblocks(), flush=True)


async def main(path: str) -> None:
    store = SqliteStore(Path(path))
    await store.open()
    agent = Agent("a", model=Model(), tools=[look])
    async with Atlas([agent], store=store) as atlas:
        for sessions in (range(100), range(100, 400), range(100)):
            for number in sessions:
                await atlas.ask("What is it like?", session=f"s{number}")
            report()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
