from atlas_agents import Agent

agent = Agent("helper", model="openai/gpt-5.6")
for text in agent.stream_sync("Count to three.").texts():
    print(text, end="", flush=True)
