"""Call a tool without a model, under the same rules."""

import asyncio

from atlas_agents import Agent, Atlas, tool


@tool
async def book_table(guests: int) -> str:
    """Book a table."""
    return f"a table for {guests}"


async def main() -> None:
    async with Atlas([Agent("waiter", tools=[book_table])]) as atlas:
        done = await atlas.invoke("book_table", {"guests": 4}, user="ana")
        print(done.status, done.result)
        wrong = await atlas.invoke("book_table", {"guests": "many"}, user="ana")
        print(wrong.status, wrong.error, wrong.result)


asyncio.run(main())
