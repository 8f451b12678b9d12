"""Answer an approval request in a different process from the one that asked."""

import asyncio

from atlas_agents import Agent, Approvals, Atlas, SqliteStore, tool
from atlas_agents.testing import Scripted, calls, says


@tool(confirm=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    print(f"paying {amount}")
    return "paid"


async def open_atlas(model: Scripted) -> Atlas:
    store = SqliteStore("atlas.db")
    await store.open()
    return Atlas([Agent("clerk", model=model, tools=[pay])], store=store, approve=Approvals(wait=True))


async def main() -> None:
    atlas = await open_atlas(Scripted(calls("pay", amount=40)))
    async for event in atlas.send("Pay the bill.", session="bills"):
        if event.type == "approval:asked":
            print(event.question.title, event.question.arguments)
            break
    await atlas.close()  # the turn and its approval request stay open

    later = await open_atlas(Scripted(says("It is paid.")))
    async with later:
        (stream,) = await later.recover()
        (question,) = await later.pending()
        await later.answer(question.id, "once")
        print((await stream.reply()).text)


asyncio.run(main())
