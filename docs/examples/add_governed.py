"""The same tool with execution settings, and a policy that decides who may call it."""

import asyncio

from atlas_agents import Agent, Atlas, Policy, Question, ToolContext, tool
from atlas_agents.testing import Scripted, calls, says


@tool(effect="keyed", permissions=["money:pay"], confirm=lambda arguments: arguments["euros"] > 50, timeout=10)
async def refund(order: str, euros: int, context: ToolContext) -> str:
    """Pay the money for an order back to its customer."""
    # Pass context.idempotency_key to the bank: it pays once per key.
    return f"{euros} euros for order {order} are on their way"


def approve(question: Question) -> bool:
    print(f"{question.title}? {question.arguments}")
    return True


def script() -> Scripted:
    return Scripted(calls("refund", order="A7", euros=80), says("Done."))


async def main() -> None:
    till = Agent("till", role="clerk", model=script(), tools=[refund])
    chat = Agent("chat", role="trainee", model=script(), tools=[refund])
    async with Atlas(agents=[till, chat], policy=Policy.load("add_shop.toml"), approve=approve) as atlas:
        for agent in atlas.agents:
            await atlas.ask("Order A7 arrived broken", agent_id=agent.id, session=agent.id)
        for row in await atlas.audit.records("default"):
            print(f"{row.seq}. {row.entry.message}")
            print(f"   {row.entry.meta['rule']}")
            print(f"   {row.entry.meta['result']}")


asyncio.run(main())
