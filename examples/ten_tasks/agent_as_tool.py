from atlas_agents import Agent

historian = Agent("historian", model="openai/gpt-5.6", description="Knows history.")
agent = Agent("helper", model="openai/gpt-5.6", tools=[historian.as_tool()])
print(agent.run_sync("When was Rome founded?").answer)
