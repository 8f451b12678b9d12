"""A provider turns a request into a stream of chunks. That is all it does."""

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from atlas_agents.core.errors import BrokenHistory
from atlas_agents.core.events import Usage
from atlas_agents.core.json import encode
from atlas_agents.core.memo import memo
from atlas_agents.core.messages import Ids, Image, Message, ToolCall, ToolResult
from atlas_agents.core.metadata import Metadata
from atlas_agents.core.pictures import parted
from atlas_agents.core.secret import Secret
from atlas_agents.core.specs import ToolSpec

_SEEN = ("image/png", "image/jpeg", "image/gif", "image/webp")
StopReason: TypeAlias = Literal["stop", "tool_calls", "length", "refusal", "pause", "other"]


class Capabilities(msgspec.Struct, frozen=True):
    """What a provider can do by itself; the engine makes up for the rest."""

    streaming: bool = True
    tools: bool = True
    structured: bool = False


class OutputSpec(msgspec.Struct, frozen=True):
    """The shape that the answer must have: a JSON schema and a name for it."""

    name: str
    schema: dict[str, Any]


class Request(msgspec.Struct, frozen=True):
    """All that a model is asked with. `tool_choice` is auto, none, required or a tool's name."""

    messages: Sequence[Message]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    model: str | None = None
    tool_choice: str = "auto"
    temperature: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    output: OutputSpec | None = None
    metadata: Metadata | None = None


class TextChunk(msgspec.Struct, frozen=True, gc=False, tag="text", tag_field="type"):
    """A few more words."""

    text: str


class ThinkingChunk(msgspec.Struct, frozen=True, gc=False, tag="thinking", tag_field="type"):
    """A few more words of reasoning; the last one of a block may carry its signature."""

    text: str
    signature: str = ""


class ToolCallChunk(msgspec.Struct, frozen=True, tag="tool_call", tag_field="type"):
    """A whole call; it comes only after the message was complete. An empty id is given one by the engine."""

    call: ToolCall


class OpaqueChunk(msgspec.Struct, frozen=True, tag="opaque", tag_field="type"):
    """A vendor's block that we do not know, whole."""

    vendor: str
    block: dict[str, Any]


class ResetChunk(msgspec.Struct, frozen=True, gc=False, tag="reset", tag_field="type"):
    """What came before is void; another attempt follows."""

    attempt: int


class DoneChunk(msgspec.Struct, frozen=True, tag="done", tag_field="type"):
    """The message is complete. Nothing counts without it."""

    usage: Usage = Usage()
    stop_reason: StopReason = "stop"
    model: str = ""


Chunk: TypeAlias = TextChunk | ThinkingChunk | ToolCallChunk | OpaqueChunk | ResetChunk | DoneChunk


@runtime_checkable
class Provider(Protocol):
    """Raises `ProviderError` and nothing else of its own. Closing the generator aborts the request."""

    @property
    def id(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]: ...


def keys_of(provider: Provider) -> tuple[Secret, ...]:
    """The keys that a provider shows to a vendor, and nobody else may see."""
    found: Any = getattr(provider, "keys", None) or (getattr(provider, "key", None),)
    return tuple(key for key in found if isinstance(key, Secret))


async def complete(provider: Provider, request: Request) -> list[Chunk]:
    """The same stream, drained; what a reset withdrew is left out."""
    chunks: list[Chunk] = []
    async for chunk in provider.stream(request):
        if type(chunk) is ResetChunk:
            chunks.clear()
        else:
            chunks.append(chunk)
    return chunks


def encoded(messages: Sequence[Message], wire: str, make: Callable[[Message], bytes]) -> list[bytes]:
    """The bytes of each message on a vendor's wire, made once per message, however many requests carry it.

    Refuses (BrokenHistory) to let a call leave without its result, or a result without its call.
    """
    pieces: list[bytes] = []
    awaited: Ids = ()
    for place, message in enumerate(messages):
        asks, answers = message.pairing
        if answers != awaited:
            raise _broken(messages, place, awaited)
        awaited = asks
        piece: bytes | None = getattr(message, wire, None)
        if piece is None:
            piece = memo(message)[wire] = make(message)
        if piece:
            pieces.append(piece)
    if awaited:
        raise _broken(messages, len(messages), awaited)
    return pieces


def _broken(messages: Sequence[Message], place: int, awaited: Ids) -> BrokenHistory:
    expected = f"a result of {', '.join(awaited)}" if awaited else "no result"
    found = f"message {messages[place].id!r} ({messages[place].role})" if place < len(messages) else "the end"
    return BrokenHistory(f"{expected} is due where {found} stands; nothing was sent")


def spoken(result: ToolResult) -> str:
    """A tool's result as the text that a model reads; of a picture, that there is one."""
    return seen(result)[0]


def seen(result: ToolResult) -> tuple[str, list[Image]]:
    """A tool's result as a text, and the pictures in it, for vendors whose models can look at them."""
    if isinstance(result.result, str):
        return (result.result if result.status == "ok" else f"Error ({result.error}): {result.result}"), []
    written = encode(result.result)
    if b'"image"' not in written:
        return written.decode(), []
    rest, pictures = parted(result.result)
    return encode(rest).decode(), [picture for picture in pictures if picture.media_type in _SEEN]
