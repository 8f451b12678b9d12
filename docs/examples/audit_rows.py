"""One audit row per call, including rejected calls."""

import asyncio

import msgspec

from atlas_agents import MemoryAudit, tool
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says


@tool(effect="pure")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def main() -> None:
    model = Scripted(calls("add", a=1, b=2) + calls("add", a=1, b="two") + calls("divide"), says("3."))
    audit = MemoryAudit()
    async with in_memory_atlas(model, [add], audit=audit, clock=VirtualClock()) as atlas:
        await atlas.ask("What is 1 + 2?", user="ana")
    rows = await audit.records()
    for row in rows:
        print(row.seq, row.entry.message, "|", row.entry.meta["error"])
    entry = msgspec.to_builtins(rows[0].entry)
    entry["meta"] |= {"run_id": "…", "call_id": "…"}  # different in every run
    print(msgspec.json.format(msgspec.json.encode(entry)).decode())


asyncio.run(main())
