"""How a tool fails, and what the model reads."""

import asyncio
import logging

from atlas_agents import ToolFailed, Transient, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

logging.getLogger("atlas_agents").setLevel(logging.CRITICAL)  # hide the logged stack trace of `buggy`
tries: list[int] = []


@tool
async def strict(amount: int) -> str:
    """Pay an amount."""
    raise ToolFailed(f"insufficient funds: balance 5, requested {amount}")


@tool
async def flaky() -> str:
    """Query a server that is busy at first."""
    tries.append(1)
    if len(tries) < 2:
        raise Transient("the server is busy")
    return f"answered on try {len(tries)}"


@tool
async def buggy() -> float:
    """Divide by zero."""
    return 1 / 0


@tool(timeout=0.1)
async def slow() -> None:
    """Take too long."""
    await asyncio.sleep(60)


async def main() -> None:
    model = Scripted(calls("strict", amount=9) + calls("flaky") + calls("buggy") + calls("slow"), says("Done."))
    async with in_memory_atlas(model, [strict, flaky, buggy, slow]) as atlas:
        await atlas.ask("Try all of them")
        for result in atlas.conversation().messages[2].tool_results:
            print(result.status, result.error, "|", result.result)


asyncio.run(main())
