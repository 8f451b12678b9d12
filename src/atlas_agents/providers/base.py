"""Provider port: requests, chunks, prices, error classification and shared encoding helpers."""

import base64
import hashlib
import json
import logging
import math
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable
from urllib.parse import unquote_to_bytes

import msgspec

from atlas_agents.core.errors import BrokenHistory, ConfigError, ProviderError, ProviderFault
from atlas_agents.core.events import Usage
from atlas_agents.core.http import is_public_url
from atlas_agents.core.json import encode, parse_object
from atlas_agents.core.messages import File, Ids, Image, Message, ToolCall, ToolResult, ToolSpec, extract_images, memo
from atlas_agents.core.metadata import Metadata
from atlas_agents.core.paths import Secret
from atlas_agents.core.text import clean
from atlas_agents.providers import catalogue
from atlas_agents.providers.catalogue import Price
from atlas_agents.providers.settings import DEFAULT_SETTINGS, ModelSettings

_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/toml", "application/javascript")
_TEXT_SUFFIXES = ("+json", "+xml", "+yaml")
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
logger = logging.getLogger(__name__)
_SENT_PROMPT = "sent_prompt"
turn_warnings: ContextVar[dict[str, str] | None] = ContextVar("atlas_turn_warnings", default=None)
"""Collects the settings that the requests of a turn do not send as given, by name."""
StopReason: TypeAlias = Literal["stop", "tool_calls", "length", "refusal", "pause", "other"]
CONTENT_FILTER = "the vendor's content filter stopped it"
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
    "enforced_spend_limit_reached": "quota",
    "organization_on_hold": "auth",
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
    "tool_use_failed": "protocol",
    "not_found_error": "model_not_found",
    "UNAUTHENTICATED": "auth",
    "PERMISSION_DENIED": "auth",
    "API_KEY_INVALID": "auth",
    "RESOURCE_EXHAUSTED": "rate_limit",
    "UNAVAILABLE": "overloaded",
    "INTERNAL": "server",
    "DEADLINE_EXCEEDED": "timeout",
    "INVALID_ARGUMENT": "bad_request",
    "FAILED_PRECONDITION": "bad_request",
    "NOT_FOUND": "model_not_found",
    "model_not_found": "model_not_found",
}
_STATUS = re.compile("[1-5][0-9]{2}")
_INVALID_CALL_FORMAT = "does not match the expected"  # llama.cpp's message when its model violates the format of a call
_LENGTH_PHRASES = (
    *("context length", "context window", "prompt is too long", "maximum context", "too many tokens"),
    *("maximum number of tokens", "context limit", "context size", "maximum prompt length", "input is too long"),
    "reduce the length of the messages",
)
OMITTED_NOTE = "[omitted: content at a non-public address]"


class Capabilities(msgspec.Struct, frozen=True):
    """Native capabilities of a provider; the agent loop emulates the rest.

    Args:
        streaming: Whether an answer arrives in pieces.
        tools: Whether the model can call tools; otherwise they are described in the prompt.
        structured: Whether the provider enforces a JSON schema of the answer.
    """

    streaming: bool = True
    tools: bool = True
    structured: bool = False


Dialect: TypeAlias = Literal["plain", "anthropic", "openai", "gemini"]
"""Rules that a server applies to an output schema; "plain" for servers that take any schema with an object as root."""


class OutputSpec(msgspec.Struct, frozen=True, dict=True):
    """Structured output: a JSON schema and its name. `__dict__` caches it in the form of each vendor.

    `strict` if the vendor is to enforce the schema. With `json_mode` the schema is in the system prompt instead, and
    only the format of the answer is enforced. See `providers/schemas.py`.
    """

    name: str
    schema: dict[str, Any]
    strict: bool = False
    json_mode: bool = False


class Request(msgspec.Struct, frozen=True):
    """A model request. `tool_choice` is auto, none, required or a tool's name.

    `without` names settings or parts of the request that this model refused before and that must not be sent.
    `stable_system` is the beginning of `system` that is the same in every request of a session.

    Attributes:
        messages: The conversation, oldest message first.
        system: The system prompt.
        tools: Tools that the model may call.
        model: Name of the model; that of the provider if None.
        tool_choice: `"auto"`, `"none"`, `"required"`, or the name of a tool.
        settings: Sampling, effort, caching and other settings.
        output: Schema that the answer must match.
        metadata: Values of the turn, which are not sent.
        without: Settings or parts that this model refused before and that must not be sent.
        stable_system: Beginning of `system` that is the same in every request of a session.
    """

    messages: Sequence[Message]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    model: str | None = None
    tool_choice: str = "auto"
    settings: ModelSettings = DEFAULT_SETTINGS
    output: OutputSpec | None = None
    metadata: Metadata | None = None
    without: frozenset[str] = frozenset()
    stable_system: str = ""


class TextChunk(msgspec.Struct, frozen=True, gc=False, tag="text", tag_field="type"):
    """A piece of text.

    Attributes:
        text: The new piece of text.
    """

    text: str


class ThinkingChunk(msgspec.Struct, frozen=True, gc=False, tag="thinking", tag_field="type"):
    """A piece of reasoning; the last chunk of a block may carry its signature.

    Attributes:
        text: The new piece of text.
        signature: The vendor's signature of the block.
    """

    text: str
    signature: str = ""


class ToolCallChunk(msgspec.Struct, frozen=True, tag="tool_call", tag_field="type", omit_defaults=True):
    """A complete tool call, yielded only after the message is complete. An empty id is replaced by the agent loop.

    `after` is the number of signed or opaque parts before the call, if such a part follows it.

    Attributes:
        call: The call.
        after: Number of signed or opaque parts before the call, if such a part follows it; otherwise -1.
    """

    call: ToolCall
    after: int = -1


class OpaqueChunk(msgspec.Struct, frozen=True, tag="opaque", tag_field="type"):
    """A complete vendor-specific block of unknown type.

    Attributes:
        vendor: Id of the vendor.
        block: The block as the vendor sent it.
    """

    vendor: str
    block: dict[str, Any]


class ResetChunk(msgspec.Struct, frozen=True, gc=False, tag="reset", tag_field="type"):
    """Discards all chunks so far; another attempt follows. `usage` is the vendor's figure for the last attempt.

    Attributes:
        attempt: Number of the attempt that follows.
        usage: Usage of the last attempt as the vendor reported it.
    """

    attempt: int
    usage: Usage | None = None


class DoneChunk(msgspec.Struct, frozen=True, tag="done", tag_field="type"):
    """The message is complete. A stream without it is incomplete.

    Attributes:
        usage: Tokens of the request and the reply.
        stop_reason: Why the reply ended.
        model: Name of the model that answered, as the vendor reports it.
    """

    usage: Usage = Usage()
    stop_reason: StopReason = "stop"
    model: str = ""
    detail: str = ""
    """Reason of a refusal, if the vendor gives one."""


Chunk: TypeAlias = TextChunk | ThinkingChunk | ToolCallChunk | OpaqueChunk | ResetChunk | DoneChunk
"""Union of all chunks that a provider yields."""


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


class BaseProvider:
    """Base class of providers, with methods derived from `stream`. Your own providers may use it, but need not."""

    async def complete(self: Provider, request: Request) -> list[Chunk]:
        """Send a request and return all chunks of its answer, without those that a reset discarded."""
        return await complete(self, request)


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


class _SentPrompt(msgspec.Struct, frozen=True):
    """A request, kept at its last message until the next one."""

    cache: str
    tools: tuple[ToolSpec, ...]
    system: str
    before: tuple[Message, ...]
    """The messages before the last one, which has this value in its cache: a cycle would keep both in memory."""
    is_reported: bool


def check_prefix(request: Request, cache: str) -> None:
    """Log a change in the beginning of a conversation's prompt since the previous request.

    Vendors cache a prompt up to the first change. `cache` names the provider and the model, whose cache it is. A
    conversation is reported once.
    """
    messages = tuple(request.messages)
    if not messages or hasattr(messages[-1], _SENT_PROMPT):  # sent again
        return
    previous = _find_last_sent(messages)
    sent: _SentPrompt | None = memo(messages[previous]).pop(_SENT_PROMPT, None) if previous >= 0 else None
    is_reported = sent is not None and sent.is_reported
    if sent is not None and sent.cache == cache and (change := _find_change(sent, request, previous)) is not None:
        level = logging.DEBUG if is_reported else logging.WARNING
        logger.log(level, "prompt prefix changed, the vendor's cache does not apply after it: part=%s at=%d", *change)
        is_reported = True
    memo(messages[-1])[_SENT_PROMPT] = _SentPrompt(cache, request.tools, request.system, messages[:-1], is_reported)


def _find_last_sent(messages: Sequence[Message]) -> int:
    """Return the position of the last message of the previous request: the one before the last reply."""
    index = len(messages) - 1
    while index >= 0 and messages[index].role != "assistant":
        index -= 1
    while index >= 0 and messages[index].role == "assistant":
        index -= 1
    return index


def _find_change(sent: _SentPrompt, request: Request, previous: int) -> tuple[str, int] | None:
    """Return the part that changed first, and the position in it."""
    if sent.tools != request.tools:
        return "tools", _common_length(sent.tools, request.tools)
    if sent.system != request.system:
        return "system", _common_length(sent.system, request.system)
    before = tuple(request.messages[:previous])
    if sent.before == before:
        return None
    index = _common_length(sent.before, before)
    return None if _is_compacted(sent.before[index:], before[index:]) else ("messages", index)


def _is_compacted(sent: Sequence[Message], now: Sequence[Message]) -> bool:
    """Return whether the change is a summary or a note in place of a tool result, both of which are intended."""
    return bool(now) and ("summary" in now[0].metadata or bool(sent and sent[0].id == now[0].id))


def _common_length(first: Sequence[object], second: Sequence[object]) -> int:
    pairs = zip(first, second, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))


def render_result_text(result: ToolResult) -> str:
    """Render a tool result as text for a model, with a note in place of each image and binary file."""
    return render_result(result)[0]


def render_result(result: ToolResult) -> tuple[str, list[Image]]:
    """Render a tool result as text and a list of images, for models with vision."""
    if isinstance(result.result, str):
        return (result.result if result.status == "ok" else f"Error ({result.error}): {result.result}"), []
    raw = encode(result.result)
    if b'"image"' not in raw and b'"file"' not in raw:
        return raw.decode(), []
    without_images, images = extract_images(result.result)
    return encode(without_images).decode(), [image for image in images if image.media_type in IMAGE_TYPES]


def dump_arguments(value: object) -> str:
    """Encode arguments that arrived as a value as JSON text; invalid JSON stays visible."""
    return json.dumps(value)


def make_encodable(block: dict[str, Any]) -> dict[str, Any]:
    """Make a block safe to send again: lone surrogates are replaced, numbers that JSON cannot express are errors."""
    try:
        raw = encode(block)
    except UnicodeEncodeError:
        block = json.loads(clean(json.dumps(block, ensure_ascii=False)))
        raw = encode(block)
    if json.loads(raw) != block:
        raise ProviderError("a block of the response is not valid JSON and could not be sent again", "protocol")
    return block


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
    if fault == "protocol" or (status == 500 and _INVALID_CALL_FORMAT in message):
        kind = "protocol"
    if status == 404 or (kind == "bad_request" and fault == "model_not_found"):
        kind = "model_not_found"
    if kind == "bad_request" and fault == "auth":
        kind = "auth"
    text = f"HTTP {status}: {message}" if message else f"HTTP {status}"
    code, param = next((name for name in names if not name.isdigit()), ""), _read_param(body)
    wait = retry_after(headers)
    return ProviderError(
        text, kind, status=status, retry_after=_read_delay(body) if wait is None else wait, code=code, param=param
    )


def classify_error_event(body: object) -> ProviderError:
    """Classify an error event in a stream that began with status 200."""
    names, message = _read_error(body)
    kind: ProviderFault | None = next((_BY_NAME[name] for name in names if name in _BY_NAME), None)
    if kind is None:
        status = next((int(name) for name in names if _STATUS.fullmatch(name)), 0)
        kind = _BY_STATUS.get(status) or ("bad_request" if 400 <= status < 500 else "unknown")
    if kind == "bad_request" and _exceeds_context(message):
        kind = "context_length"
    code = next((name for name in names if not name.isdigit()), "")
    return ProviderError(
        message or "the provider reported an unspecified error", kind, retry_after=_read_delay(body), code=code
    )


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
    error = _unwrap_error(body)
    if not isinstance(error, dict):
        return [], clean(str(error))[:500].strip() if error else ""
    fields = cast(dict[str, Any], error)
    names = [str(fields[name]) for name in ("code", "type", "status") if fields.get(name)]
    return _read_reasons(fields) + names, clean(str(fields.get("message") or ""))[:500]


def _unwrap_error(body: object) -> object:
    """Return the error in a body. Google may send it in an array."""
    if isinstance(body, list) and len(cast(list[object], body)) == 1:
        body = cast(list[object], body)[0]
    return cast(dict[str, Any], body).get("error", body) if isinstance(body, dict) else body


def _read_details(error: object, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the details of a Google error that have this type, such as `RetryInfo`."""
    details = cast(dict[str, Any], error).get("details") if isinstance(error, dict) else None
    for detail in cast(list[Any], details) if isinstance(details, list) else ():
        if isinstance(detail, dict) and str(cast(dict[str, Any], detail).get("@type")).endswith(f"google.rpc.{kind}"):
            yield cast(dict[str, Any], detail)


def _read_reasons(fields: dict[str, Any]) -> list[str]:
    """Return more specific reasons from the details: Anthropic's code, Google's reason, and a daily quota."""
    if isinstance(details := fields.get("details"), dict) and "error_code" in details:
        return [str(cast(dict[str, Any], details)["error_code"])]
    reasons = [str(detail.get("reason")) for detail in _read_details(fields, "ErrorInfo")]
    is_daily = any("PerDay" in str(detail.get("violations")) for detail in _read_details(fields, "QuotaFailure"))
    return [*reasons, "insufficient_quota"] if is_daily else reasons


def _read_delay(body: object) -> float | None:
    """Return the seconds to wait from the details of a Google error."""
    for detail in _read_details(_unwrap_error(body), "RetryInfo"):
        return _parse_seconds(str(detail.get("retryDelay")).removesuffix("s"))
    return None


def _read_param(body: object) -> str:
    error = _unwrap_error(body)
    param = cast(dict[str, Any], error).get("param") if isinstance(error, dict) else None
    for detail in _read_details(error, "BadRequest"):
        violations = cast(object, detail.get("fieldViolations"))
        first: Any = cast(list[Any], violations)[0] if isinstance(violations, list) and violations else None
        param = cast(dict[str, Any], first).get("field") if isinstance(first, dict) else None
    return clean(param)[:200] if isinstance(param, str) else ""


def _exceeds_context(message: str) -> bool:
    lower = message.lower()
    return any(phrase in lower for phrase in _LENGTH_PHRASES)


def make_cache_key(request: Request) -> str:
    """Return a key that the requests of one conversation share, by which a vendor finds their cached prefix."""
    first = next(iter(request.messages), None)
    return hashlib.sha256(first.id.encode()).hexdigest()[:32] if first else ""


def read_file(file: File) -> tuple[str, str]:
    """Return the media type and the base64 data of a file, which may be in a `data:` URL."""
    head, separator, data = file.url.removeprefix("data:").partition(",")
    if not file.url.startswith("data:") or not separator:
        return file.media_type, file.data
    media_type, _, encoding = head.partition(";")
    if "base64" not in encoding:
        data = base64.b64encode(unquote_to_bytes(data)).decode()
    return media_type or file.media_type, data


def read_text_file(file: File) -> str | None:
    """Return the text of a text file; None if it is not one."""
    media_type, data = read_file(file)
    if not media_type.startswith("text/") and media_type not in _TEXT_TYPES and not media_type.endswith(_TEXT_SUFFIXES):
        return None
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        return None


def is_fetchable(url: str) -> bool:
    """Return whether a URL may be passed on to a vendor."""
    return url.startswith("data:") or is_public_url(url)


class Prices:
    """Prices by model name: those that were given, by prefix so that dated names are found, then the catalogue's."""

    def __init__(self, prices: Mapping[str, Price] | None = None) -> None:
        for name, price in (prices or {}).items():
            if not isinstance(cast(object, price), Price):
                raise ConfigError(f"invalid price of {name!r}: expected Price(…), got {price!r}")
            if not price.is_valid:
                raise ConfigError(f"invalid price of {name!r}: must not be negative")
        self._prices = dict(prices or {})
        self._cache: dict[str, Price | None] = {}
        self._day = 0

    def find(self, model: str) -> Price | None:
        """Return the price of a model; None if it is unknown."""
        if not self._day <= time.time() < self._day + 86_400 or len(self._cache) > 1000:
            self._day = int(time.time()) // 86_400 * 86_400  # a price may change from one day to the next
            self._cache.clear()
        found = self._cache.get(model)
        if found is None and model not in self._cache:
            found = self._cache[model] = self._look_up(model)
        return found

    def _look_up(self, model: str) -> Price | None:
        matching = [name for name in self._prices if catalogue.matches_version(model, name)]
        if matching:
            return self._prices[max(matching, key=len)]
        may_be_known = catalogue.registered or catalogue.VENDOR_NAMES.search(model.lower())
        return catalogue.find_price(model) if may_be_known else None
