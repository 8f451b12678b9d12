"""Give an agent behind a gateway a tool that the OpenAI client runs."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from atlas_agents import Agent, Atlas, MemoryStore
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.testing import Scripted, calls, says

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "Weather of a city.", "parameters": CITY}}


async def main() -> None:
    model = Scripted(calls("weather", city="Oslo"), says("Take an umbrella."))
    atlas = Atlas([Agent("guide", model=model)], store=MemoryStore())
    home = Path(tempfile.mkdtemp())
    async with Gateway(atlas, GatewaySettings(home=home, port=0)).running() as gateway:
        token = (home / "token").read_text().strip()
        async with AsyncOpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key=token) as client:
            await talk(client)


async def talk(client: AsyncOpenAI) -> None:
    create: Any = client.chat.completions.create
    messages: list[Any] = [{"role": "user", "content": "What do I wear in Oslo?"}]
    choice = (await create(model="atlas/guide", messages=messages, tools=[WEATHER])).choices[0]
    print(choice.finish_reason)
    messages.append(choice.message)
    for call in choice.message.tool_calls:
        arguments = json.loads(call.function.arguments)
        print(call.function.name, arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"Rain in {arguments['city']}."})
    choice = (await create(model="atlas/guide", messages=messages, tools=[WEATHER])).choices[0]
    print(choice.finish_reason, choice.message.content)


asyncio.run(main())
