"""A provider turns a request into a stream of chunks. That is all it does."""

import json
import math
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

import msgspec

from atlas_agents.core.addresses import is_public_url
from atlas_agents.core.errors import BrokenHistory, ProviderError, ProviderFault
from atlas_agents.core.events import Usage
from atlas_agents.core.json import encode, parse_object
from atlas_agents.core.messages import Ids, Image, Message, ToolCall, ToolResult, ToolSpec, memo, parted
from atlas_agents.core.metadata import Metadata
from atlas_agents.core.paths import Secret
from atlas_agents.core.text import clean

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
"""What a provider yields."""


@runtime_checkable
class Provider(Protocol):
    """Raises `ProviderError` and nothing else of its own. Closing the generator aborts the request."""

    @property
    def id(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Send a request and yield its chunks; the last one is a `DoneChunk`."""
        ...


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


def as_written(value: object) -> str:
    """Arguments that came as a value, as the text they would have been: what is no JSON in it stays visible."""
    return json.dumps(value)


def finished_call(id: str, name: str, written: str, *, cut: bool) -> ToolCall:
    """The call, its arguments parsed once and strictly; what is no JSON object, or was cut off, is kept as it came."""
    written = clean(written)
    if cut:
        return ToolCall(id, name, {}, malformed=written)
    try:
        return ToolCall(id, name, parse_object(written) if written.strip() else {})
    except ValueError:
        return ToolCall(id, name, {}, malformed=written)


_BY_STATUS: dict[int, ProviderFault] = {
    401: "auth",
    403: "auth",
    408: "timeout",
    409: "server",
    413: "context_length",
    429: "rate_limit",
    503: "overloaded",
    529: "overloaded",
}
_BY_NAME: dict[str, ProviderFault] = {
    "authentication_error": "auth",
    "permission_error": "auth",
    "invalid_api_key": "auth",
    "billing_error": "quota",
    "insufficient_quota": "quota",
    "rate_limit_error": "rate_limit",
    "rate_limit_exceeded": "rate_limit",
    "overloaded_error": "overloaded",
    "overloaded": "overloaded",
    "api_error": "server",
    "server_error": "server",
    "internal_server_error": "server",
    "timeout_error": "timeout",
    "context_length_exceeded": "context_length",
    "request_too_large": "context_length",
    "exceed_context_size_error": "context_length",
    "invalid_request_error": "bad_request",
    "not_found_error": "bad_request",
    "model_not_found": "bad_request",
}
_STATUS = re.compile("[1-5][0-9]{2}")
_GARBLED = "does not match the expected"  # how llama.cpp says that its model broke the form of a call
_TOO_LONG = ("context length", "context window", "prompt is too long", "maximum context", "too many tokens")


def fault_of_status(status: int, body: object, headers: Mapping[str, str]) -> ProviderError:
    """The error of an answer whose status is not 200."""
    names, message = _words(body)
    kind: ProviderFault = _BY_STATUS.get(status) or ("server" if status >= 500 else "bad_request")
    named = next((_BY_NAME[name] for name in names if name in _BY_NAME), None)
    if named in ("quota", "context_length") or (kind == "bad_request" and _too_long(message)):
        kind = "quota" if named == "quota" else "context_length"
    if status == 500 and _GARBLED in message:
        kind = "protocol"
    text = f"HTTP {status}: {message}" if message else f"HTTP {status}"
    return ProviderError(text, kind, status=status, retry_after=retry_after(headers))


def fault_of_event(body: object) -> ProviderError:
    """The error that a stream announced after it had begun with status 200."""
    names, message = _words(body)
    kind: ProviderFault | None = next((_BY_NAME[name] for name in names if name in _BY_NAME), None)
    if kind is None:
        status = next((int(name) for name in names if _STATUS.fullmatch(name)), 0)
        kind = _BY_STATUS.get(status) or ("bad_request" if 400 <= status < 500 else "unknown")
    if kind == "bad_request" and _too_long(message):
        kind = "context_length"
    return ProviderError(message or "the provider reported an error without saying which", kind)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait as the server wishes; None when it did not say or said nonsense."""
    if (milliseconds := _seconds(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if (seconds := _seconds(value)) is not None or value is None:
        return seconds
    import email.utils  # rarely needed, and slow to import

    try:
        wait = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return wait if wait > 0 else None


def _seconds(value: str | None) -> float | None:
    try:
        seconds = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return seconds if seconds >= 0 else None


def _words(body: object) -> tuple[list[str], str]:
    """(names that may classify it, the message) out of the shapes vendors use."""
    if not isinstance(body, dict):
        return [], clean(str(body))[:500].strip() if body else ""
    outer = cast(dict[str, Any], body)
    inner = outer.get("error", outer)
    if not isinstance(inner, dict):
        return [], clean(str(inner))[:500]
    fields = cast(dict[str, Any], inner)
    names = [str(fields[name]) for name in ("code", "type", "status") if fields.get(name)]
    return names, clean(str(fields.get("message") or ""))[:500]


def _too_long(message: str) -> bool:
    lower = message.lower()
    return any(phrase in lower for phrase in _TOO_LONG)


LEFT_OUT = "[something at an address that is not public was left out]"


def may_be_fetched(url: str) -> bool:
    """Whether the address may be passed on."""
    return url.startswith("data:") or is_public_url(url)
