"""Anthropic Messages API: request encoder, stream decoder and provider."""

from collections.abc import AsyncGenerator
from functools import partial
from typing import Any

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
from atlas_agents.providers import base, http
from atlas_agents.providers.catalogue import ModelProfile

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
_MAX_TOKENS = 8192
_VERSION = "2023-06-01"


class _Usage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str = ""
    partial_json: str = ""
    thinking: str = ""
    signature: str = ""
    stop_reason: str | None = None


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
        self._stop = ""
        self._model = ""
        self._text_length = 0
        self._input = self._output = self._cached = self._cache_written = 0
        self._counted = False

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
        self._end_message(_Event(delta=_Delta(stop_reason=response.stop_reason), usage=response.usage))
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
        usage = Usage(total, output, self._cached, estimated=not self._counted)
        return [*(base.ToolCallChunk(call) for call in calls), base.DoneChunk(usage, stop, self._model)]

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
                chunks.append(base.ThinkingChunk(block.joiner.flush(), clean(str(content.get("signature") or ""))))
            case "tool_use":
                raw = "".join(block.pieces) or base.dump_arguments(content.get("input") or {})
                name, id = clean(str(content.get("name") or "")), clean(str(content.get("id") or ""))
                self._calls.append(base.build_tool_call(id, name, raw, truncated=False))
            case _:
                if block.pieces:
                    content = {**content, "input": http.read_plain(clean("".join(block.pieces)).encode())}
                chunks.append(base.OpaqueChunk("anthropic", base.make_encodable(content)))

    def _end_message(self, event: _Event) -> None:
        self._require(self._started, "message_delta before message_start")
        self._count(event.usage, final=True)
        if event.delta and event.delta.stop_reason and not self.complete:
            self.complete, self._stop = True, event.delta.stop_reason

    def _count(self, usage: _Usage | None, *, final: bool) -> None:
        """Update the usage. Counts are running totals, so the last one wins; the initial output count is ignored."""
        if usage is None:
            return
        self._input = usage.input_tokens if usage.input_tokens is not None else self._input
        self._cached = usage.cache_read_input_tokens or self._cached
        self._cache_written = usage.cache_creation_input_tokens or self._cache_written
        if final and usage.output_tokens is not None:
            self._output, self._counted = usage.output_tokens, True

    def _require(self, condition: bool, problem: str) -> None:
        if not condition:
            raise ProviderError(f"stream events out of order: {problem}", "protocol")


def _raw_arguments(call: ToolCall) -> str:
    return call.malformed if call.malformed is not None else encode(call.arguments).decode()


def encode_request(request: base.Request, model: str) -> bytes:
    """Encode the request body. Raises BrokenHistory if a tool call and its result are separated."""
    messages = base.encode_messages(request.messages, _CACHE, _encode_message)
    parts = [
        b'{"model":',
        encode(model),
        b',"stream":true,"messages":[',
        b",".join(messages),
        b"],",
        encode(_settings(request))[1:-1],
    ]
    if request.tools:
        parts += [b',"tools":[', b",".join([_encode_tool(tool) for tool in request.tools]), b"]"]
    parts.append(b"}")
    return b"".join(parts)


def _settings(request: base.Request) -> dict[str, Any]:
    fields: dict[str, Any] = {"max_tokens": request.settings.max_tokens or _MAX_TOKENS}
    if request.system:
        fields["system"] = request.system
    if request.settings.temperature is not None:
        fields["temperature"] = request.settings.temperature
    if request.settings.stop:
        fields["stop_sequences"] = list(request.settings.stop)
    if request.tools and request.tool_choice != "auto":
        fields["tool_choice"] = _encode_choice(request.tool_choice)
    if request.output:
        fields["output_config"] = {"format": {"type": "json_schema", "schema": request.output.schema}}
    return fields


def _encode_choice(choice: str) -> dict[str, str]:
    match choice:
        case "none":
            return {"type": "none"}
        case "required":
            return {"type": "any"}
        case name:
            return {"type": "tool", "name": wire_name(name)}


def _encode_tool(tool: ToolSpec) -> bytes:
    encoded: bytes | None = getattr(tool, _CACHE, None)
    if encoded is None:
        tool_fields = {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
        encoded = memo(tool)[_CACHE] = encode(tool_fields)
    return encoded


def _encode_message(message: Message) -> bytes:
    blocks = [block for part in message.parts if (block := _encode_part(part)) is not None]
    if message.role == "system":  # the API accepts no system message inside a conversation
        blocks = [{"type": "text", "text": f"<system>\n{message.text}\n</system>"}]
    role = "assistant" if message.role == "assistant" else "user"
    return encode({"role": role, "content": blocks}) if blocks else b""


def _encode_part(part: Part) -> dict[str, Any] | None:
    """Encode one part as a content block; None for parts this vendor must not receive."""
    match part:
        case Text(text):
            return {"type": "text", "text": text} if text.strip() else None
        case ToolCall(id, name, arguments, malformed):
            raw = arguments if malformed is None else {"malformed": malformed}
            return {"type": "tool_use", "id": wire_name(id), "name": wire_name(name), "input": raw}
        case ToolResult(call_id, status, _):
            block = {"type": "tool_result", "tool_use_id": wire_name(call_id), "content": _encode_result(part)}
            return block if status == "ok" else {**block, "is_error": True}
        case Thinking(text, signature):  # the API rejects thinking without a signature
            return {"type": "thinking", "thinking": text, "signature": signature} if signature else None
        case Image(url=url) | File(url=url) if url and not base.is_fetchable(url):
            return {"type": "text", "text": base.OMITTED_NOTE}
        case Image(media_type, data, url):
            source = {"type": "url", "url": url} if url else _base64(media_type, data)
            return {"type": "image", "source": source}
        case File(name, media_type, data, url):
            source = {"type": "url", "url": url} if url else _base64(media_type, data)
            return {"type": "document", "source": source, "title": name}
        case Opaque(vendor, block):
            return block if vendor == "anthropic" else None


def _encode_result(result: ToolResult) -> str | list[dict[str, Any]]:
    """Encode a tool result: text, followed by its images."""
    text, images = base.render_result(result)
    if not images:
        return text
    image_blocks = [{"type": "image", "source": _base64(image.media_type, image.data)} for image in images]
    return [{"type": "text", "text": text}, *image_blocks]


def _base64(media_type: str, data: str) -> dict[str, str]:
    return {"type": "base64", "media_type": media_type, "data": data}


class AnthropicProvider(http.HttpProvider):
    """Anthropic Messages API at `base_url`, by default `ANTHROPIC_BASE_URL` or Anthropic's own address.

    The key comes from `api_key` or `ANTHROPIC_API_KEY`.
    """

    vendor = "Anthropic"
    official_url = "https://api.anthropic.com"
    api_path = "/v1"
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
        url, headers = f"{self.base_url}/v1/messages", self._headers(**{"anthropic-version": _VERSION})
        return self._exchange(url, headers, request, model, partial(encode_request, model=model), AnthropicReader())
