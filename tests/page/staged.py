"""A model that does what it is told in the message itself, so that a test says in one place what happens."""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec

from atlas_agents import (
    Chunk,
    DoneChunk,
    Message,
    ProviderError,
    Request,
    TextChunk,
    ThinkingChunk,
    ToolCall,
    ToolCallChunk,
    Usage,
)
from atlas_agents.providers.base import Capabilities

Rounds = Sequence[Sequence[Sequence[Any]]]
_WORD = re.compile(r"\s*\S+\s*|\s+")


class Staged:
    """Plays rounds of steps: `["say", words]`, `["think", words]`, `["call", tool, arguments]`, `["pause", seconds]`,
    `["pace", seconds]` between two words from then on, `["fail", why]`; `["told"]` says what the tools answered;
    `["slip", words]` says something and breaks off, the first time only. They stand in `scripts` under the last
    message, or are that message, as JSON. It knows nothing of earlier lives: after a restart it plays the same round
    again."""

    def __init__(self, scripts: Mapping[str, Rounds] | None = None, *, id: str = "staged", pace: float = 0.0) -> None:
        self.id = id
        self.capabilities = Capabilities()
        self._scripts = scripts or {}
        self._pace = pace
        self._slips: set[str] = set()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        place = max(number for number, message in enumerate(request.messages) if _is_said(message))
        rounds = self._rounds(request.messages[place].text)
        number = sum(message.role == "assistant" for message in request.messages[place:])
        called = spoken = 0
        pace: float = self._pace
        for step in rounds[number] if number < len(rounds) else [["say", "Done."]]:
            kind, *rest = self._plain(step, request)
            match kind:
                case "say" | "think" | "slip":
                    for word in _WORD.findall(rest[0]):
                        await asyncio.sleep(pace)
                        spoken += 1
                        yield ThinkingChunk(word) if kind == "think" else TextChunk(word)
                    if kind == "slip":
                        await asyncio.sleep(0.5)
                        raise ProviderError("the line broke", "network")
                case "call":
                    called += 1
                    yield ToolCallChunk(ToolCall("", rest[0], rest[1]))
                case "pause":
                    await asyncio.sleep(rest[0])
                case "pace":
                    pace = rest[0]
                case _:
                    raise ProviderError(rest[0], "bad_request")
        counted = sum(len(message.text) for message in request.messages) // 4 + 200
        yield DoneChunk(Usage(counted, spoken), "tool_calls" if called else "stop", model=request.model or self.id)

    def _plain(self, step: Sequence[Any], request: Request) -> Sequence[Any]:
        """A step that knows what was, as one that does not."""
        if step[0] == "told":
            told = [result.result for result in request.messages[-1].tool_results]
            return ["say", msgspec.json.encode(told).decode()]
        if step[0] == "slip" and step[1] in self._slips:
            return ["pause", 0]
        if step[0] == "slip":
            self._slips.add(step[1])
        return step

    def _rounds(self, text: str) -> Rounds:
        if text in self._scripts:
            return self._scripts[text]
        try:
            found: Any = msgspec.json.decode(text)
        except msgspec.DecodeError:
            found = None
        return found if isinstance(found, list) else [[["say", f"You said: {text}"]]]  # pyright: ignore[reportUnknownVariableType]


def _is_said(message: Message) -> bool:
    """By a person, and not by the turn to itself."""
    return message.role == "user" and not message.metadata.get("synthetic")
