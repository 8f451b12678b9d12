"""Guardrails of one agent, without an Atlas."""

import asyncio

from atlas_agents import Agent
from atlas_agents.guardrails import output_filter, personal_data
from atlas_agents.testing import Scripted, says

model = Scripted(says("Thanks, I will write to you. Project Falcon starts in May."))
agent = Agent("support", model=model, interceptors=[personal_data(), output_filter(["Project Falcon"])])


async def main() -> None:
    print((await agent.ask("My address is ann@example.com")).text)
    print("The model saw:", model.requests[0].messages[0].text)


asyncio.run(main())
