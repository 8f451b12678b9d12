"""Ask a person before a page is fetched, because the URL itself can leak a secret."""

import asyncio
from contextlib import AsyncExitStack

from atlas_agents import Policy, Question
from atlas_agents.builtin_tools.web.fetch import url_fetch
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


async def approve(question: Question) -> bool:
    print(f"{question.tool}? {question.arguments}")
    return "password" not in str(question.arguments)


async def main() -> None:
    async with AsyncExitStack() as opening:
        model = Scripted(calls("url_fetch", url="https://example.org/?password=hunter2"), says("I could not."))
        policy = Policy.load("web_careful.toml")
        atlas = in_memory_atlas(model, [url_fetch(opening)], policy=policy, approve=approve)
        await opening.enter_async_context(atlas)
        atlas.on("tool:result", lambda event: print(event.status, event.error))
        print((await atlas.ask("Read that page")).text)


asyncio.run(main())
