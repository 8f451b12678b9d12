"""Limit what the model is sent; the stored conversation stays complete."""

import asyncio

from atlas_agents import History
from atlas_agents.testing import Scripted, in_memory_atlas, says


async def main() -> None:
    model = Scripted(says("one"), says("two"), says("three"))
    async with in_memory_atlas(model, history=History(max_messages=3)) as atlas:
        for question in ("first?", "second?", "third?"):
            await atlas.ask(question)
        print([message.text for message in model.requests[-1].messages])
        print(len(atlas.conversation()))


asyncio.run(main())
