"""One registry for all tools: agents pick from it, and names are unique."""

import asyncio

from atlas_agents import DuplicateTool, ToolRegistry, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

known = ToolRegistry()


@known.add
@tool(effect="pure")
async def search(words: str) -> str:
    """Search our own pages."""
    return f"3 pages about {words}"


@tool(name="search", effect="pure")
async def search_shop(words: str) -> str:
    """Search the shop."""
    return f"7 offers of {words}"


async def main() -> None:
    try:
        known.add(search_shop)
    except DuplicateTool as error:
        print(error)
    known.add(search_shop, source="plugin", namespace="shop")
    known.load_plugins()  # installed plugins; those that fail are in known.disabled

    model = Scripted(calls("search", words="tea") + calls("shop__search", words="tea"), says("Done."))
    async with in_memory_atlas(model, known.pick("search", "shop/search")) as atlas:
        atlas.on("tool:result", lambda event: print(f"{event.name}: {event.result}"))
        await atlas.ask("Find tea")


asyncio.run(main())
