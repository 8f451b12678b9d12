"""Get the answer as a Python value."""

import asyncio

from pydantic import BaseModel

from atlas_agents import Agent, Atlas


class City(BaseModel):
    name: str
    country: str
    people: int


assistant = Agent("assistant", model="openai/gpt-5.2")


async def main() -> None:
    async with Atlas(agents=[assistant]) as atlas:
        result = await atlas.run("Tell me about Lima.", output=City)
        city: City = result.output
        print(city.name, city.country, city.people)


asyncio.run(main())
