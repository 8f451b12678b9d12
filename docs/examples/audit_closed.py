"""A tool with side effects does not start when the audit log cannot be written."""

import asyncio

from atlas_agents import MemoryAudit, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas


class FullDisk(MemoryAudit):
    async def ready(self) -> None:
        raise OSError("the audit disk is full")


@tool
async def pay(euros: int) -> str:
    """Pay."""
    print("paid", euros)
    return "paid"


async def main() -> None:
    async with in_memory_atlas(Scripted(calls("pay", euros=5)), [pay], audit=FullDisk()) as atlas:
        try:
            await atlas.ask("Pay the bill")
        except OSError as error:
            print("not paid:", error)


asyncio.run(main())
