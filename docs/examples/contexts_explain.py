"""Explain where each rule, tool and metadata value of a context comes from."""

import asyncio

from atlas_agents import Context, Rule

company = Context(name="company", metadata={"language": "English", "plan": "basic"}, rules=["Be polite."])
support = Context(company, name="support", metadata={"plan": "premium"})
support.rules = [Rule("Offer a refund.", when=lambda context: context.metadata.get("angry", False))]


async def main() -> None:
    print(await support.explain())


asyncio.run(main())
