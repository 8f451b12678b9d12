"""Replay a stored run, and see what a changed prompt changes."""

import asyncio

from atlas_agents import Agent, Atlas, tool
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, replay, says


@tool
async def find_order(number: int) -> str:
    """Find an order by its number."""
    print("looked for order", number)
    return "It was shipped on Monday."


def clerk(model: Scripted, tone: str) -> Agent:
    return Agent("clerk", model=model, tools=[find_order], system_prompt=f"You are the clerk of a shop.\nBe {tone}.")


async def main() -> None:
    store = MemoryStore()
    model = Scripted(calls("find_order", number=7), says("Order 7 was shipped on Monday."))
    async with Atlas([clerk(model, "polite")], store=store) as atlas:
        stream = atlas.send("Where is order 7?")
        await stream.reply()

    same = await replay(stream.stream_id, clerk(Scripted(), "polite"), store=store)
    print("same:", same.same, "·", same.answer)

    changed = await replay(stream.stream_id, clerk(Scripted(), "brief"), store=store)
    print(changed.difference)


asyncio.run(main())
