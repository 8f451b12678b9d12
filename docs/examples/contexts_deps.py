"""Pass a database and the user to tools, rules and the prompt; keep what a tool learns in the session."""

import asyncio
from dataclasses import dataclass

from atlas_agents import Agent, Atlas, Rule, ToolContext, TurnContext, tool
from atlas_agents.testing import Scripted, calls, says


@dataclass
class Shop:
    """What the tools of this agent need."""

    orders: dict[str, list[str]]


@tool
async def last_order(context: ToolContext[Shop]) -> str:
    """Return the customer's last order."""
    order = context.deps.orders[context.user][-1]
    context.metadata.set("order", order)  # belongs to this session
    return order


async def prompt(context: TurnContext[Shop]) -> str:
    return f"You help {context.user}, who has {len(context.deps.orders[context.user])} orders."


known = Rule(
    lambda context: f"The order is {context.metadata['order']}.", when=lambda context: "order" in context.metadata
)
model = Scripted(calls("last_order"), says("You bought a lamp."), says("It arrives today."), says("Hello, Bob."))
agent = Agent("clerk", model=model, system_prompt=prompt, tools=[last_order], rules=[known])


async def main() -> None:
    shop = Shop({"ana": ["chair", "lamp"], "bob": []})
    async with Atlas([agent]) as atlas:
        await atlas.ask("What did I buy?", session="ana", user="ana", deps=shop)
        await atlas.ask("When does it arrive?", session="ana", user="ana", deps=shop)
        await atlas.ask("Hello", session="bob", user="bob", deps=shop)
    for request in model.requests:
        print(request.system.replace("\n", " "))


asyncio.run(main())
