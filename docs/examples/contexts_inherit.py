"""Contexts inherit: the company's rules apply to its teams, and an agent adds its own."""

import asyncio

from atlas_agents import Agent, Atlas, Context, Rule, tool
from atlas_agents.testing import Scripted, says


@tool
async def look_up(customer: str) -> str:
    """Look a customer up."""
    return f"{customer} is a premium customer"


company = Context(name="company", metadata={"language": "English", "plan": "basic"}, rules=["Be polite."])
support = Context(company, name="support", metadata={"plan": "premium"}, tools=[look_up])
late = Rule("Say that we are closed.", when=lambda context: context.metadata.get("hour", 12) >= 18)

model = Scripted(says("Good day."), says("Good evening, we are closed."))
agent = Agent("anna", model=model, system_prompt="You are Anna.", contexts=[support], rules=[late])


async def main() -> None:
    print(agent.metadata.all(), [tool.name for tool in agent.tools])
    async with Atlas(agents=[agent]) as atlas:
        await atlas.ask("Hello?")
        company.metadata.set("hour", 20)  # visible at once in every context that inherits it
        await atlas.ask("Hello again?")
    for request in model.requests:
        print("---")
        print(request.system)


asyncio.run(main())
