"""Keep a session across processes in one SQLite file."""

import asyncio

from atlas_agents import Agent, Atlas, SqliteStore
from atlas_agents.testing import Scripted, says


async def one_process(model: Scripted, words: str) -> None:
    store = SqliteStore("atlas.db")
    await store.open()
    try:
        async with Atlas([Agent("assistant", model=model)], store=store) as atlas:
            for stream in await atlas.recover():
                await stream.reply()
            reply = await atlas.ask(words, session="ana")
            print(reply.text, "|", len(atlas.conversation("ana")), "messages")
    finally:
        await store.close()


async def main() -> None:
    await one_process(Scripted(says("Hello, Ana.")), "I am Ana.")
    later = Scripted(says("You are Ana."))
    await one_process(later, "Who am I?")
    print([message.text for message in later.requests[0].messages])


asyncio.run(main())
