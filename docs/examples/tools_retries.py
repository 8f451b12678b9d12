"""What is tried again follows from the error and from the tool's effect."""

import asyncio

from atlas_agents import Transient, tool
from atlas_agents.testing import Scripted, VirtualClock, calls, house, says


class NotFound(Exception):
    status_code = 404


@tool(effect="pure")
async def look() -> str:
    """Look something up; the line is dead."""
    raise ConnectionError("the line is dead")


@tool(effect="pure")
async def fetch() -> str:
    """Fetch what is not there."""
    raise NotFound("no such page")


@tool
async def pay() -> str:
    """Pay; the line is dead."""
    raise ConnectionError("the line is dead")


@tool
async def book() -> str:
    """Book a room; the clerk has not begun yet, and says so."""
    raise Transient("the desk is busy")


async def main() -> None:
    clock, model = (
        VirtualClock(),
        Scripted(calls("look") + calls("fetch") + calls("pay") + calls("book"), says("Well.")),
    )
    async with house(model, [look, fetch, pay, book], clock=clock) as atlas:
        stream = atlas.send("Try all of them")
        await clock.advance(60)
        await stream.reply()
        rows = await atlas.audit.records("default")
        for row in sorted(rows, key=lambda row: row.entry.entity_id):
            meta = row.entry.meta
            print(f"{row.entry.entity_id}: {meta['retry_count']} retries, {meta['status']} | {meta['result']}")


asyncio.run(main())
