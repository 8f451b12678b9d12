"""Offer a tool to the model only when the user's message asks for it."""

import asyncio

from atlas_agents import Agent, Atlas, Interceptor, offered_on
from atlas_agents.builtin_tools.telegram import KEYWORDS, NAME, telegram_tool
from atlas_agents.testing import Scripted, says


async def main() -> None:
    model = Scripted(says("Sunny."), says("I will."))
    agent = Agent("assistant", model=model, tools=[telegram_tool(None)])
    wanted = Interceptor(request=offered_on({NAME: KEYWORDS}))
    async with Atlas([agent], interceptors=[wanted]) as atlas:
        for words in ("How is the weather?", "Ping me when it rains."):
            await atlas.ask(words)
            print(words, [tool.name for tool in model.requests[-1].tools])


asyncio.run(main())
