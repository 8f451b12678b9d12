"""Approve a call with edited arguments; the audit log records who approved it."""

import asyncio

from atlas_agents import Answer, Question, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


@tool(confirm=True)
async def buy(item: str, count: int = 1) -> str:
    """Buy something."""
    return f"bought {count} {item}"


async def approve(question: Question) -> Answer:
    return Answer("once", arguments={**question.arguments, "count": 2}, by="ben")


async def main() -> None:
    model = Scripted(calls("buy", item="tea", count=200), says("Two, then."))
    async with in_memory_atlas(model, [buy], approve=approve) as atlas:
        await atlas.ask("Buy tea", user="ana")
        print("the model reads", model.requests[-1].messages[-1].tool_results[0].result)
        (row,) = await atlas.audit.records("default")
        meta = row.entry.meta
        print("asked for", meta["user"], "| approved by", meta["approved_by"], "| edited", meta["edited"])


asyncio.run(main())
