"""Takes many turns over many sessions in a process of its own, and prints what it holds in memory on the way."""

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from atlas_agents import Agent, Atlas, Capabilities, Chunk, DoneChunk, Request, TextChunk, ToolCall, ToolCallChunk, tool
from atlas_agents.stores.sqlite import SqliteStore


class Model:
    """Asks for a tool, then says a few words; remembers nothing."""

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


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


async def main(path: str, sessions: int, marks: list[int]) -> None:
    store = SqliteStore(Path(path))
    await store.open()
    agent = Agent("a", model=Model(), tools=[look])
    async with Atlas([agent], store=store) as atlas:
        for turn in range(1, marks[-1] + 1):
            await atlas.ask("What is it like?", session=f"s{turn % sessions}")
            if turn in marks:
                print(resident(), flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), [int(mark) for mark in sys.argv[3:]]))
