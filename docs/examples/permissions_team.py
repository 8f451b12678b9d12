"""The example team: the same eight tools for everyone, and each agent is offered only those it may call."""

import asyncio

from atlas_agents import Agent, Atlas, Policy, Tool
from atlas_agents.testing import Scripted, says

TOOLS = [
    *("search_atlasux_knowledge", "search_my_memories", "get_subscription_info", "get_team_members"),
    *("send_telegram_message", "post_to_x", "search_x", "delegate_task"),
]


async def act(text: str) -> str:
    return text


async def main() -> None:
    for name in ("kelly", "fran", "petra"):
        model = Scripted(says("Hello!"))
        agent = Agent(name, model=model, tools=[Tool(each, act) for each in TOOLS])
        async with Atlas([agent], policy=Policy.load("policy.toml")) as atlas:
            await atlas.ask("Hello!")
        print(f"{name}:", ", ".join(spec.name for spec in model.requests[0].tools))


asyncio.run(main())
