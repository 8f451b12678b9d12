"""Test an agent with a scripted model and no network."""

import asyncio

from atlas_agents import Agent, Atlas, tool
from atlas_agents.testing import Scripted, calls, says


@tool
async def get_weather(city: str) -> str:
    """Get today's weather in a city."""
    return f"Sunny in {city}"


def weather_agent(model: Scripted) -> Agent:
    """Build the agent under test with the given model."""
    return Agent("assistant", model=model, system_prompt="Be brief.", tools=[get_weather])


async def test_the_agent_tells_the_weather() -> None:
    model = Scripted(calls("get_weather", city="Lima"), says("Sunny."))
    async with Atlas(agents=[weather_agent(model)]) as atlas:
        reply = await atlas.ask("Weather in Lima?")
    assert reply.text == "Sunny."
    assert model.requests[0].system == "Be brief."
    assert model.requests[1].messages[-1].tool_results[0].result == "Sunny in Lima"


if __name__ == "__main__":  # not needed with pytest and pytest-asyncio
    asyncio.run(test_the_agent_tells_the_weather())
    print("passed")
