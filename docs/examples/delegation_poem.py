"""An agent delegates a task and continues when the result arrives."""

import asyncio
from typing import Any

from atlas_agents import Agent, Atlas, JobRow, SqliteStore
from atlas_agents.builtin_tools.team import delegate_task
from atlas_agents.testing import Scripted, calls, says

delegate = calls(
    "delegate_task",
    target_agent="poet",
    task_description="Two lines about roses.",
    priority="high",
    deadline="30 minutes",
)
lead = Agent(
    "lead",
    model=Scripted(delegate, says("The poet is working on it."), says("Here it is: roses are red.")),
    tools=[delegate_task],
)
poet = Agent("poet", model=Scripted(says("Roses are red, violets are blue.")))


async def main() -> None:
    store = SqliteStore("atlas.db")
    await store.open()
    seen: list[str] = []
    answered = asyncio.Event()

    def changed(job: JobRow) -> None:
        seen.append(job.state)

    async def received(event: Any) -> None:
        if event.message.text.startswith("Here it is"):
            answered.set()

    async with Atlas([lead, poet], store=store) as atlas:
        atlas.jobs.on_change(changed)
        atlas.on("message:received", received)
        async with atlas.jobs.running():
            print((await atlas.ask("A poem, please.")).text)
            await answered.wait()
        print(" → ".join(seen))
        (job,) = await atlas.jobs.list()
        print(f"{job.asker_agent} asked, {job.agent_id} answered: {job.result}")
        print((await atlas.sessions.history("default"))[-1].text)
    await store.close()


asyncio.run(main())
