"""Fork a session, and export it as JSON lines."""

import asyncio

from atlas_agents import Agent, Atlas, MemoryStore
from atlas_agents.testing import Scripted, says


async def main() -> None:
    store = MemoryStore()
    await store.open()
    model = Scripted(says("Lima."), says("Sunny."), says("Rainy."))
    async with Atlas([Agent("assistant", model=model)], store=store) as atlas:
        await atlas.ask("Where to?", session="trip")
        answer = (await atlas.sessions.history("trip"))[-1]
        await atlas.ask("And the weather?", session="trip")

        await atlas.sessions.fork("trip", at=answer.id, to="other trip")
        await atlas.ask("And the weather in Oslo?", session="other trip")
        for key in ("trip", "other trip"):
            print(key, [message.text for message in await atlas.sessions.history(key)])

        lines = [line async for line in atlas.sessions.export("trip")]
        await atlas.sessions.load(lines, key="copy")
        print(len(lines), "lines,", [session.key for session in await atlas.sessions.list()])


asyncio.run(main())
