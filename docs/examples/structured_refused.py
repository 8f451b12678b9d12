"""How often an answer may be corrected, and what a failed run had done by then."""

import asyncio

from atlas_agents import BadOutput, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


@tool
async def measure(what: str) -> str:
    """Measure something."""
    return "about two metres"


async def main() -> None:
    model = Scripted(
        says('The length is {"value": 2}, roughly.'),
        calls("measure", what="the table"),
        says("Two metres."),
    )
    async with in_memory_atlas(model, [measure]) as atlas:
        result = await atlas.run("How long is the table?", output=int)
        print(result.output)
        try:
            await atlas.run("Measure it.", output=int, output_retries=0)
        except BadOutput as error:
            print("invalid:", error)
            print([step.tool for step in error.result.steps], error.result.answer)


asyncio.run(main())
