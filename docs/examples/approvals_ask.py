"""Ask a person for approval before a tool runs."""

import asyncio

from atlas_agents import Agent, Atlas, Question, tool
from atlas_agents.testing import Scripted, calls, says


@tool(confirm=True)
async def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


@tool(confirm=lambda arguments: arguments["amount"] > 100)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


async def approve(question: Question) -> bool:
    """Ask in any way you like: terminal, window, email."""
    print(f"{question.title}? {question.arguments}")
    return question.tool == "pay"


async def main() -> None:
    model = Scripted(
        calls("delete", path="notes.txt") + calls("pay", amount=5) + calls("pay", amount=500), says("Done.")
    )
    agent = Agent("assistant", model=model, tools=[delete, pay])
    async with Atlas(agents=[agent], approve=approve) as atlas:
        atlas.on("tool:result", lambda event: print(event.status, event.error, event.result))
        await atlas.ask("Delete my notes and pay the bills")


asyncio.run(main())
