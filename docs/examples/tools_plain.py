"""Tools from functions without type hints: one string input, or explicit parameters."""

import asyncio

from atlas_agents import Tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


async def shout(text: str) -> str:
    return text.upper() + "!"


async def repeat(word: str, times: int) -> list[str]:
    return [word] * times


tools = [
    Tool("shout", shout, description="Say something loudly."),
    Tool("repeat", repeat, description="Say a word several times.", parameters={"word": str, "times": int}),
]
model = Scripted(calls("shout", input="hello") + calls("repeat", word="ha", times=3), says("Done."))


async def main() -> None:
    async with in_memory_atlas(model, tools) as atlas:
        atlas.on("tool:result", lambda event: print(event.name, event.result))
        await atlas.ask("Make some noise")


asyncio.run(main())
