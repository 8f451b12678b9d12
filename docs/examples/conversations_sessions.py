"""A session is a named conversation; turns of one session run one after another, sessions run in parallel."""

import asyncio

from atlas_agents import Agent, Atlas

assistant = Agent("assistant", model="openai/gpt-5.2")


async def main() -> None:
    async with Atlas(agents=[assistant]) as atlas:
        await asyncio.gather(
            atlas.ask("My name is Ada.", session="ada"),
            atlas.ask("My name is Bob.", session="bob"),
        )
        reply = await atlas.ask("What is my name?", session="ada")
        print(reply.text)
        print(len(atlas.conversation("ada")), len(atlas.conversation("bob")))


asyncio.run(main())
