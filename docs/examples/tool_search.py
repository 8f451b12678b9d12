"""An agent with many tools finds the ones it needs."""

import asyncio

from atlas_agents import Agent, Atlas, Tool
from atlas_agents.testing import Scripted, calls, says


def make_tool(verb: str, thing: str) -> Tool:
    async def work(id: str = "") -> str:
        return f"{verb} {thing} {id}: done"

    return Tool(f"{verb}_{thing}", work, description=f"{verb.title()} one {thing} of the workspace.", effect="pure")


things = ["invoice", "ticket", "server", "wiki_page", "shipment", "survey", "branch", "contract"]
tools = [make_tool(verb, thing) for thing in things for verb in ("show", "create", "change", "delete")]
model = Scripted(
    calls("search_tools", query="show an invoice"), calls("show_invoice", id="7"), says("Done."), says("Yes.")
)


async def main() -> None:
    async with Atlas([Agent("assistant", model=model, tools=tools, tool_search=20)]) as atlas:
        await atlas.ask("Show me invoice 7", session="ana")
        await atlas.ask("Is it paid?", session="ana")
        for request in model.requests:
            print([tool.name for tool in request.tools])


asyncio.run(main())
