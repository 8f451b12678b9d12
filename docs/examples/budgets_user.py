"""Limit what each turn and each user may use, and show what is left."""

import asyncio

from atlas_agents import Agent, Atlas, Budget, BudgetExceeded, MemoryStore, Price
from atlas_agents.testing import Scripted, calls, says


async def search(query: str) -> str:
    """Search the archive."""
    return f"Nothing about {query}."


model = Scripted(says("Hello, Ann."), says("I will look it up.") + calls("search", query="Atlas"), says("Found it."))
assistant = Agent("assistant", model=model, tools=[search], budget=Budget(tokens=50_000, seconds=120))
per_user = Budget(requests=2, dollars=5.00, scope="user", per="day")


async def main() -> None:
    prices = {"scripted": Price(input=1, output=2)}
    async with Atlas([assistant], store=MemoryStore(), budgets=per_user, prices=prices) as atlas:
        print((await atlas.ask("Hi!", user="ann")).text)
        try:
            await atlas.ask("What do we know about Atlas?", user="ann")
        except BudgetExceeded as ended:
            print(str(ended).split(";")[0])
            print("So far:", ended.partial)
        for each in await atlas.budget_status(user="ann"):
            print(f"{each.scope} {each.subject}: {each.used:.4f} of {each.limit:g} {each.measure} per {each.per}")


asyncio.run(main())
