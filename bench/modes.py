"""How often the first step of a local model is a valid tool call, and the right one, with three ways to request it.

`python bench/modes.py [model]`: constrained decoding as in `local/…`, the server's native tool calling, and ReAct text.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from atlas_agents import Provider, ToolSpec, user
from atlas_agents.core.errors import ProviderError
from atlas_agents.local.provider import LocalProvider
from atlas_agents.providers.base import Request, ToolCallChunk, complete
from atlas_agents.providers.openai import OpenAIProvider
from atlas_agents.providers.react import React
from atlas_agents.tools.schema import compile_check


def spec(name: str, description: str, **properties: str) -> ToolSpec:
    shapes = {field: {"type": kind} for field, kind in properties.items()}
    schema = {"type": "object", "properties": shapes, "required": [*shapes], "additionalProperties": False}
    return ToolSpec(name, description, schema)


TOOLS = (
    spec("get_weather", "Tell the weather in a city.", city="string"),
    spec("add", "Add two whole numbers.", a="integer", b="integer"),
    spec("read_file", "Read a file and give its text.", path="string"),
    spec("send_mail", "Send a mail.", to="string", text="string"),
    spec("now", "Tell the time."),
)
TASKS: list[tuple[str, str, dict[str, Any]]] = [
    ("What is the weather in Lisbon?", "get_weather", {"city": "Lisbon"}),
    ("Is it raining in Oslo right now?", "get_weather", {"city": "Oslo"}),
    ("How warm is it in Nairobi today?", "get_weather", {"city": "Nairobi"}),
    ("Add 17 and 25.", "add", {"a": 17, "b": 25}),
    ("What do you get when you add 1204 to 96?", "add", {"a": 1204, "b": 96}),
    ("Please compute 7 + 8 with your tool.", "add", {"a": 7, "b": 8}),
    ("Read the file notes.txt for me.", "read_file", {"path": "notes.txt"}),
    ("What does config.yaml say?", "read_file", {"path": "config.yaml"}),
    ("Show me the text of docs/plan.md.", "read_file", {"path": "docs/plan.md"}),
    ("What time is it?", "now", {}),
    ("Tell me the current time, please.", "now", {}),
    (
        "Send a mail to ana@example.org with the text: See you!",
        "send_mail",
        {"to": "ana@example.org", "text": "See you!"},
    ),
]


@asynccontextmanager
async def open_providers(model: str) -> AsyncIterator[dict[str, Provider]]:
    local = LocalProvider(model)
    endpoint = await local.endpoint()
    native = OpenAIProvider(base_url=f"{endpoint.url}/v1", api_key=endpoint.key.reveal(), model=model)
    try:
        yield {"constrained": local, "native": native, "react": React(local)}
    finally:
        await native.close()
        await local.close()


async def first_call(provider: Provider, question: str) -> tuple[str, dict[str, Any]] | None:
    request = Request(
        [user(question)], system="You are a helpful assistant.", tools=TOOLS, temperature=0, max_tokens=160
    )
    try:
        chunks = await complete(provider, request)
    except ProviderError:
        return None
    calls = [chunk.call for chunk in chunks if isinstance(chunk, ToolCallChunk)]
    return (calls[0].name, calls[0].arguments) if calls and calls[0].malformed is None else None


def is_valid(call: tuple[str, dict[str, Any]] | None) -> bool:
    tool = next((tool for tool in TOOLS if call and tool.name == call[0]), None)
    if call is None or tool is None:
        return False
    try:
        compile_check(tool.name, tool.parameters)(call[1])
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it cannot be run
        return False
    return True


async def main(model: str) -> None:
    async with open_providers(model) as found:
        print(f"{model}, {len(TASKS)} tasks: first step is a valid call | and the right one | seconds")
        for name, provider in found.items():
            started = time.perf_counter()
            calls = [await first_call(provider, question) for question, _, _ in TASKS]
            correct = [call == (tool, arguments) for call, (_, tool, arguments) in zip(calls, TASKS, strict=True)]
            seconds = time.perf_counter() - started
            print(f"{name:12} {sum(map(is_valid, calls)):3} {sum(correct):3} {seconds:8.1f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m"))
