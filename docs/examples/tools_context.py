"""What a tool can read about the call it handles."""

import asyncio

from atlas_agents import ToolContext, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


@tool(effect="keyed")
async def order(book: str, context: ToolContext) -> str:
    """Order a book."""
    context.progress("looking for it")
    customer = context.metadata.get("customer")
    key = context.idempotency_key  # the same on every retry: pass it on to the shop
    return f"{book} for {customer}, ordered once" if key else "never"


async def main() -> None:
    print(list(order.parameters["properties"]))  # the model does not see the context parameter
    model = Scripted(calls("order", book="Moby Dick"), says("Done."))
    async with in_memory_atlas(model, [order], agent={"metadata": {"customer": "Ada"}}) as atlas:
        async for event in atlas.send("I want to read about a whale"):
            match event.type:
                case "tool:progress":
                    print("…", event.message)
                case "tool:result":
                    print(event.result)
                case _:
                    pass


asyncio.run(main())
