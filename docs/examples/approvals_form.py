"""A tool asks the user for values while it runs."""

import asyncio

from atlas_agents import Answer, Choice, Field, Form, Question, ToolContext, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


@tool
async def book(city: str, context: ToolContext) -> str:
    """Book a journey."""
    seat = Field("seat", "choice", required=True, choices=(Choice("aisle"), Choice("window")))
    filled = await context.ask(Form("Booking", f"To {city}: where do you want to sit?", (seat,)))
    return f"booked, {filled.values['seat']}" if filled.action == "accept" else f"not booked: {filled.action}"


async def approve(question: Question) -> Answer:
    print(question.title, "|", question.message)
    return Answer("once", {"seat": "window"}, by="ana")


async def main() -> None:
    model = Scripted(calls("book", city="Lima"), says("Have a good journey."))
    async with in_memory_atlas(model, [book], approve=approve) as atlas:
        await atlas.ask("To Lima, please")
        print(model.requests[-1].messages[-1].tool_results[0].result)
        (row,) = await atlas.audit.records("default")
        print(row.entry.meta["asked"])


asyncio.run(main())
