"""A model whose output is scripted in the user's message, so that a test states in one place what happens."""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
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


class PageModel:
    """Plays the rounds of a script, which is the user's message as JSON or listed in `scripts` under its text.

    A round is a list of steps: `["text", text]`, `["reasoning", text]`, `["call", tool, arguments]`,
    `["pause", seconds]`, `["pace", seconds]` between words from then on, `["fail", message]`, `["refuse", reason]`,
    `["results"]` for the results of the last tool calls as text, and `["drop", text]` for text before a connection
    that is lost when the test releases it, the first time only. Rounds are not stored: after a restart the same round
    is played again.
    """

    def __init__(self, scripts: Mapping[str, Rounds] | None = None, *, id: str = "scripted", pace: float = 0.0) -> None:
        self.id = id
        self.capabilities = Capabilities()
        self._scripts = scripts or {}
        self._pace = pace
        self._dropped: set[str] = set()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        last = max(index for index, message in enumerate(request.messages) if _is_from_user(message))
        rounds = self._rounds(request.messages[last].text)
        number = sum(message.role == "assistant" for message in request.messages[last:])
        calls = words = 0
        pace: float = self._pace
        for step in rounds[number] if number < len(rounds) else [["text", "Done."]]:
            kind, *rest = self._resolve(step, request)
            match kind:
                case "text" | "reasoning" | "drop":
                    for word in _WORD.findall(rest[0]):
                        await asyncio.sleep(pace)
                        words += 1
                        yield ThinkingChunk(word) if kind == "reasoning" else TextChunk(word)
                    if kind == "drop":
                        await asyncio.to_thread(wait_for_release)
                        raise ProviderError("connection lost", "network")
                case "call":
                    calls += 1
                    yield ToolCallChunk(ToolCall("", rest[0], rest[1]))
                case "refuse":
                    yield DoneChunk(Usage(200, words), "refusal", request.model or self.id, rest[0])
                    return
                case "pause":
                    await asyncio.sleep(rest[0])
                case "pace":
                    pace = rest[0]
                case _:
                    raise ProviderError(rest[0], "bad_request")
        tokens = sum(len(message.text) for message in request.messages) // 4 + 200
        yield DoneChunk(Usage(tokens, words), "tool_calls" if calls else "stop", model=request.model or self.id)

    def _resolve(self, step: Sequence[Any], request: Request) -> Sequence[Any]:
        """Replace a step that depends on earlier calls by one that does not."""
        if step[0] == "results":
            results = [result.result for result in request.messages[-1].tool_results]
            return ["text", msgspec.json.encode(results).decode()]
        if step[0] == "drop" and step[1] in self._dropped:
            return ["pause", 0]
        if step[0] == "drop":
            self._dropped.add(step[1])
        return step

    def _rounds(self, text: str) -> Rounds:
        if text in self._scripts:
            return self._scripts[text]
        try:
            found: Any = msgspec.json.decode(text)
        except msgspec.DecodeError:
            found = None
        return found if isinstance(found, list) else [[["text", f"You wrote: {text}"]]]


def wait_for_release(path: Path = Path("release")) -> None:
    """Block until the test writes to a named pipe in the working directory."""
    if not path.exists():
        os.mkfifo(path)
    path.read_text()


def _is_from_user(message: Message) -> bool:
    return message.role == "user" and not message.metadata.get("synthetic")
