"""Model settings of an agent, and of one turn."""

import asyncio

from atlas_agents import Agent, Atlas, ConfigError
from atlas_agents.testing import Scripted, says

model = Scripted(says("4."), says("Peano defined it so."))  # or "anthropic/claude-opus-5-5"
assistant = Agent("assistant", model=model, settings={"effort": "low", "seed": 7})


async def main() -> None:
    async with Atlas(agents=[assistant]) as atlas:
        print((await atlas.ask("2 + 2?")).text)
        print((await atlas.ask("Prove it.", settings={"effort": "high", "max_tokens": 30_000})).text)
    for request in model.requests:
        print(request.settings)

    try:
        Agent("careless", model=model, settings={"efort": "high"})
    except ConfigError as error:
        print(str(error).partition(";")[0])


asyncio.run(main())
