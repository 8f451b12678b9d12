"""A supervisor hands a question to one of two specialists, in one stream."""

import asyncio

from atlas_agents import Agent, Atlas
from atlas_agents.team import supervisor
from atlas_agents.testing import Scripted, calls, says

chief = Agent(
    "chief", model=Scripted(calls("hand_off", agent="finance")), description="Routes questions to specialists."
)
finance = Agent("finance", model=Scripted(says("Receipts are kept for ten years.")), description="Taxes and invoices.")
legal = Agent("legal", model=Scripted(says("Ask me later.")), description="Contracts.")


async def main() -> None:
    atlas = Atlas([chief, finance, legal]).route(supervisor("chief"))
    stream = atlas.send("How long do we keep receipts?")
    async for event in stream:
        match event.type:
            case "stream:start":
                print(event.agent_id, "starts")
            case "run:handoff":
                print(event.from_agent, "hands off to", event.to_agent)
            case _:
                pass
    reply = await stream.reply()
    print(f"{reply.metadata['agent']}: {reply.text}")


asyncio.run(main())
