"""A recurring task, and when it is due across a daylight saving change."""

import asyncio
from datetime import datetime
from zoneinfo import ZoneInfo

from atlas_agents import Agent, Atlas, MemoryStore, Schedule, next_due_times
from atlas_agents.testing import Scripted, says

BERLIN = ZoneInfo("Europe/Berlin")


async def main() -> None:
    night = Schedule("backup", "30 2 * * *", "clerk", "Check the backup.", zone="Europe/Berlin")
    spring = int(datetime(2027, 3, 27, 12, tzinfo=BERLIN).timestamp() * 1000)
    for time in next_due_times(night, spring, 2):
        print(datetime.fromtimestamp(time / 1000, BERLIN).isoformat(timespec="minutes"))

    clerk = Agent("clerk", model=Scripted(says("The backup is fine.")))
    async with Atlas([clerk], store=MemoryStore()) as atlas, atlas.jobs.running():
        await atlas.jobs.schedules.add(night)
        job = await atlas.jobs.schedules.run("backup")  # run it now, outside its schedule
        print(job.kind, "-", (await atlas.jobs.ended(job.id)).result)


asyncio.run(main())
