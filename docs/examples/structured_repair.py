"""Output that does not match the schema is sent back once for repair; then it is an error."""

import asyncio
from typing import Any

from atlas_agents import BadOutput
from atlas_agents.testing import Scripted, in_memory_atlas, says

SCHEMA: dict[str, Any] = {
    "title": "colour",
    "type": "object",
    "properties": {"name": {"type": "string"}, "share": {"type": "number", "maximum": 1}},
    "required": ["name", "share"],
}


async def main() -> None:
    model = Scripted(
        says('{"name": "blue", "share": 7}'),
        says('```json\n{"name": "blue", "share": 0.7}\n```'),
        says("Blue, I think."),
        says("Blue!"),
    )
    async with in_memory_atlas(model) as atlas:
        stream = atlas.send("How blue is the sea?", output=SCHEMA)
        await stream.reply()
        print(stream.output)
        print(model.requests[1].messages[-1].text.splitlines()[0])
        try:
            await atlas.ask("And the sky?", output=SCHEMA)
        except BadOutput as error:
            print("invalid:", error)


asyncio.run(main())
