from atlas_agents import Agent

agent = Agent("helper", model="openai/gpt-5.6")
print(agent.run_sync("Why is the sky blue?").answer)
