"""Two keys of one vendor as one provider: one is rate limited, the other answers."""

import asyncio

from atlas_agents import Agent, Atlas, Balanced, ProviderError, RateLimit
from atlas_agents.testing import Scripted, fails, says

limited = Scripted(fails(ProviderError("slow down", "rate_limit", retry_after=20)), id="vendor")
healthy = Scripted(*[says(f"Answer {number}.") for number in range(1, 4)], id="vendor")

both = Balanced([limited, healthy], RateLimit(requests=500, tokens=200_000, at_once=8))


async def main() -> None:
    async with Atlas(agents=[Agent("assistant", model=both)]) as atlas:
        for _ in range(3):
            print((await atlas.ask("Hello?")).text)


asyncio.run(main())
