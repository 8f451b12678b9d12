"""Responses of an agent: typed output, a continued conversation, and a turn in the background that is followed."""

import asyncio
import tempfile
from pathlib import Path

from openai import AsyncOpenAI
from pydantic import BaseModel

from atlas_agents import Agent, Atlas, MemoryStore, tool
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.testing import Scripted, calls, says


class Order(BaseModel):
    item: str
    quantity: int


@tool
async def stock(item: str) -> int:
    """Look up the quantity in stock."""
    return 7


async def main() -> None:
    model = Scripted(
        calls("stock", item="tea"),
        says("There are seven."),
        says('{"item": "tea", "quantity": 2}'),
        calls("stock", item="tea"),
        says("All counted."),
    )
    atlas = Atlas([Agent("shop", model=model, tools=[stock])], store=MemoryStore())
    home = Path(tempfile.mkdtemp())
    async with Gateway(atlas, GatewaySettings(home=home, port=0)).running() as gateway:
        token = (home / "token").read_text().strip()
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=token) as client:
            await talk(client)


async def talk(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="atlas/shop", input="How much tea is there?")
    print([item.type for item in first.output], first.output_text)

    order = await client.responses.parse(
        model="atlas/shop", input="Order two.", previous_response_id=first.id, text_format=Order
    )
    print(order.output_parsed)

    queued = await client.responses.create(model="atlas/shop", input="Count everything.", background=True)
    print(queued.status)
    stream = await client.responses.retrieve(queued.id, stream=True)  # starting_after=… after a lost connection
    async for event in stream:
        if event.type == "response.mcp_call_arguments.done":
            print("the agent calls a tool with", event.arguments)
        if event.type == "response.completed":
            print(event.response.output_text)


asyncio.run(main())
