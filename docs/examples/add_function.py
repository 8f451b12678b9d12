"""Turn a function into a tool with one decorator."""

import asyncio

from atlas_agents import tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


@tool
async def refund(order: str, euros: int) -> str:
    """Pay the money for an order back to its customer."""
    return f"{euros} euros for order {order} are on their way"


async def main() -> None:
    model = Scripted(calls("refund", order="A7", euros=20), says("Done."))
    async with in_memory_atlas(model, [refund]) as atlas:
        atlas.on("tool:result", lambda event: print(event.status, "|", event.result))
        await atlas.ask("Order A7 arrived broken")


asyncio.run(main())
