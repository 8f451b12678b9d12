"""Toolsets: filter, prefix, rename and combine tools, and choose from them in each turn."""

import asyncio
from typing import Any

from atlas_agents import Agent, Atlas, Toolset, TurnContext, tool
from atlas_agents.testing import Scripted, says


@tool(effect="pure")
async def search(words: str) -> str:
    """Search."""
    return f"3 results for {words}"


@tool
async def refund(order: int) -> str:
    """Refund an order."""
    return f"order {order} refunded"


shop = Toolset([search, refund]).prefix("shop_")
wiki = Toolset([search]).rename({"search": "look_up"})


def for_user(context: TurnContext[Any]) -> list[str]:
    return ["shop_search", "shop_refund"] if context.user == "manager" else ["shop_search"]


async def main() -> None:
    print((shop + wiki).names)
    print(shop.filter(lambda each: each.effect == "pure").names)
    model = Scripted(says("Hello."), says("Hello."))
    async with Atlas([Agent("clerk", model=model, tools=[shop.choose(for_user), wiki])]) as atlas:
        for user in ("manager", "guest"):
            await atlas.ask("Hi", user=user, session=user)
            print(user, [each.name for each in model.requests[-1].tools])


asyncio.run(main())
