"""What the model reads when the daily limit is used up, or when it repeats a call."""

import asyncio

from atlas_agents import Limits, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


@tool
async def poll(job: str) -> str:
    """Get the status of a job."""
    return f"{job} is still running"


async def main() -> None:
    model = Scripted(*[calls("poll", job="A")] * 3, calls("poll", job="B"), calls("poll", job="C"), says("I give up."))
    async with in_memory_atlas(model, [poll], limits=Limits(per_day=3, repeats=2)) as atlas:
        await atlas.ask("Wait for the jobs")
        for row in await atlas.audit.records("default"):
            print(row.entry.meta["error"], "|", row.entry.meta["result"])


asyncio.run(main())
