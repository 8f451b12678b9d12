"""Anthropic Messages API: request encoder, stream decoder and provider."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import msgspec

from atlas_agents.core.errors import ProviderError
from atlas_agents.core.events import Usage
from atlas_agents.core.json import encode
from atlas_agents.core.messages import (
    File,
    Image,
    Message,
    Opaque,
    Part,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    ToolSpec,
    memo,
)
from atlas_agents.core.text import SurrogateJoiner, clean, wire_name
from atlas_agents.providers import adaptation, base, http, schemas
from atlas_agents.providers.catalogue import UNKNOWN, ModelProfile
from atlas_agents.providers.settings import EFFORT_BUDGETS

_STOP: dict[str, base.StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
    "pause_turn": "pause",
}
_HANDLED_EVENTS = frozenset(
    (
        b"message_start",
        b"content_block_start",
        b"content_block_delta",
        b"content_block_stop",
        b"message_delta",
        b"message_stop",
    )
)
"""Events that are decoded; all others, such as pings, are skipped."""
_CACHE = "anthropic_bytes"
_STRICT_CACHE = "anthropic_strict"
_STRICT_LIMITS = (20, 24, 16)
"""Maximum number of strict tools of a request, and of optional properties and unions in their schemas."""
_MAX_TOKENS = 8192
_MAX_TOKENS_REASONING = 32_000
_VERSION = "2026-10-21"
_SAMPLING_VERSION = "2023-06-01"
"""Last API version with `temperature` and `top_p`; other servers and older models may support no later one."""
_SAMPLING = ("temperature", "top_p")
_MISSING_SETTINGS = ("seed",)
_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_MARKS = {
    "5m": b',"cache_control":{"type":"ephemeral"}',
    "1h": b',"cache_control":{"type":"ephemeral","ttl":"1h"}',
}
_USER = b'{"role":"user"'
_THINKING_FIRST = (
    b'{"role":"assistant","content":[{"type":"thinking"',
    b'{"role":"assistant","content":[{"type":"redacted_thinking"',
)
_REASONING_BLOCKS = ("thinking", "redacted_thinking")
_ACCEPTED = {
    "image": "PNG, JPEG, GIF and WebP images, as data or at an https address",
    "document": "PDF files, as data or at an https address, and text files as data",
}


class _OutputDetails(msgspec.Struct):
    thinking_tokens: int | None = None


class _CacheWrites(msgspec.Struct):
    ephemeral_1h_input_tokens: int | None = None


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: _CacheWrites | None = None
    output_tokens_details: _OutputDetails | None = None


class _StopDetails(msgspec.Struct):
    category: str | None = None
    explanation: str | None = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None
    stop_details: _StopDetails | None = None


class _Start(msgspec.Struct):
    model: str = ""
    usage: _Usage | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Start | None = None
    content_block: dict[str, Any] | None = None
    delta: _Delta | None = None
    usage: _Usage | None = None


class _MessageResponse(msgspec.Struct):
    """A complete, non-streamed response."""

    content: list[dict[str, Any]] = []
    error: Any = None
    stop_reason: str | None = None
    stop_details: _StopDetails | None = None
    model: str = ""
    usage: _Usage | None = None


_decoder = msgspec.json.Decoder(_Event)
_response_decoder = msgspec.json.Decoder(_MessageResponse)


class _Block:
    """A content block that is still streaming."""

    __slots__ = ("content", "joiner", "kind", "pieces")

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content
        self.kind = str(content.get("type", ""))
        self.pieces: list[str] = []
        self.joiner = SurrogateJoiner()


class AnthropicReader:
    """Decoder of one Messages API response."""

    def __init__(self) -> None:
        self.event_count = 0
        self.complete = False
        self.closed = False
        self._events = http.EventSplitter()
        self._started = False
        self._open: dict[int, _Block] = {}
        self._calls: list[ToolCall] = []
        self._reasoning_before: list[int] = []
        """Number of reasoning blocks that precede each call."""
        self._reasoning_blocks = 0
        self._stop = self._detail = self._model = ""
        self._text_length = 0
        self._input = self._output = self._cached = self._cache_written = self._reasoning = 0
        self._cache_written_1h = 0
        self._counted = False

    def renew(self) -> "AnthropicReader":
        return AnthropicReader()

    def feed(self, piece: bytes) -> list[base.Chunk]:
        chunks: list[base.Chunk] = []
        for name, data in self._events.feed(piece):
            if self.closed:
                break
            if name in _HANDLED_EVENTS:
                self._handle_event(http.read_event(_decoder, data), chunks)
            elif name == b"error":
                raise base.classify_error_event(http.read_plain(data))
        return chunks

    def decode_body(self, body: bytes) -> list[base.Chunk]:
        response = http.read_event(_response_decoder, body)
        if response.error is not None:
            raise base.classify_error_event({"error": response.error})
        chunks: list[base.Chunk] = []
        self._start_message(_Event(message=_Start(response.model, response.usage)))
        for index, block in enumerate(response.content):
            self._open_block(_Event(index=index, content_block=block), chunks)
            self._close_block(_Event(index=index), chunks)
        delta = _Delta(stop_reason=response.stop_reason, stop_details=response.stop_details)
        self._end_message(_Event(delta=delta, usage=response.usage))
        return chunks + self.finish()

    def finish(self) -> list[base.Chunk]:
        if self.event_count == 0:
            raise ProviderError("empty response: the stream contained no message events", "empty_response")
        if not self.complete:
            raise ProviderError("the stream ended before its stop_reason", "incomplete")
        if self._open:
            raise ProviderError("the stream ended inside a content block", "incomplete")
        stop = _STOP.get(self._stop, "other")
        calls = self._calls if stop in ("stop", "tool_calls", "length") else []
        if not calls and not self._text_length and stop in ("stop", "tool_calls"):
            raise ProviderError("empty response: neither text nor a tool call", "empty_response")
        if stop == "length":  # truncated: there is no telling which call is complete
            calls = [base.build_tool_call(call.id, call.name, _raw_arguments(call), truncated=True) for call in calls]
        output = self._output if self._counted else round(self._text_length / 3.6)
        total = self._input + self._cached + self._cache_written  # `input_tokens` excludes cached tokens
        usage = Usage(
            total,
            output,
            self._cached,
            estimated=not self._counted,
            cache_write_tokens=self._cache_written,
            reasoning_tokens=self._reasoning,
            cache_write_1h_tokens=self._cache_written_1h,
        )
        return [*self._place_calls(calls), base.DoneChunk(usage, stop, self._model, self._detail)]

    def _place_calls(self, calls: list[ToolCall]) -> list[base.Chunk]:
        """Return the calls. A call before further reasoning has its position, because the order must not change."""
        places = [before if before < self._reasoning_blocks else -1 for before in self._reasoning_before]
        return [base.ToolCallChunk(call, place) for call, place in zip(calls, places, strict=False)]

    def _handle_event(self, event: _Event, chunks: list[base.Chunk]) -> None:
        match event.type:
            case "content_block_delta":
                self._add_delta(event, chunks)
            case "message_start":
                self._start_message(event)
            case "content_block_start":
                self._open_block(event, chunks)
            case "content_block_stop":
                self._close_block(event, chunks)
            case "message_delta":
                self._end_message(event)
            case "message_stop":
                self._require(self._started, "message_stop before message_start")
                self.closed = self.complete
            case _:
                return
        self.event_count += 1

    def _start_message(self, event: _Event) -> None:
        self._require(not self._started, "repeated message_start")
        self._started = True
        self.event_count += 1
        if event.message:
            self._model = clean(event.message.model)
            self._count(event.message.usage, final=False)

    def _open_block(self, event: _Event, chunks: list[base.Chunk]) -> None:
        self._require(
            self._started and not self.complete and event.index not in self._open, "content block out of order"
        )
        block = self._open[event.index] = _Block(event.content_block or {})
        text, thought = block.content.get("text"), block.content.get("thinking")
        if block.kind == "text" and text:
            self._add_text(block, str(text), chunks)
        elif block.kind == "thinking" and thought:
            chunks.append(base.ThinkingChunk(block.joiner.add(str(thought))))

    def _add_delta(self, event: _Event, chunks: list[base.Chunk]) -> None:
        block, delta = self._open.get(event.index), event.delta
        if block is None or delta is None:
            raise ProviderError(f"out of order: delta for block {event.index}, which is not open", "protocol")
        if delta.text:
            self._add_text(block, delta.text, chunks)
        elif delta.thinking:
            chunks.append(base.ThinkingChunk(block.joiner.add(delta.thinking)))
        elif delta.signature:
            block.content["signature"] = delta.signature
        elif delta.partial_json:
            block.pieces.append(delta.partial_json)

    def _add_text(self, block: _Block, text: str, chunks: list[base.Chunk]) -> None:
        self._text_length += len(text)
        if text := block.joiner.add(text):
            chunks.append(base.TextChunk(text))

    def _close_block(self, event: _Event, chunks: list[base.Chunk]) -> None:
        block = self._open.pop(event.index, None)
        if block is None:
            raise ProviderError(f"out of order: block {event.index} ended but was not open", "protocol")
        content = block.content
        match block.kind:
            case "text":
                if remainder := block.joiner.flush():
                    chunks.append(base.TextChunk(remainder))
            case "thinking":
                signature = clean(str(content.get("signature") or ""))
                self._reasoning_blocks += bool(signature)
                chunks.append(base.ThinkingChunk(block.joiner.flush(), signature))
            case "tool_use":
                raw = "".join(block.pieces) or base.dump_arguments(content.get("input") or {})
                name, id = clean(str(content.get("name") or "")), clean(str(content.get("id") or ""))
                self._calls.append(base.build_tool_call(id, name, raw, truncated=False))
                self._reasoning_before.append(self._reasoning_blocks)
            case _:
                if block.pieces:
                    content = {**content, "input": http.read_plain(clean("".join(block.pieces)).encode())}
                self._reasoning_blocks += 1
                chunks.append(base.OpaqueChunk("anthropic", base.make_encodable(content)))

    def _end_message(self, event: _Event) -> None:
        self._require(self._started, "message_delta before message_start")
        self._count(event.usage, final=True)
        if event.delta and event.delta.stop_reason and not self.complete:
            self.complete, self._stop = True, event.delta.stop_reason
            details = event.delta.stop_details or _StopDetails()
            self._detail = clean(": ".join([text for text in (details.category, details.explanation) if text]))

    def _count(self, usage: _Usage | None, *, final: bool) -> None:
        """Update the usage. Counts are running totals, so the last one wins; the initial output count is ignored."""
        if usage is None:
            return
        self._input = usage.input_tokens if usage.input_tokens is not None else self._input
        self._cached = usage.cache_read_input_tokens or self._cached
        self._cache_written = usage.cache_creation_input_tokens or self._cache_written
        if usage.cache_creation is not None:
            self._cache_written_1h = usage.cache_creation.ephemeral_1h_input_tokens or self._cache_written_1h
        if usage.output_tokens_details is not None:
            self._reasoning = usage.output_tokens_details.thinking_tokens or self._reasoning
        if final and usage.output_tokens is not None:
            self._output, self._counted = usage.output_tokens, True

    def _require(self, condition: bool, problem: str) -> None:
        if not condition:
            raise ProviderError(f"stream events out of order: {problem}", "protocol")


def _raw_arguments(call: ToolCall) -> str:
    return call.malformed if call.malformed is not None else encode(call.arguments).decode()


def encode_request(
    request: base.Request,
    model: str,
    profile: ModelProfile = UNKNOWN,
    *,
    binding_controls: bool = False,
) -> bytes:
    """Encode the request body. Raises BrokenHistory if a tool call and its result are separated.

    With `binding_controls` the API itself drops reasoning that no longer fits the conversation before it.
    """
    if adaptation.REASONING in request.without:
        _forget_reasoning(request.messages)
    pieces = base.encode_messages(request.messages, _CACHE, _encode_message)
    strict = adaptation.enforces_tools(request, profile, default=False)
    tools = _encode_strict_tools(request.tools) if strict else [_encode_tool(tool) for tool in request.tools]
    mark = _find_mark(request, profile)
    if mark:
        tools[-1:] = [tool[:-1] + mark + b"}" for tool in tools[-1:]]
        if tools or len(pieces) > 1:  # a single question is not sent again
            _mark_history(pieces, mark)
    parts = [
        b'{"model":',
        encode(model),
        b',"stream":true,"messages":[',
        b",".join(pieces),
        b"],",
        encode(_encode_settings(request, profile, binding_controls))[1:-1],
    ]
    if request.system:
        parts += [b',"system":', _encode_system(request, mark)]
    if tools:
        parts += [b',"tools":[', b",".join(tools), b"]"]
    parts.append(b"}")
    return b"".join(parts)


def _find_mark(request: base.Request, profile: ModelProfile) -> bytes:
    """Return the mark at the end of the cached prefix; empty if caching is off, or if the caller sets the mark."""
    wanted = request.settings.cache
    if wanted == "off" or "cache" in request.without or "cache_control" in request.settings.extra_body:
        return b""
    return _MARKS[wanted or "5m"] if wanted or profile.cache_marks else b""


def _mark_history(pieces: list[bytes], mark: bytes) -> None:
    """Mark the end of the history, and the end of the request before it.

    The API looks for an earlier mark in the 20 blocks before each mark; a round with many calls has more.
    """
    last = _find_user(pieces, len(pieces) - 1)
    reply = last - 1
    while reply >= 0 and pieces[reply].startswith(_USER):
        reply -= 1
    for index in (last, _find_user(pieces, reply)):
        if index >= 0:
            pieces[index] = pieces[index][:-3] + mark + b"}]}"


def _find_user(pieces: list[bytes], index: int) -> int:
    while index >= 0 and not pieces[index].startswith(_USER):
        index -= 1
    return index


def _encode_system(request: base.Request, mark: bytes) -> bytes:
    """Encode the system prompt. Parts that change between rounds follow the cached part in their own block."""
    if not mark:
        return encode(request.system)
    stable, rest = request.system, ""
    if request.stable_system and stable.startswith(request.stable_system):
        stable, rest = request.stable_system, stable.removeprefix(request.stable_system)
    if not rest.strip():
        stable, rest = request.system, ""
    blocks = [encode({"type": "text", "text": stable})[:-1] + mark + b"}"]
    if rest:
        blocks.append(encode({"type": "text", "text": rest}))
    return b"[" + b",".join(blocks) + b"]"


def _encode_settings(request: base.Request, profile: ModelProfile, binding_controls: bool) -> dict[str, Any]:
    settings = request.settings
    effort = adaptation.resolve_effort(settings, profile)
    thinking = _encode_thinking(request, profile, effort, binding_controls)
    fields: dict[str, Any] = {"max_tokens": settings.max_tokens or _default_max_tokens(thinking, profile)}
    for name in _SAMPLING:
        if (value := getattr(settings, name)) is not None:
            fields[name] = value
    if settings.stop:
        fields["stop_sequences"] = list(settings.stop)
    if settings.service_tier:
        fields["service_tier"] = settings.service_tier
    if request.tools and (choice := _encode_choice(request)) != {"type": "auto"}:
        fields["tool_choice"] = choice
    if thinking:
        fields["thinking"] = thinking
    output: dict[str, Any] = {}
    if effort.level and thinking.get("type") != "enabled":
        output["effort"] = effort.level
    if request.output:
        output["format"] = {"type": "json_schema", "schema": request.output.schema}
    if output:
        fields["output_config"] = output
    return fields


def _default_max_tokens(thinking: dict[str, Any], profile: ModelProfile) -> int:
    if "budget_tokens" in thinking:
        return thinking["budget_tokens"] + _MAX_TOKENS
    reasons = thinking.get("type") == "adaptive" or profile.reasoning in ("default", "always")
    return min(_MAX_TOKENS_REASONING if reasons else _MAX_TOKENS, profile.output_limit or _MAX_TOKENS_REASONING)


def _encode_thinking(
    request: base.Request, profile: ModelProfile, effort: adaptation.ResolvedEffort, binding_controls: bool
) -> dict[str, Any]:
    """Return the field `thinking`; empty if the model decides."""
    if effort.off:
        if profile.off == "between_tools":
            return {"type": "between_tools"}
        return {} if profile.reasoning == "optional" else {"type": "disabled"}
    budget = effort.budget
    if profile.reasoning == "unknown" and effort.level:  # the field that most servers of this API know
        budget = budget or EFFORT_BUDGETS[effort.level]
    if budget is not None:
        if _continues_without_thinking(request.messages):
            return {}
        return {"type": "enabled", "budget_tokens": budget}
    if binding_controls:
        return {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    return {"type": "adaptive"} if effort.level and profile.reasoning == "optional" else {}


def _continues_without_thinking(messages: Sequence[Message]) -> bool:
    """Return whether tools continue a turn that began without thinking: the API then refuses a budget."""
    first: Message | None = None
    for message in reversed(messages):
        if message.role == "assistant":
            first = message
        elif message.role != "tool":
            break
    is_continued = first is not None and messages[-1].role == "tool"
    return is_continued and not getattr(first, _CACHE, b"").startswith(_THINKING_FIRST)


def _encode_choice(request: base.Request) -> dict[str, Any]:
    choice: dict[str, Any]
    match request.tool_choice:
        case "none":
            return {"type": "none"}
        case "auto":
            choice = {"type": "auto"}
        case "required":
            choice = {"type": "any"}
        case name:
            choice = {"type": "tool", "name": wire_name(name)}
    return {**choice, "disable_parallel_tool_use": True} if request.settings.parallel_tool_calls is False else choice


def _encode_tool(tool: ToolSpec) -> bytes:
    encoded: bytes | None = getattr(tool, _CACHE, None)
    if encoded is None:
        tool_fields = {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        encoded = memo(tool)[_CACHE] = encode(tool_fields)
    return encoded


def _encode_strict_tools(tools: Sequence[ToolSpec]) -> list[bytes]:
    """Encode tools as strict ones, as long as all of them together are within the API's limits."""
    encoded: list[bytes] = []
    left = _STRICT_LIMITS
    for tool in tools:
        cache = memo(tool)
        if _STRICT_CACHE not in cache:
            cache[_STRICT_CACHE] = _encode_strict_tool(tool)
        found, *needs = cast(tuple[bytes | None, int, int, int], cache[_STRICT_CACHE])
        rest = tuple([limit - need for limit, need in zip(left, needs, strict=True)])
        if found is None or min(rest) < 0:
            encoded.append(_encode_tool(tool))
        else:
            encoded.append(found)
            left = rest
    return encoded


def _encode_strict_tool(tool: ToolSpec) -> tuple[bytes | None, int, int, int]:
    """Encode a tool as a strict one, if its schema allows it; also return its share of the limits."""
    schema = schemas.strict_parameters(tool, "anthropic")
    if schema is None:
        return None, 0, 0, 0
    fields = {"name": tool.name, "description": tool.description, "input_schema": schema, "strict": True}
    return encode(fields), 1, *schemas.count_choices(schema)


def _encode_message(message: Message) -> bytes:
    blocks = [block for part in message.parts if (block := _encode_part(part)) is not None]
    return _join_blocks(message, blocks)


def _forget_reasoning(messages: Sequence[Message]) -> None:
    """Encode messages without their reasoning, which the API refused, from now on."""
    for message in messages:
        blocks = [block for part in message.parts if (block := _encode_part(part)) is not None]
        others = [block for block in blocks if block.get("type") not in _REASONING_BLOCKS]
        if len(others) < len(blocks):
            memo(message)[_CACHE] = _join_blocks(message, others)


def _join_blocks(message: Message, blocks: list[dict[str, Any]]) -> bytes:
    if message.role == "system":  # most models accept no system message inside a conversation
        blocks = [{"type": "text", "text": f"<system>\n{message.text}\n</system>"}]
    role = "assistant" if message.role == "assistant" else "user"
    return encode({"role": role, "content": blocks}) if blocks else b""


def _encode_part(part: Part) -> dict[str, Any] | None:
    """Encode one part as a content block; None for parts this vendor must not receive."""
    match part:
        case Text(text):
            return _text_block(text) if text.strip() else None
        case ToolCall(id, name, arguments, malformed):
            raw = arguments if malformed is None else {"malformed": malformed}
            return {"type": "tool_use", "id": wire_name(id), "name": wire_name(name), "input": raw}
        case ToolResult(call_id, status, _):
            block = {"type": "tool_result", "tool_use_id": wire_name(call_id), **_encode_result(part)}
            return block if status == "ok" else {**block, "is_error": True}
        case Thinking(text, signature):  # the API rejects thinking without a signature
            return {"type": "thinking", "thinking": text, "signature": signature} if signature else None
        case Image() | File():
            return _encode_media(part)
        case Opaque(vendor, block):
            return block if vendor == "anthropic" else None


def _encode_result(result: ToolResult) -> dict[str, Any]:
    """Encode a tool result: text, followed by its images. A result may have no content, but no empty text."""
    text, images = base.render_result(result)
    if not images:
        return {"content": text} if text.strip() else {}
    blocks = [{"type": "image", "source": _base64(image.media_type, image.data)} for image in images]
    return {"content": [_text_block(text), *blocks] if text.strip() else blocks}


def _encode_media(part: Image | File) -> dict[str, Any]:
    """Encode an image or a document; a note takes the place of one that the API does not accept."""
    kind, name = ("image", "") if isinstance(part, Image) else ("document", part.name)
    if part.url and not base.is_fetchable(part.url):
        return _text_block(base.OMITTED_NOTE)
    source = _encode_source(part if isinstance(part, File) else File("", part.media_type, part.data, part.url), kind)
    if source is None:
        what = f"{name!r} ({part.media_type})" if name else part.media_type
        return _text_block(f"[not sent: {kind} {what}; this model reads {_ACCEPTED[kind]}]")
    return {"type": kind, "source": source, **({"title": name} if name else {})}


def _encode_source(file: File, kind: str) -> dict[str, str] | None:
    accepted = base.IMAGE_TYPES if kind == "image" else ("application/pdf",)
    if file.url and not file.url.startswith("data:"):
        is_accepted = file.url.startswith("https:") and (kind == "image" or file.media_type in accepted)
        return {"type": "url", "url": file.url} if is_accepted else None
    media_type, data = base.read_file(file)
    if media_type in accepted:
        return _base64(media_type, data) if data else None
    text = base.read_text_file(file) if kind == "document" else None
    return {"type": "text", "media_type": "text/plain", "data": text} if text and text.strip() else None


def _text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _base64(media_type: str, data: str) -> dict[str, str]:
    return {"type": "base64", "media_type": media_type, "data": data}


class AnthropicProvider(http.HttpProvider):
    """Anthropic Messages API at `base_url`, by default `ANTHROPIC_BASE_URL` or Anthropic's own address.

    The key comes from `api_key` or `ANTHROPIC_API_KEY`.

    Args:
        model: Name of the model; required unless each request names one or the provider finds one.
        base_url: Address of the API; by default the vendor's `…_BASE_URL` variable, then its own address. One with
            `{model}` in it is the whole address of a request, and the body does not name the model.
        api_key: Key, or a function that returns the current one; by default the vendor's `…_API_KEY` variable.
        timeouts: Timeouts of a request.
        clock: Source of time.
        environment: Settings to read instead of the process environment and `.env`.
        id: Name of the provider in references, errors and usage; by default the vendor's.
        profile: Name of the model whose rules apply, where `model` is a name of your own, such as a deployment.
        key_header: Header that carries the key, if it is not the vendor's; `"Authorization"` sends a bearer token.
    """

    vendor = "Anthropic"
    official_url = "https://api.anthropic.com"
    api_path = "/v1"
    list_query = "?limit=1000"
    list_headers = {"anthropic-version": _VERSION}
    path_model_fields = {"anthropic_version": "vertex-2023-10-16"}  # docs.anthropic.com/en/api/claude-on-vertex-ai

    def _authorize(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def _output_dialect(self, profile: ModelProfile) -> base.Dialect:
        return "anthropic"

    def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        """Send a request to the Messages API and yield its chunks."""
        model = request.model or self.model
        if not model:
            raise ProviderError(
                "no model given: expected a name, for example AnthropicProvider('claude-…')", "bad_request"
            )
        profile = self.find_profile(model)
        request = self._fit_settings(request, model, profile)
        headers = self._headers(**{"anthropic-version": self._choose_version(request, profile)})
        has_own_betas = any(name.lower() == "anthropic-beta" for name in request.settings.extra_headers)
        wants_controls = self.is_official and profile.bound_reasoning and not has_own_betas
        if wants_controls:
            headers["anthropic-beta"] = _BINDING_BETA

        def encode_body(adapted: base.Request) -> bytes:
            controls = wants_controls and adaptation.BLOCK_BINDING not in adapted.without
            if not controls:
                headers.pop("anthropic-beta", None)
            return encode_request(adapted, model, profile, binding_controls=controls)

        return self._exchange(f"{self.base_url}/v1/messages", headers, request, model, encode_body, AnthropicReader())

    def _fit_settings(self, request: base.Request, model: str, profile: ModelProfile) -> base.Request:
        """Return the request without settings that the API does not have, or not together with others."""
        request = self._adaptation.drop(request, model, _MISSING_SETTINGS)
        effort = adaptation.resolve_effort(request.settings, profile)
        if effort.budget is not None and request.tool_choice not in ("auto", "none"):
            request = self._adaptation.drop(request, model, ("effort",), "not together with a forced tool call")
        return request

    def _choose_version(self, request: base.Request, profile: ModelProfile) -> str:
        """Return the API version: the current one, unless the model or a setting needs the one before."""
        if profile.sampling == "no":
            return _VERSION
        samples = any(getattr(request.settings, name) is not None for name in _SAMPLING)
        return _VERSION if self.is_official and not samples else _SAMPLING_VERSION
