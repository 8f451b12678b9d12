"""A function that returns a chat completion is a provider."""

import asyncio
from typing import Any

from atlas_agents import Agent, Atlas, Request


def parrot(request: Request) -> dict[str, Any]:
    """A sync provider runs in a thread of its own; its errors count as provider failures and are retried."""
    words = request.messages[-1].text
    return {"choices": [{"message": {"content": f"{words} {words}"}, "finish_reason": "stop"}]}


async def main() -> None:
    async with Atlas(agents=[Agent("polly", model=parrot)]) as atlas:
        print((await atlas.ask("Hello!")).text)


asyncio.run(main())
