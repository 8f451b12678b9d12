"""Set a deadline for approvals and require a second person."""

import asyncio

from atlas_agents import Answer, Approvals, Question, tool
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says


@tool(confirm=True)
async def transfer(euros: int) -> str:
    """Send money."""
    return f"sent {euros} euros"


async def answer(question: Question) -> Answer:
    match question.arguments["euros"]:
        case 1:
            return Answer("once", by="ana")
        case 2:
            return Answer("once", by="ben")
        case _:
            await asyncio.Event().wait()  # no answer before the deadline
            return Answer("no")


async def main() -> None:
    clock = VirtualClock()
    model = Scripted(
        calls("transfer", euros=1) + calls("transfer", euros=2) + calls("transfer", euros=3), says("Done.")
    )
    async with in_memory_atlas(
        model, [transfer], approve=Approvals(answer, deadline=60, two_person=True), clock=clock
    ) as atlas:
        stream = atlas.send("Send 1, 2 and 3 euros", user="ana")
        await clock.advance(60)
        await stream.reply()
        for result in atlas.conversation().messages[2].tool_results:
            print(result.status, result.error, result.result)


asyncio.run(main())
