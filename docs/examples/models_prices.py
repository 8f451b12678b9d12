"""What a turn costs, and a model that the catalogue does not know."""

import asyncio

from atlas_agents import Agent, Atlas, Price, Usage, find_price, find_profile, register_model
from atlas_agents.testing import Scripted, says


async def main() -> None:
    print(find_price("us.anthropic.claude-opus-5-5"))  # Bedrock, in a region
    opus = find_profile("anthropic/claude-opus-5.5")  # as OpenRouter names it
    print(opus.context_window, opus.output_limit, opus.inputs)

    price = Price(2, 10, cached=0.2, cache_write=2.5)
    usage = Usage(input_tokens=12_000, output_tokens=500, cached_tokens=10_000, cache_write_tokens=1_000)
    print(f"${price.cost(usage):.4f}")

    register_model("my-model", price=Price(0.5, 1.5), context_window=32_000)
    async with Atlas([Agent("assistant", model=Scripted(says("Hello!"), id="my-model"))]) as atlas:
        result = await atlas.run("Hi.")
        print(result.usage.input_tokens, result.usage.output_tokens, result.usage.cost)


asyncio.run(main())
