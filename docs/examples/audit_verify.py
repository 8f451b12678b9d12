"""Each row contains the hash of the previous row, so later changes are detected."""

import asyncio

import msgspec

from atlas_agents import tool, verify
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says


@tool
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


async def main() -> None:
    model = Scripted(calls("pay", euros=1) + calls("pay", euros=900) + calls("pay", euros=3), says("Done."))
    async with in_memory_atlas(model, [pay]) as atlas:
        await atlas.ask("Pay the bills")
        first, second, third = await atlas.audit.records("default")

    print(verify([first, second, third]))
    entry = msgspec.structs.replace(second.entry, meta={**second.entry.meta, "arguments": {"euros": 2}})
    print(verify([first, msgspec.structs.replace(second, entry=entry), third]))
    print(verify([first, third]))


asyncio.run(main())
