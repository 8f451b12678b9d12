"""Go on from a step of a stored run with another prompt; tools are simulated from the record."""

import asyncio

from atlas_agents import Agent, Atlas, tool
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import RunRecord, Scripted, calls, fork, list_steps, says


@tool
async def refund(order: int) -> str:
    """Refund an order."""
    print("refunded order", order)
    return f"Order {order} was refunded."


def clerk(model: Scripted) -> Agent:
    return Agent("clerk", model=model, tools=[refund], system_prompt="You are the clerk of a shop.")


async def main() -> None:
    store = MemoryStore()
    model = Scripted(calls("refund", order=7), says("Done."))
    async with Atlas([clerk(model)], store=store) as atlas:
        stream = atlas.send("Refund order 7.")
        await stream.reply()

    for step in list_steps(await RunRecord.read(store, stream.stream_id)):
        print(step.number, step.kind, step.text)

    other = clerk(Scripted(calls("refund", order=7), calls("refund", order=8), says("I refunded order 7.")))
    result = await fork(stream.stream_id, other, 2, system_prompt="Refund nothing that was not asked for.", store=store)
    for call in result.calls:
        print(call.tool, call.arguments, call.source)
    print(result.answer)


asyncio.run(main())
