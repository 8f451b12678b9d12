"""Enforce a plan's limits, and let an agent report on them."""

import asyncio

from atlas_agents import Agent, Atlas, MemoryStore, Plan, QuotaExceeded, User
from atlas_agents.builtin_tools.team import get_subscription_info, get_team_members
from atlas_agents.testing import Scripted, calls, says

model = Scripted(calls("get_team_members", role_filter="admin"), says("Ann is the admin."))
assistant = Agent("assistant", model=model, tools=[get_team_members, get_subscription_info])


async def main() -> None:
    async with Atlas([assistant], store=MemoryStore()) as atlas:
        await atlas.tenancy.put_user(User("ann", role="admin"))
        await atlas.tenancy.put_user(User("bob", status="invited"))
        print((await atlas.ask("Who is the admin?", user="ann")).text)
        used = await atlas.tenancy.used()
        await atlas.tenancy.put_plan(Plan("starter", tokens=used.tokens, seats=3))
        await atlas.tenancy.use_plan("starter")
        try:
            await atlas.ask("And who else is there?")
        except QuotaExceeded as spent:
            print(str(spent).split(" (")[0].replace(f"{used.tokens:,}", "N"))
        print("seats:", used.seats, "of", (await atlas.tenancy.plan()).seats)


asyncio.run(main())
