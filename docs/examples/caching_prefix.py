"""Prompt caching: the part of the prompt that a vendor can keep, and what it saves."""

import asyncio
from datetime import datetime

from atlas_agents import Agent, Atlas, Price, Rule, Usage
from atlas_agents.testing import Scripted, says

model = Scripted(says("It is in."), says("It is in."))  # or "anthropic/claude-opus-5-5"
late = False
librarian = Agent(
    "librarian",
    model=model,
    system_prompt="You help the readers of a library.",
    rules=[Rule(f"It is {datetime(2026, 11, 16):%A}; close soon.", when=lambda _: late), "Be brief."],
    settings={"cache": "1h"},  # the default is "5m"; "off" turns caching off
)


async def main() -> None:
    global late
    async with Atlas(agents=[librarian]) as atlas:
        await atlas.ask("Do you have The Glass Bead Game?")
        late = True
        await atlas.ask("And Demian?")
    first, second = model.requests
    print(second.system)
    print("the same beginning:", first.stable_system == second.stable_system)

    price = Price(input=4, output=20, cached=0.2, cache_write=5)  # dollars per million tokens
    usage = Usage(input_tokens=50_000, output_tokens=500, cached_tokens=45_000, cache_write_tokens=5_000)
    print(f"${price.cost(usage):.3f}, and without caching ${price.cost(usage) + price.savings(usage):.3f}")


asyncio.run(main())
