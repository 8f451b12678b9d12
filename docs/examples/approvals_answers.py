"""The four answers to an approval request: once, session, always and no."""

import asyncio
from collections.abc import Iterator

from atlas_agents import Question, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

answers: Iterator[str] = iter(["once", "session", "always", "no"])


@tool(confirm=True)
async def buy(item: str, count: int = 1) -> str:
    """Buy something."""
    print("  bought", count, item)
    return "bought"


def approve(question: Question) -> str:
    answer = next(answers)
    print(f"  {question.arguments}? {answer}")
    return answer


async def main() -> None:
    tea, two = calls("buy", item="tea"), calls("buy", item="tea", count=2)
    model = Scripted(tea, tea, tea, says("Done."), tea, tea, two, says("Done."))
    async with in_memory_atlas(model, [buy], approve=approve) as atlas:
        for session in ("monday", "tuesday"):
            print(session)
            await atlas.ask("Buy tea, and again", session=session)


asyncio.run(main())
