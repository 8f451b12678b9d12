"""Demo provider: answers by fixed rules, so that the CLI can be tried without a key or a model."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeAlias

import msgspec

from atlas_agents.core.errors import ProviderError
from atlas_agents.core.messages import Message, ToolCall, ToolResult
from atlas_agents.providers import catalogue
from atlas_agents.providers.base import (
    BaseProvider,
    Capabilities,
    Chunk,
    DoneChunk,
    Price,
    Request,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
)

QUESTION = "What time is it?"
_DISCLAIMER = "(This is a scripted demo, not a model.)\n\n"
_HELP = """\
I can show you a few things:

- `What time is it?` and `Add 2 and 40`: a tool call
- `Roll two dice`: two calls at once
- `Count to 500`: a long answer that you can stop
- `Think`: reasoning before the answer
- `Stumble`: the connection breaks, the text is withdrawn and the answer starts again

To use a real model, choose one in the web UI (`atlas serve`) or run `atlas init`: an API key, a model server on this \
machine such as Ollama, or a local model.
"""
_WORDS = re.compile(r"\s*\S+\s*|\s+")
_NUMBER = r"-?\d+(?:\.\d+)?"
_ALIASES = {"now": ("current_time",)}
"""Alternative names of a tool."""
_NUMBER_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5}

Answer: TypeAlias = Callable[[re.Match[str]], list[Chunk]]


class Demo(BaseProvider):
    """Streams and calls tools like a real provider, with scripted replies. `delay` is the delay between words."""

    def __init__(self, *, delay: float = 0.02) -> None:
        self.id = self.model = "demo"
        catalogue.register_model(self.model, price=Price(0, 0))
        self._delay = delay
        self._stumbled: set[str] = set()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        last = request.messages[-1]
        answer = _describe_results(request.messages) if last.role == "tool" else _answer(last.text)
        chunks = _with_tools(answer, {tool.name for tool in request.tools})
        calls = any(isinstance(chunk, ToolCallChunk) for chunk in chunks)
        if not calls and not any(message.role == "assistant" and message.text for message in request.messages):
            chunks = [*_text_chunks(_DISCLAIMER), *chunks]
        if interrupted := "stumble" in last.text.lower() and last.id not in self._stumbled:
            self._stumbled.add(last.id)
            chunks = _text_chunks("This text will be withdrawn, because the connection is about to br")
        for chunk in chunks:
            await asyncio.sleep(self._delay)
            yield chunk
        if interrupted:
            raise ProviderError("the demo dropped its connection", "incomplete")
        yield DoneChunk(stop_reason="tool_calls" if calls else "stop")


def _answer(text: str) -> list[Chunk]:
    for pattern, answer in _RULES:
        if found := re.search(pattern, text, re.IGNORECASE):
            return answer(found)
    return _text_chunks(_HELP)


def _with_tools(chunks: Sequence[Chunk], offered: set[str]) -> list[Chunk]:
    """Use the tool names available here; a call of a missing tool becomes text."""
    found: list[Chunk] = []
    for chunk in chunks:
        if not isinstance(chunk, ToolCallChunk):
            found.append(chunk)
            continue
        names = [name for name in (chunk.call.name, *_ALIASES.get(chunk.call.name, ())) if name in offered]
        if names:
            found.append(ToolCallChunk(msgspec.structs.replace(chunk.call, name=names[0])))
        else:
            found += _text_chunks(f"I would call `{chunk.call.name}` now, but this agent does not have that tool.")
    return found


def _text_chunks(text: str) -> list[Chunk]:
    return [TextChunk(word) for word in _WORDS.findall(text)]


def _call(name: str, **arguments: object) -> Chunk:
    return ToolCallChunk(ToolCall("", name, arguments))


def _call_add(found: re.Match[str]) -> list[Chunk]:
    return [_call("add", a=float(found["a"]), b=float(found["b"]))]


def _call_roll(found: re.Match[str]) -> list[Chunk]:
    text = found.string.lower()
    sides = re.search(r"\bd(\d+)|(\d+)[ -]?sid", text)
    number = re.search(rf"\b(\d|{'|'.join(_NUMBER_WORDS)})\s+(?:dice|d\d)", text)
    times = int(_NUMBER_WORDS.get(number[1], number[1])) if number else 1
    return [_call("roll_dice", sides=int(sides[1] or sides[2]) if sides else 6)] * max(1, min(times, 5))


def _count_up(found: re.Match[str]) -> list[Chunk]:
    numbers = [str(number) for number in range(1, min(int(found["end"] or 200), 10_000) + 1)]
    lines = [" ".join(numbers[start : start + 20]) for start in range(0, len(numbers), 20)]
    return _text_chunks("\n\n".join(lines))


def _think(_: re.Match[str]) -> list[Chunk]:
    thought = "The user wants to see reasoning. I have none, but this is what it would look like."
    return [ThinkingChunk(word) for word in _WORDS.findall(thought)] + _text_chunks("I thought about it, in a way.")


def _recover(_: re.Match[str]) -> list[Chunk]:
    return _text_chunks("The connection broke, the text so far was withdrawn, and this is the second attempt.")


_RULES: tuple[tuple[str, Answer], ...] = (
    (r"\bstumble", _recover),
    (r"\bcount\b(?:.*?(?P<end>\d+))?", _count_up),
    (r"\bthink", _think),
    (r"\b(?:roll|dice|die|d\d+)\b", _call_roll),
    (rf"(?P<a>{_NUMBER})\s*(?:\+|plus|and|to)\s*(?P<b>{_NUMBER})", _call_add),
    (r"\b(?:time|clock|date|day|today|now)\b", lambda _: [_call("now")]),
)


def _describe_results(messages: Sequence[Message]) -> list[Chunk]:
    """Describe the tool results."""
    calls = {call.id: call for message in messages for call in message.tool_calls}
    lines = [_describe_result(calls[result.call_id], result) for result in messages[-1].tool_results]
    return _text_chunks("\n\n".join(lines))


def _describe_result(call: ToolCall, result: ToolResult) -> str:
    if result.status != "ok":
        return f"`{call.name}` failed: {result.result}"
    match call.name:
        case "add":
            return f"{call.arguments['a']:g} + {call.arguments['b']:g} = **{result.result:g}**"
        case "roll_dice":
            return f"The die with {call.arguments['sides']} sides shows **{result.result}**."
        case _:
            return f"The time is **{result.result}**."
