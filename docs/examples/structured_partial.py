"""A structured value that grows while the model writes it."""

import asyncio

from pydantic import BaseModel

from atlas_agents import Agent, Atlas
from atlas_agents.testing import Scripted, says


class Trip(BaseModel):
    title: str
    days: int
    stops: list[str]


model = Scripted(says('{"title": "Along the coast", "days": 3, "stops": ["Porto", "Nazaré"]}'))


async def main() -> None:
    async with Atlas([Agent("planner", model=model)]) as atlas:
        async for trip in atlas.send("Plan a trip.", output=Trip).partials():
            print(repr(trip))


asyncio.run(main())
