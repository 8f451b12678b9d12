"""Test another policy against recorded calls, then activate it."""

import asyncio

from atlas_agents import Policy, tool, what_if
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

today = Policy(name="today", tools={"order": {"*": "yes"}, "cancel": {"*": "yes"}})
stricter = Policy(name="stricter", tools={"order": {"*": "yes"}, "cancel": {"*": "no"}})


@tool
async def order(item: str) -> str:
    """Order something."""
    return f"{item} ordered"


@tool
async def cancel(item: str) -> str:
    """Cancel an order."""
    return f"{item} cancelled"


async def main() -> None:
    model = Scripted(calls("order", item="tea"), calls("cancel", item="tea"), says("Done."), says("Hello!"))
    async with in_memory_atlas(model, [order, cancel], policy=today) as atlas:
        await atlas.ask("Tea, please. Oh, rather not.")

        rows = await atlas.audit.records("default")
        for change in what_if(rows, stricter):
            print(f"row {change.seq}: {change.tool}, {change.before} → {change.after} ({change.rule})")

        atlas.policy = stricter
        await atlas.ask("Hello?")
        print("offered from now on:", [spec.name for spec in model.requests[-1].tools])


asyncio.run(main())
