"""A function is a provider too, if it returns what a chat completion looks like."""

import asyncio
from typing import Any

from atlas_agents import Agent, Atlas, Request


def parrot(request: Request) -> dict[str, Any]:
    """Sync is fine: it runs in a thread of its own. Errors are this provider's failures and are retried as such."""
    words = request.messages[-1].text
    return {"choices": [{"message": {"content": f"{words} {words}"}, "finish_reason": "stop"}]}


async def main() -> None:
    async with Atlas(agents=[Agent("polly", model=parrot)]) as atlas:
        print((await atlas.ask("Hello!")).text)


asyncio.run(main())
