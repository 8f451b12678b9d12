"""Providers for tests: scripted models, and cassettes that record and replay a real provider."""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec

from atlas_agents.core.errors import ConfigError, ProviderError, ScriptExhausted
from atlas_agents.core.events import Usage
from atlas_agents.core.json import encode
from atlas_agents.core.messages import ToolCall
from atlas_agents.providers import base

_Item: TypeAlias = base.Chunk | Exception
_WORD = re.compile(r"\s*\S+\s*|\s+")


class Reply:
    """One reply of a scripted model; `+` joins two into one.

    Args:
        items: Texts, tool calls and errors in the order in which they are streamed.
        stop: Why the reply ends; derived from the items by default.
    """

    def __init__(self, *items: _Item, stop: base.StopReason | None = None) -> None:
        self.items = items
        self.stop: base.StopReason | None = stop

    def __add__(self, other: "Reply") -> "Reply":
        return Reply(*self.items, *other.items, stop=other.stop if other.stop else self.stop)


def says(text: str, *, stop: base.StopReason | None = None) -> Reply:
    """A reply with this text, streamed word by word."""
    return Reply(*(base.TextChunk(word) for word in _WORD.findall(text)), stop=stop)


def thinks(text: str, signature: str = "") -> Reply:
    """A reply that starts with this reasoning."""
    return Reply(base.ThinkingChunk(text), base.ThinkingChunk("", signature))


def calls(name: str, /, **arguments: Any) -> Reply:
    """A reply with a tool call; `calls(…) + calls(…)` makes two at once."""
    return Reply(base.ToolCallChunk(ToolCall("", name, arguments)))


def fails(error: Exception | str) -> Reply:
    """A reply that fails here; `says("Half a") + fails("gone")` fails in the middle."""
    return Reply(ProviderError(error) if isinstance(error, str) else error)


def refuses(reason: str = "") -> Reply:
    """A reply that the model refuses here, for this reason; `says("First,") + refuses("cyber")` has text before it."""
    return Reply(base.DoneChunk(Usage(), "refusal", detail=reason))


class Scripted(base.BaseProvider):
    """Scripted model: returns one reply per request, in order, and records the requests.

    Args:
        replies: One reply per request, in order.
        id: Name of the provider in errors and usage.
    """

    def __init__(self, *replies: Reply, id: str = "scripted") -> None:
        self.id = id
        self.requests: list[base.Request] = []
        self._replies = list(replies)

    @property
    def capabilities(self) -> base.Capabilities:
        return base.Capabilities()

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        """Yield the next scripted reply."""
        async with aclosing(self.stream_reply(len(self.requests), request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def stream_reply(self, index: int, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        """Internal: yield the reply with this index, whatever was requested before."""
        self.requests.append(request)
        if index >= len(self._replies):
            raise ScriptExhausted(
                f"the scripted model has {len(self._replies)} replies and was asked {index + 1} times"
            )
        reply = self._replies[index]
        call_count = text_count = 0
        for item in reply.items:
            await asyncio.sleep(0)  # yield to other tasks as a network would, so that tests expose races
            if isinstance(item, Exception):
                raise item
            call_count += type(item) is base.ToolCallChunk
            text_count += type(item) is base.TextChunk
            yield item
            if type(item) is base.DoneChunk:
                return
        default_stop: base.StopReason = "tool_calls" if call_count else "stop"
        yield base.DoneChunk(Usage(len(request.messages), text_count), reply.stop if reply.stop else default_stop)


class _Recording(msgspec.Struct, frozen=True):
    """One recorded request, without volatile fields, and the chunks of its response."""

    request: dict[str, Any]
    chunks: list[base.Chunk]


_decoder = msgspec.json.Decoder(_Recording)


class Cassette(base.BaseProvider):
    """Replays `path` if it exists; otherwise calls `provider` and records it. Only complete responses are recorded.

    Ids and times are not compared, so recordings stay valid; keys and headers are never recorded.

    Args:
        path: File with the recorded responses.
        provider: Provider to record if the file does not exist; without one, a missing file is an error.
    """

    def __init__(self, path: Path | str, provider: base.Provider | None = None) -> None:
        self._path = Path(path)
        self._provider = provider
        self._recordings = self._load()
        self._next = 0
        self.id = "cassette"
        if self._recordings is None and provider is None:
            raise ConfigError(f"no recording at {self._path}, and no provider to record")

    @property
    def capabilities(self) -> base.Capabilities:
        return self._provider.capabilities if self._provider else base.Capabilities()

    async def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        """Replay the recorded answer to this request, or record one."""
        request_fields = _fingerprint(request)
        if self._recordings is not None:
            for chunk in self._replay(request_fields):
                yield chunk
            return
        recorded_chunks: list[base.Chunk] = []
        async with aclosing(cast(base.Provider, self._provider).stream(request)) as chunks:
            async for chunk in chunks:
                recorded_chunks.append(chunk)
                yield chunk
        with self._path.open("ab") as file:
            file.write(encode(_Recording(request_fields, recorded_chunks)) + b"\n")

    def _load(self) -> list[_Recording] | None:
        if not self._path.exists():
            return None
        return [_decoder.decode(line) for line in self._path.read_bytes().splitlines()]

    def _replay(self, request_fields: dict[str, Any]) -> list[base.Chunk]:
        recordings = self._recordings or []
        if self._next >= len(recordings):
            raise ConfigError(f"recording {self._path} has only {len(recordings)} answers; delete it to record again")
        recording = recordings[self._next]
        for field, value in request_fields.items():
            if (expected := recording.request.get(field)) != value:
                recorded, current = encode(expected).decode(), encode(value).decode()
                raise ConfigError(
                    f"request {self._next + 1} differs from the recording {self._path} in {field!r}: "
                    f"it was {recorded[-200:]}, now it is {current[-200:]}; delete the file to record again"
                )
        self._next += 1
        return recording.chunks


def _fingerprint(request: base.Request) -> dict[str, Any]:
    """Return the request with calls numbered, because their ids differ between runs."""
    numbers: dict[str, str] = {}
    messages: list[dict[str, Any]] = []
    for message in request.messages:
        parts = msgspec.to_builtins(message.parts)
        for part in parts:
            for field in ("id", "call_id"):
                if field in part:
                    part[field] = numbers.setdefault(part[field], f"call {len(numbers) + 1}")
        messages.append({"role": message.role, "parts": parts})
    fields = {"system": request.system, "messages": messages, "tools": [tool.name for tool in request.tools]}
    return msgspec.json.decode(encode(fields))
