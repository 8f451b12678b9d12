"""Hand-written agent loop of `baseline` and `bare`, which differ only in the HTTP client."""

from collections.abc import AsyncIterator, Callable
from typing import Any

from scenarios import SYSTEM, tool_schema

Message = dict[str, Any]
Stream = Callable[[list[Message], list[dict[str, object]]], AsyncIterator[Any]]


def make_agent(tools):
    return {tool.__name__: tool for tool in tools}, [tool_schema(tool.__name__) for tool in tools]


def make_history(pairs):
    return [{"role": role, "content": text} for role, text in pairs]


def make_turn(stream: Stream, decode_arguments: Callable[[str], Any]):
    """Return a turn function over `stream(messages, schemas)`, which yields the deltas of a chat completion."""

    async def turn(agent, prompt, history, on_delta):
        tools, schemas = agent
        messages = [{"role": "system", "content": SYSTEM}, *history, {"role": "user", "content": prompt}]
        while True:
            text, calls = await read_reply(stream(messages, schemas), on_delta)
            if not calls:
                return text
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            for call in calls:
                function = call["function"]
                result = await tools[function["name"]](**decode_arguments(function["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})

    return turn


async def read_reply(deltas: AsyncIterator[Any], on_delta: Callable[[str], None]) -> tuple[str, list[Message]]:
    """Return the text and the tool calls of one reply."""
    texts: list[str] = []
    calls: dict[int, Message] = {}
    async for delta in deltas:
        if delta.content:
            texts.append(delta.content)
            on_delta(delta.content)
        for part in delta.tool_calls or ():
            add_call_part(calls, part)
    return "".join(texts), list(calls.values())


def add_call_part(calls: dict[int, Message], part: Any) -> None:
    if part.id:
        function = {"name": part.function.name, "arguments": part.function.arguments}
        calls[part.index] = {"id": part.id, "type": "function", "function": function}
    else:
        calls[part.index]["function"]["arguments"] += part.function.arguments
