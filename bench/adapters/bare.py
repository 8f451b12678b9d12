"""The same loop on the official openai SDK."""

import json

from openai import AsyncOpenAI

from adapters._loop import make_agent, make_history, make_responses_turn, make_turn  # noqa: F401
from scenarios import MODEL, SYSTEM, uses_responses

PIP = ["openai"]
IMPORT = "from openai import AsyncOpenAI"
LONG_TURNS = True
RESPONSES = True


def setup(base_url):
    global CLIENT, RUN
    RUN = responses_turn if uses_responses(base_url) else chat_turn
    CLIENT = AsyncOpenAI(base_url=base_url, api_key="x")


async def stream(messages, schemas):
    reply = await CLIENT.chat.completions.create(model=MODEL, messages=messages, tools=schemas, stream=True)
    async for chunk in reply:
        for choice in chunk.choices:
            yield choice.delta


async def stream_responses(items, specs):
    include = ["reasoning.encrypted_content"]
    reply = await CLIENT.responses.create(
        model=MODEL, instructions=SYSTEM, input=items, tools=specs, store=False, include=include, stream=True
    )
    async for event in reply:
        if event.type == "response.output_text.delta":
            yield event.delta
        elif event.type == "response.output_item.done":
            yield event.item.model_dump(exclude_none=True)


chat_turn = make_turn(stream, json.loads)
responses_turn = make_responses_turn(stream_responses, json.loads)


def turn(*arguments):
    return RUN(*arguments)
