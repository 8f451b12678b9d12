"""A model that says what it was told to say. Public: users test their own agents with it."""

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any, TypeAlias

from atlas_agents.core.errors import ProviderError, ScriptExhausted
from atlas_agents.core.events import Usage
from atlas_agents.core.messages import ToolCall
from atlas_agents.providers.base import (
    Capabilities,
    Chunk,
    DoneChunk,
    Request,
    StopReason,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
)

_Item: TypeAlias = Chunk | Exception
_WORD = re.compile(r"\s*\S+\s*|\s+")


class Reply:
    """One reply of a scripted model; `+` joins two into one."""

    def __init__(self, *items: _Item, stop: StopReason | None = None) -> None:
        self.items = items
        self.stop: StopReason | None = stop

    def __add__(self, other: "Reply") -> "Reply":
        return Reply(*self.items, *other.items, stop=other.stop if other.stop else self.stop)


def says(text: str, *, stop: StopReason | None = None) -> Reply:
    """The model says this, word by word."""
    return Reply(*(TextChunk(word) for word in _WORD.findall(text)), stop=stop)


def thinks(text: str, signature: str = "") -> Reply:
    """The model thinks this before it goes on."""
    return Reply(ThinkingChunk(text), ThinkingChunk("", signature))


def calls(name: str, /, **arguments: Any) -> Reply:
    """The model asks for a tool. `calls(…) + calls(…)` asks for two at once."""
    return Reply(ToolCallChunk(ToolCall("", name, arguments)))


def fails(error: Exception | str) -> Reply:
    """The model's connection fails here; `says("Half a") + fails("gone")` fails in the middle."""
    return Reply(ProviderError(error) if isinstance(error, str) else error)


class Scripted:
    """Gives one reply per request, in order, and remembers what it was asked."""

    def __init__(self, *replies: Reply, id: str = "scripted") -> None:
        self.id = id
        self.requests: list[Request] = []
        self._replies = list(replies)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        self.requests.append(request)
        if len(self.requests) > len(self._replies):
            raise ScriptExhausted(f"the scripted model was asked {len(self.requests)} times for {len(self._replies)}")
        reply = self._replies[len(self.requests) - 1]
        called = spoken = 0
        for item in reply.items:
            await asyncio.sleep(0)  # give way, as a network would; else races hide from tests
            if isinstance(item, Exception):
                raise item
            called += type(item) is ToolCallChunk
            spoken += type(item) is TextChunk
            yield item
        ending: StopReason = "tool_calls" if called else "stop"
        yield DoneChunk(Usage(len(request.messages), spoken), reply.stop if reply.stop else ending)
