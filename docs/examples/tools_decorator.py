"""A tool is a typed function; its schema and descriptions come from the function."""

import asyncio
import json
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from atlas_agents import tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


class Guest(BaseModel):
    name: str
    vegetarian: bool = False


@tool(timeout=5, effect="pure")
async def find_table(
    guests: list[Guest],
    hour: Annotated[int, Field(ge=11, le=23)],
    place: Literal["inside", "outside"] = "inside",
) -> str:
    """Find a free table.

    Args:
        guests: The guests.
        hour: The hour, from 11 to 23.
    """
    return f"{place}, at {hour}, for {' and '.join(guest.name for guest in guests)}"


async def main() -> None:
    print(json.dumps(find_table.parameters["properties"]["hour"]))
    model = Scripted(
        calls("find_table", guests=[{"name": "Ada"}], hour=25),
        calls("find_table", guests=[{"name": "Ada"}], hour=19),
        says("Done."),
    )
    async with in_memory_atlas(model, [find_table]) as atlas:
        async for event in atlas.send("A table for Ada tonight"):
            if event.type == "tool:result":
                print(event.status, event.error, "|", event.result)


asyncio.run(main())
