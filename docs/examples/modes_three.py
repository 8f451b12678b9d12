"""One task in three modes, with a scripted model or the model named on the command line."""

import asyncio
import sys

from atlas_agents import Agent, Atlas, AtlasStream, Mode, tool
from atlas_agents.testing import Reply, Scripted, calls, says


@tool(effect="pure")
async def distance(start: str, end: str) -> str:
    """Return the distance between two cities."""
    return "2,008 km"


@tool(effect="pure")
async def miles(km: float) -> str:
    """Convert kilometres to miles."""
    return f"{km / 1.609344:,.0f} miles"


def agent(mode: Mode, *replies: Reply) -> Agent:
    model = sys.argv[1] if sys.argv[1:] else Scripted(*replies)
    return Agent(mode, model=model, mode=mode, tools=[distance, miles])


tools = agent(
    "tools",
    calls("distance", start="Rome", end="Oslo"),
    calls("miles", km=2008),
    says("About 1,248 miles."),
)
react = agent(
    "react",
    says('Thought: I need the distance.\nAction: distance\nAction Input: {"start": "Rome", "end": "Oslo"}'),
    says("Thought: Now in miles.\nAction: miles\nAction Input: {km: 2008}"),
    says("Thought: That is all.\nFinal Answer: About 1,248 miles."),
)
plan = agent(
    "plan",
    calls("make_plan", steps=["Find the distance", "Convert it"]),
    calls("distance", start="Rome", end="Oslo"),
    says("2,008 km."),
    calls("miles", km=2008),
    says("1,248 miles."),
    says("About 1,248 miles."),
)


async def trace(stream: AtlasStream) -> None:
    thought = ""
    async for event in stream:
        match event.type:
            case "stream:thinking":
                thought += event.text
            case "tool:called" if thought:
                print("  thinks", thought)
                thought = ""
            case "plan:updated":
                print("  plan  ", *[f"[{step.status}] {step.text}" for step in event.steps], sep=" ")
            case "tool:result" if event.name != "make_plan":
                print("  tool  ", event.name, event.arguments, "→", event.result)
            case "message:received":
                print("  says  ", event.message.text)
            case _:
                pass


async def main() -> None:
    atlas = Atlas([tools, react, plan])
    for mode in ("tools", "react", "plan"):
        print(mode)
        await trace(atlas.send("How many miles from Rome to Oslo?", agent_id=mode, session=mode))


asyncio.run(main())
