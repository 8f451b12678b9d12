"""Call an agent without an Atlas; the agent's own context keeps the conversation."""

import asyncio

from atlas_agents import Agent

assistant = Agent("assistant", model="openai/gpt-5.2", system_prompt="Be brief.")


async def main() -> None:
    messages, success, error = await assistant.call("Hello!")
    print(success, error)
    for message in messages:
        print(f"{message.role}: {message.text}")
    await assistant.close()


asyncio.run(main())
