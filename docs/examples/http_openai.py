"""Use the official OpenAI client with an agent behind a gateway."""

import asyncio
import tempfile
from pathlib import Path

from openai import AsyncOpenAI

from atlas_agents import Agent, Atlas, MemoryStore, tool
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.testing import Scripted, calls, says


@tool
async def stock(item: str) -> int:
    """Look up the quantity in stock."""
    return 7


async def main() -> None:
    model = Scripted(
        says("Hello!"), calls("stock", item="tea"), says("There are seven."), says("I am the shop."), says("Tea.")
    )
    atlas = Atlas([Agent("shop", model=model, tools=[stock])], store=MemoryStore())
    home = Path(tempfile.mkdtemp())
    async with Gateway(atlas, GatewaySettings(home=home, port=0)).running() as gateway:
        token = (home / "token").read_text().strip()
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=token) as client:
            await talk(client)


async def talk(client: AsyncOpenAI) -> None:
    create = client.chat.completions.create
    print([model.id for model in (await client.models.list()).data])

    answer = await create(model="atlas/shop", messages=[{"role": "user", "content": "Hello"}])
    print(answer.choices[0].message.content)

    stream = await create(
        model="atlas/shop",
        messages=[{"role": "user", "content": "How much tea is there?"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(repr(chunk.choices[0].delta.content))
        if chunk.usage:
            print("usage comes last:", chunk.usage.total_tokens > 0)

    for question in ("Who are you?", "What did I want?"):  # a session needs only the new message
        answer = await create(model="atlas/shop", messages=[{"role": "user", "content": question}], user="ana")
        print(answer.choices[0].message.content)


asyncio.run(main())
