"""A plain function runs in another process: it can be killed at any time, and it works on copies."""

import asyncio
import os

from atlas_agents import tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

seen: list[str] = []
here = os.getpid()


@tool(effect="pure")
def in_worker(word: str) -> str:
    """CPU-bound work: runs outside the event loop."""
    seen.append(word)
    return "another process" if os.getpid() != here else "this process"


@tool(in_process=True)
def in_thread(word: str) -> str:
    """Work that needs this process's objects: runs in a thread."""
    seen.append(word)
    return "another process" if os.getpid() != here else "this process"


async def main() -> None:
    model = Scripted(calls("in_worker", word="one"), calls("in_thread", word="two"), says("Done."))
    async with in_memory_atlas(model, [in_worker, in_thread]) as atlas:
        atlas.on("tool:result", lambda event: print(event.name, "ran in", event.result))
        await atlas.ask("Go")
    print(seen)  # `in_worker` changed a copy


if __name__ == "__main__":
    asyncio.run(main())
