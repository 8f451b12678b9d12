"""A tool changes the state that the agent shares with its frontend."""

import asyncio

from atlas_agents import Agent, Atlas, MemoryStore, ToolContext, tool
from atlas_agents.testing import Scripted, calls, says


@tool
async def set_servings(count: int, context: ToolContext) -> str:
    """Set the number of servings of the recipe."""
    recipe = context.metadata.get("shared_state", {})
    context.metadata.set("shared_state", {**recipe, "servings": count})
    return "done"


async def main() -> None:
    agent = Agent("cook", model=Scripted(calls("set_servings", count=4), says("For four.")), tools=[set_servings])
    async with Atlas([agent], store=MemoryStore()) as atlas:
        async for event in atlas.send("For four, please.", metadata={"shared_state": {"title": "Soup"}}):
            if event.type == "state:changed":
                print(event.state)


asyncio.run(main())
