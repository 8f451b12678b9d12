from atlas_agents import Agent

agent = Agent("helper", providers=["openai/gpt-5.6", "anthropic/claude-opus-4-6"])
print(agent.run_sync("Why is the sky blue?").answer)
