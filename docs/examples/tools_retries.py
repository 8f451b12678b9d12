"""Whether a call is retried depends on the error and on the tool's effect."""

import asyncio

from atlas_agents import Transient, tool
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says


class NotFound(Exception):
    status_code = 404


@tool(effect="pure")
async def look() -> str:
    """Look something up over a broken connection."""
    raise ConnectionError("connection lost")


@tool(effect="pure")
async def fetch() -> str:
    """Fetch a missing page."""
    raise NotFound("page not found")


@tool
async def pay() -> str:
    """Pay over a broken connection."""
    raise ConnectionError("connection lost")


@tool
async def book() -> str:
    """Book a table; the server rejects the request before doing anything."""
    raise Transient("the server is busy")


async def main() -> None:
    clock, model = (
        VirtualClock(),
        Scripted(calls("look") + calls("fetch") + calls("pay") + calls("book"), says("Well.")),
    )
    async with in_memory_atlas(model, [look, fetch, pay, book], clock=clock) as atlas:
        stream = atlas.send("Try all of them")
        await clock.advance(60)
        await stream.reply()
        rows = await atlas.audit.records("default")
        for row in sorted(rows, key=lambda row: row.entry.entity_id):
            meta = row.entry.meta
            print(f"{row.entry.entity_id}: {meta['retry_count']} retries, {meta['status']} | {meta['result']}")


asyncio.run(main())
