from pydantic import BaseModel

from atlas_agents import Agent


class City(BaseModel):
    name: str
    country: str


agent = Agent("helper", model="openai/gpt-5.6")
print(agent.run_sync("Where were the Olympics in 2012?", output=City).output)
