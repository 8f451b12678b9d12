"""A plain function runs in another process: it can be stopped at any moment, and it sees copies."""

import asyncio
import os

from atlas_agents import tool
from atlas_agents.testing import Scripted, calls, house, says

seen: list[str] = []
here = os.getpid()


@tool(effect="pure")
def elsewhere(word: str) -> str:
    """Work that takes the processor: it runs beside the event loop."""
    seen.append(word)
    return "another process" if os.getpid() != here else "this process"


@tool(in_process=True)
def nearby(word: str) -> str:
    """Work that needs this process's own objects: it runs in a thread here."""
    seen.append(word)
    return "another process" if os.getpid() != here else "this process"


async def main() -> None:
    model = Scripted(calls("elsewhere", word="one"), calls("nearby", word="two"), says("Done."))
    async with house(model, [elsewhere, nearby]) as atlas:
        atlas.on("tool:result", lambda event: print(event.name, "ran in", event.result))
        await atlas.ask("Go")
    print(seen)  # `elsewhere` changed a copy


if __name__ == "__main__":
    asyncio.run(main())
