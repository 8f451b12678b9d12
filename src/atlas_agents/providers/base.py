"""Provider port: requests, chunks, error classification and shared encoding helpers."""

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
from atlas_agents.core.messages import Ids, Image, Message, ToolCall, ToolResult, ToolSpec, extract_images, memo
from atlas_agents.core.metadata import Metadata
from atlas_agents.core.paths import Secret
from atlas_agents.core.text import clean

_IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
StopReason: TypeAlias = Literal["stop", "tool_calls", "length", "refusal", "pause", "other"]
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
_INVALID_CALL_FORMAT = "does not match the expected"  # llama.cpp's message when its model violates the format of a call
_LENGTH_PHRASES = ("context length", "context window", "prompt is too long", "maximum context", "too many tokens")
OMITTED_NOTE = "[omitted: content at a non-public address]"


class Capabilities(msgspec.Struct, frozen=True):
    """What a provider supports natively; the agent loop emulates the rest."""

    streaming: bool = True
    tools: bool = True
    structured: bool = False


class OutputSpec(msgspec.Struct, frozen=True):
    """Structured output: a JSON schema and its name."""

    name: str
    schema: dict[str, Any]


class Request(msgspec.Struct, frozen=True):
    """A model request. `tool_choice` is auto, none, required or a tool's name."""

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
    """A piece of text."""

    text: str


class ThinkingChunk(msgspec.Struct, frozen=True, gc=False, tag="thinking", tag_field="type"):
    """A piece of reasoning; the last chunk of a block may carry its signature."""

    text: str
    signature: str = ""


class ToolCallChunk(msgspec.Struct, frozen=True, tag="tool_call", tag_field="type"):
    """A complete tool call, yielded only after the message is complete. An empty id is replaced by the agent loop."""

    call: ToolCall


class OpaqueChunk(msgspec.Struct, frozen=True, tag="opaque", tag_field="type"):
    """A complete vendor-specific block of unknown type."""

    vendor: str
    block: dict[str, Any]


class ResetChunk(msgspec.Struct, frozen=True, gc=False, tag="reset", tag_field="type"):
    """Discards all chunks so far; another attempt follows."""

    attempt: int


class DoneChunk(msgspec.Struct, frozen=True, tag="done", tag_field="type"):
    """The message is complete. A stream without it is incomplete."""

    usage: Usage = Usage()
    stop_reason: StopReason = "stop"
    model: str = ""


Chunk: TypeAlias = TextChunk | ThinkingChunk | ToolCallChunk | OpaqueChunk | ResetChunk | DoneChunk
"""Everything a provider yields."""


@runtime_checkable
class Provider(Protocol):
    """Provider port. Raises only `ProviderError`; closing the generator aborts the request."""

    @property
    def id(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        """Send a request and yield its chunks; the last one is a `DoneChunk`."""
        ...


def collect_keys(provider: Provider) -> tuple[Secret, ...]:
    """Return a provider's secret keys, for redaction."""
    found: Any = getattr(provider, "keys", None) or (getattr(provider, "key", None),)
    return tuple(key for key in found if isinstance(key, Secret))


async def complete(provider: Provider, request: Request) -> list[Chunk]:
    """Collect the whole stream, without chunks that a reset discarded."""
    chunks: list[Chunk] = []
    async for chunk in provider.stream(request):
        if type(chunk) is ResetChunk:
            chunks.clear()
        else:
            chunks.append(chunk)
    return chunks


def encode_messages(messages: Sequence[Message], key: str, encode_one: Callable[[Message], bytes]) -> list[bytes]:
    """Encode each message for a vendor, cached on the message under `key` across requests.

    Raises BrokenHistory if a tool call has no result, or a result no call.
    """
    pieces: list[bytes] = []
    expected_ids: Ids = ()
    for index, message in enumerate(messages):
        call_ids, answered_ids = message.pairing
        if answered_ids != expected_ids:
            raise _broken_history(messages, index, expected_ids)
        expected_ids = call_ids
        piece: bytes | None = getattr(message, key, None)
        if piece is None:
            piece = memo(message)[key] = encode_one(message)
        if piece:
            pieces.append(piece)
    if expected_ids:
        raise _broken_history(messages, len(messages), expected_ids)
    return pieces


def _broken_history(messages: Sequence[Message], index: int, expected_ids: Ids) -> BrokenHistory:
    expected = f"a result of {', '.join(expected_ids)}" if expected_ids else "no result"
    found = f"message {messages[index].id!r} ({messages[index].role})" if index < len(messages) else "the end"
    return BrokenHistory(f"broken history: expected {expected}, found {found}; the request was not sent")


def render_result_text(result: ToolResult) -> str:
    """Render a tool result as text for a model, with a note in place of each image."""
    return render_result(result)[0]


def render_result(result: ToolResult) -> tuple[str, list[Image]]:
    """Render a tool result as text and a list of images, for models with vision."""
    if isinstance(result.result, str):
        return (result.result if result.status == "ok" else f"Error ({result.error}): {result.result}"), []
    raw = encode(result.result)
    if b'"image"' not in raw:
        return raw.decode(), []
    without_images, images = extract_images(result.result)
    return encode(without_images).decode(), [image for image in images if image.media_type in _IMAGE_TYPES]


def dump_arguments(value: object) -> str:
    """Convert arguments that arrived as a value to the text they would have been; invalid JSON stays visible."""
    return json.dumps(value)


def build_tool_call(id: str, name: str, raw: str, *, truncated: bool) -> ToolCall:
    """Build a tool call with strictly parsed arguments; invalid or truncated arguments are kept as raw text."""
    raw = clean(raw)
    if truncated:
        return ToolCall(id, name, {}, malformed=raw)
    try:
        return ToolCall(id, name, parse_object(raw) if raw.strip() else {})
    except ValueError:
        return ToolCall(id, name, {}, malformed=raw)


def classify_response(status: int, body: object, headers: Mapping[str, str]) -> ProviderError:
    """Classify a response with a status other than 200."""
    names, message = _read_error(body)
    kind: ProviderFault = _BY_STATUS.get(status) or ("server" if status >= 500 else "bad_request")
    fault = next((_BY_NAME[name] for name in names if name in _BY_NAME), None)
    if fault in ("quota", "context_length") or (kind == "bad_request" and _exceeds_context(message)):
        kind = "quota" if fault == "quota" else "context_length"
    if status == 500 and _INVALID_CALL_FORMAT in message:
        kind = "protocol"
    text = f"HTTP {status}: {message}" if message else f"HTTP {status}"
    return ProviderError(text, kind, status=status, retry_after=retry_after(headers))


def classify_error_event(body: object) -> ProviderError:
    """Classify an error event in a stream that began with status 200."""
    names, message = _read_error(body)
    kind: ProviderFault | None = next((_BY_NAME[name] for name in names if name in _BY_NAME), None)
    if kind is None:
        status = next((int(name) for name in names if _STATUS.fullmatch(name)), 0)
        kind = _BY_STATUS.get(status) or ("bad_request" if 400 <= status < 500 else "unknown")
    if kind == "bad_request" and _exceeds_context(message):
        kind = "context_length"
    return ProviderError(message or "the provider reported an unspecified error", kind)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait from a Retry-After header; None if it is missing or invalid."""
    if (milliseconds := _parse_seconds(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    if (seconds := _parse_seconds(value)) is not None or value is None:
        return seconds
    import email.utils  # rarely needed and slow to import

    try:
        wait = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, TypeError, OverflowError):
        return None
    return wait if wait > 0 else None


def _parse_seconds(value: str | None) -> float | None:
    try:
        seconds = float(value) if value is not None else math.nan
    except ValueError:
        return None
    return seconds if seconds >= 0 else None


def _read_error(body: object) -> tuple[list[str], str]:
    """Extract (identifiers that may classify the error, its message) from the formats vendors use."""
    if not isinstance(body, dict):
        return [], clean(str(body))[:500].strip() if body else ""
    outer = cast(dict[str, Any], body)
    inner = outer.get("error", outer)
    if not isinstance(inner, dict):
        return [], clean(str(inner))[:500]
    fields = cast(dict[str, Any], inner)
    names = [str(fields[name]) for name in ("code", "type", "status") if fields.get(name)]
    return names, clean(str(fields.get("message") or ""))[:500]


def _exceeds_context(message: str) -> bool:
    lower = message.lower()
    return any(phrase in lower for phrase in _LENGTH_PHRASES)


def is_fetchable(url: str) -> bool:
    """Return whether a URL may be passed on to a vendor."""
    return url.startswith("data:") or is_public_url(url)
