from atlas_agents import Agent, Conversation

agent, conversation = Agent("helper", model="openai/gpt-5.6"), Conversation()
agent.run_sync("My name is Ana.", session=conversation)
print(agent.run_sync("What is my name?", session=conversation).answer)
