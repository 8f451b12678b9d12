from atlas_agents import Agent


async def weather(city: str) -> str:
    """Return today's weather in a city."""
    return f"Sunny in {city}"


agent = Agent("helper", model="openai/gpt-5.6", tools=[weather])
print(agent.run_sync("How is the weather in Lima?").answer)
