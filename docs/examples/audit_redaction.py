"""Secrets are redacted by field name, by known value and by pattern."""

import asyncio
import os

from atlas_agents import tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

os.environ["SHOP_API_KEY"] = "canary-4711"  # a known value: its name marks it as a secret


@tool
async def log_in(name: str, password: str, headers: dict[str, str]) -> str:
    """Log in to the shop."""
    return f"{name} logged in with canary-4711"


async def main() -> None:
    headers = {"Cookie": "id=77", "X-Note": "try Bearer abcdefgh12345678"}
    model = Scripted(calls("log_in", name="ana", password="tiger-7", headers=headers), says("Done."))
    async with in_memory_atlas(model, [log_in]) as atlas:
        await atlas.ask("Log me in")
        (row,) = await atlas.audit.records("default")
        print(row.entry.meta["arguments"])
        print(row.entry.meta["result"])
        print("the model reads:", model.requests[-1].messages[-1].tool_results[0].result)


asyncio.run(main())
