"""Show what a call would change, and bind the approval to that content."""

import asyncio
from typing import Any

from atlas_agents import Question, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

drafts = {"tea": "Green tea is made from unoxidised leaves."}


def preview(arguments: dict[str, str]) -> str:
    return f"Will be published:\n{drafts[arguments['draft']]}"


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


def show(event: Any) -> None:
    print(event.error or event.result)


async def main() -> None:
    model = Scripted(*[reply for _ in range(2) for reply in (calls("publish", draft="tea"), says("ok"))])
    async with in_memory_atlas(model, [publish], approve=approve) as atlas:
        atlas.on("tool:result", show)
        await atlas.ask("Publish it.")
        await atlas.ask("Publish it again.", session="hasty")


asyncio.run(main())
