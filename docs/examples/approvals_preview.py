"""A person who is asked sees what would change, and their yes holds only as long as that is so."""

import asyncio
from typing import Any

from atlas_agents import Question, tool
from atlas_agents.testing import Scripted, calls, house, says

drafts = {"tea": "Green tea is made from unoxidised leaves."}


def preview(arguments: dict[str, str]) -> str:
    return f"The world will read:\n{drafts[arguments['draft']]}"


def binds(arguments: dict[str, str]) -> str:
    return drafts[arguments["draft"]]


@tool(confirm=True, preview=preview, binds=binds)
async def publish(draft: str) -> str:
    """Publish a draft."""
    return f"published: {drafts[draft]}"


async def approve(question: Question) -> str:
    print(question.preview)
    if question.session == "hasty":
        drafts["tea"] += " Buy now!"
    return "once"


def tell(event: Any) -> None:
    print(event.error or event.result)


async def main() -> None:
    model = Scripted(*[reply for _ in range(2) for reply in (calls("publish", draft="tea"), says("ok"))])
    async with house(model, [publish], approve=approve) as atlas:
        atlas.on("tool:result", tell)
        await atlas.ask("Publish it.")
        await atlas.ask("Publish it again.", session="hasty")


asyncio.run(main())
