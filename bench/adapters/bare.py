"""The same loop on the official openai SDK."""

import json

from openai import AsyncOpenAI

from adapters._loop import make_agent, make_history, make_turn  # noqa: F401
from scenarios import MODEL

PIP = ["openai"]
IMPORT = "from openai import AsyncOpenAI"
LONG_TURNS = True


def setup(base_url):
    global CLIENT
    CLIENT = AsyncOpenAI(base_url=base_url, api_key="x")


async def stream(messages, schemas):
    reply = await CLIENT.chat.completions.create(model=MODEL, messages=messages, tools=schemas, stream=True)
    async for chunk in reply:
        for choice in chunk.choices:
            yield choice.delta


turn = make_turn(stream, json.loads)
