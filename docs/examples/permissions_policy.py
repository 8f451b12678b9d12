"""A policy in code: one entry per tool and name; the most specific entry wins."""

import asyncio

from atlas_agents import Agent, Atlas, Policy, Tool
from atlas_agents.testing import Scripted, says

policy = Policy(
    groups={"writers": ["ana", "ben"]},
    tools={
        "read": {"*": "yes"},
        "publish": {"writers": "ask", "ana": "yes", "editor": "yes"},
        "delete": {"editor": "ask", "ben": "no"},
    },
)


async def act(text: str) -> str:
    return text


async def main() -> None:
    tools = [Tool(name, act) for name in ("read", "publish", "delete", "burn")]
    for name, role in [("ana", ""), ("ben", "editor"), ("cid", "editor"), ("eve", "")]:
        model = Scripted(says("Hello!"))
        async with Atlas([Agent(name, role=role, model=model, tools=tools)], policy=policy) as atlas:
            await atlas.ask("Hello!")
        print(name, "is offered", [spec.name for spec in model.requests[0].tools])


asyncio.run(main())
