"""Delegation that would be circular or too deep is refused, and the model reads why."""

import asyncio

from atlas_agents import Agent, Atlas, Delegation, MemoryStore
from atlas_agents.builtin_tools.team import delegate_task
from atlas_agents.testing import Reply, Scripted, calls, says


def ask(agent: str) -> Reply:
    return calls("delegate_task", target_agent=agent, task_description="Do it.")


async def main() -> None:
    a = Agent("a", model=Scripted(ask("b"), says("I asked b."), says("Fine.")), tools=[delegate_task])
    b = Agent("b", model=Scripted(ask("a") + ask("c"), says("Then I do it myself.")), tools=[delegate_task])
    c = Agent("c", model=Scripted(says("Never asked.")))
    async with Atlas([a, b, c], store=MemoryStore(), delegation=Delegation(depth=1)) as atlas:
        atlas.on("tool:result", lambda event: print(f"{event.error}: {event.result}" if event.error else "ok"))
        async with atlas.jobs.running():
            await atlas.ask("Go.")
            (job,) = await atlas.jobs.list()
            print((await atlas.jobs.ended(job.id)).result)


asyncio.run(main())
