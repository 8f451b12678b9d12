"""Run an agent without an Atlas: a typed answer, two turns of a conversation, and a stream."""

import asyncio
from dataclasses import dataclass

from atlas_agents import Agent, Conversation
from atlas_agents.testing import Scripted, says


@dataclass
class City:
    name: str
    country: str


model = Scripted(says('{"name": "Lima", "country": "Peru"}'), says("Hello Ana."), says("Ana."), says("One two three"))
agent = Agent("assistant", model=model)


async def main() -> None:
    result = await agent.run("Where is the Plaza Mayor?", output=City)
    print(result.output.country, result.usage.output_tokens)

    conversation = Conversation()
    await agent.ask("My name is Ana.", session=conversation)
    print((await agent.ask("What is my name?", session=conversation)).text)
    copy = Conversation.from_json(conversation.to_json())
    print([message.role for message in copy])


asyncio.run(main())
for text in agent.stream_sync("Count to three.").texts():  # without an event loop
    print(text)
