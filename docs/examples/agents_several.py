"""Two agents in one Atlas: a message goes to the current agent unless it names another."""

import asyncio

from atlas_agents import Agent, Atlas, UnknownAgent

writer = Agent("writer", model="openai/gpt-5.2", system_prompt="You write.")
critic = Agent("critic", model="anthropic/claude-opus-4-6", system_prompt="You find faults.")


async def main() -> None:
    async with Atlas(agents=[writer, critic]) as atlas:
        draft = await atlas.ask("Write a headline about rain.")
        print("writer:", draft.text)

        verdict = await atlas.ask("What is wrong with it?", agent_id="critic")
        print("critic:", verdict.text)

        atlas.set_agent_by_id("critic")  # the current agent from now on
        try:
            await atlas.ask("And now?", agent_id="editor")
        except UnknownAgent as error:
            print(error)


asyncio.run(main())
