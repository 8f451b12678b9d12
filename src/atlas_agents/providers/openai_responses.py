"""OpenAI Responses API, without state on the server: request encoder, stream decoder and provider.

Nothing is stored at the vendor. The model's reasoning comes back encrypted and is returned with the next request, in
its place among the other items of the reply. A reply is stored as text, tool calls and one `Opaque` part per item: a
reasoning item as it was received, of a message or a call only what the other parts do not have, such as its id.
"""

from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from atlas_agents.core.errors import ProviderError
from atlas_agents.core.events import Usage
from atlas_agents.core.json import encode
from atlas_agents.core.messages import File, Image, Message, Opaque, Part, Text, ToolCall, ToolResult, ToolSpec, memo
from atlas_agents.core.text import SurrogateJoiner, clean, wire_name
from atlas_agents.providers import adaptation, base, http, schemas
from atlas_agents.providers.catalogue import ModelProfile

_UNSUPPORTED = ("stop", "seed")
"""Settings that this API does not have."""
_CACHE = "responses_bytes"
_STRICT_CACHE = "responses_strict_bytes"
_ENCRYPTED = "reasoning.encrypted_content"
_SUMMARY = "reasoning.summary"
_SUMMARISING = ("GPT-", "o-series")
"""Families of OpenAI's own models; other servers of this API may refuse to summarise."""
_PLAIN_SETTINGS = ("temperature", "top_p", "service_tier")
_MIN_TOKENS = 16
_KEPT_FIELDS = ("id", "status", "phase")
_BAD_INPUT = frozenset(("invalid_prompt", "bio_policy", "misalignment_policy_violation", "data_residency_mismatch"))
"""Error codes of a failed response for which a retry is pointless, besides those about images."""


class _TextEvent(msgspec.Struct):
    output_index: int = -1
    delta: str | None = None


class _ItemEvent(msgspec.Struct):
    output_index: int = -1
    item: dict[str, Any] | None = None


class _CachedTokens(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _ReasoningTokens(msgspec.Struct):
    reasoning_tokens: int | None = None


class _ResponseUsage(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _CachedTokens | None = None
    output_tokens_details: _ReasoningTokens | None = None


class _IncompleteDetails(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    model: str | None = None
    output: msgspec.Raw = msgspec.Raw(b"[]")
    error: Any = None
    usage: _ResponseUsage | None = None
    incomplete_details: _IncompleteDetails | None = None


class _ResponseEvent(msgspec.Struct):
    response: _Response


class _AnyEvent(msgspec.Struct):
    type: str = ""
    error: Any = None


_text_decoder = msgspec.json.Decoder(_TextEvent)
_item_decoder = msgspec.json.Decoder(_ItemEvent)
_response_decoder = msgspec.json.Decoder(_Response)
_end_decoder = msgspec.json.Decoder(_ResponseEvent)
_any_decoder = msgspec.json.Decoder(_AnyEvent)
_output_decoder = msgspec.json.Decoder(list[dict[str, Any]] | None)


class _OpenItem:
    """An output item that is still streaming."""

    __slots__ = ("joiner", "kind", "length")

    def __init__(self, kind: object = None) -> None:
        self.kind = kind
        self.joiner = SurrogateJoiner()
        self.length = 0


class ResponsesReader:
    """Decoder of one response. Items count once they are done; `origin` marks items that only their author can read."""

    def __init__(self, origin: str = "openai") -> None:
        self.event_count = 0
        self.complete = False
        self.closed = False
        self._origin = origin
        self._events = http.EventSplitter()
        self._started = False
        self._open: dict[int, _OpenItem] = {}
        self._done: set[int] = set()
        self._calls: list[tuple[str, str, str]] = []
        self._held: list[base.Chunk] = []
        """Invisible chunks, which come with the next visible one: a failed attempt need not withdraw them."""
        self._refused = False
        self._text_length = 0
        self._end = _Response()

    @property
    def is_reasoning(self) -> bool:
        """Whether the model is reasoning, during which few or no events arrive."""
        return any(item.kind == "reasoning" for item in self._open.values())

    def renew(self) -> "ResponsesReader":
        return ResponsesReader(self._origin)

    def feed(self, piece: bytes) -> list[base.Chunk]:
        chunks: list[base.Chunk] = []
        for name, data in self._events.feed(piece):
            if self.closed:
                break
            if name == b"response.output_text.delta":
                self._add_text(data, chunks)
            elif name or (data and data != b"[DONE]"):
                self._handle_event(name or _find_name(data), data, chunks)
        return chunks

    def decode_body(self, body: bytes) -> list[base.Chunk]:
        chunks: list[base.Chunk] = []
        self._finish_response(http.read_event(_response_decoder, body), chunks)
        return chunks + self.finish()

    def finish(self) -> list[base.Chunk]:
        if not self.complete:
            if self.event_count == 0:
                raise ProviderError("empty response: the stream contained no response events", "empty_response")
            raise ProviderError("the stream ended before the response was complete", "incomplete")
        stop = self._stop_reason()
        if self._open and self._end.status == "completed":
            raise ProviderError("the response ended inside an output item", "incomplete")
        has_calls = stop in ("stop", "tool_calls", "length")
        calls = [
            base.build_tool_call(id, name, raw, truncated=stop == "length")
            for id, name, raw in self._calls
            if has_calls
        ]
        if not calls and not self._text_length and stop in ("stop", "tool_calls"):
            raise ProviderError("empty response: neither text nor a tool call", "empty_response")
        usage = _count_usage(self._end.usage, self._text_length)
        detail = base.CONTENT_FILTER if stop == "refusal" and not self._refused else ""
        done = base.DoneChunk(usage, stop, clean(self._end.model or ""), detail)
        return [*self._held, *(base.ToolCallChunk(call) for call in calls), done]

    def _stop_reason(self) -> base.StopReason:
        if self._end.status == "completed":
            if self._refused:
                return "refusal"
            return "tool_calls" if self._calls else "stop"
        match self._end.incomplete_details:
            case _IncompleteDetails("max_output_tokens"):
                return "length"
            case _IncompleteDetails("content_filter"):
                return "refusal"
            case _:
                return "other"

    def _handle_event(self, name: bytes, data: bytes, chunks: list[base.Chunk]) -> None:
        match name:
            case b"response.output_text.delta" | b"response.refusal.delta":
                self._refused = self._refused or name == b"response.refusal.delta"
                self._add_text(data, chunks)
                return
            case b"response.reasoning_summary_text.delta" | b"response.reasoning_text.delta":
                self._add_thinking(data, chunks)
            case b"response.reasoning_summary_part.added":
                self._separate_summaries(data, chunks)
            case b"response.output_item.added":
                self._open_item(http.read_event(_item_decoder, data))
            case b"response.output_item.done":
                self._close_item(http.read_event(_item_decoder, data), chunks)
            case b"response.created":
                self._require(not self._started, "repeated response.created")
                self._started = True
            case b"response.completed" | b"response.incomplete" | b"response.failed":
                response = http.read_event(_end_decoder, data).response
                response.status = name.decode().removeprefix("response.")
                self._finish_response(response, chunks)
                return
            case b"error":
                raise _classify(http.read_plain(data))
            case _ if not name.startswith(b"response."):
                return  # such as a keep-alive
            case _:
                pass  # an unknown event, or one that repeats what the item has once it is done
        self.event_count += 1

    def _add_text(self, data: bytes, chunks: list[base.Chunk]) -> None:
        event = http.read_event(_text_decoder, data)
        item = self._find_open(event.output_index)
        self.event_count += 1
        if event.delta:
            item.length += len(event.delta)
            self._text_length += len(event.delta)
            if text := item.joiner.add(event.delta):
                self._show(base.TextChunk(text), chunks)

    def _add_thinking(self, data: bytes, chunks: list[base.Chunk]) -> None:
        event = http.read_event(_text_decoder, data)
        item = self._find_open(event.output_index)
        if event.delta:
            item.length += len(event.delta)
            if text := item.joiner.add(event.delta):
                self._show(base.ThinkingChunk(text), chunks)

    def _separate_summaries(self, data: bytes, chunks: list[base.Chunk]) -> None:
        if self._find_open(http.read_event(_text_decoder, data).output_index).length:
            self._show(base.ThinkingChunk("\n\n"), chunks)

    def _find_open(self, index: int) -> _OpenItem:
        item = self._open.get(self._last_open() if index < 0 else index)
        if item is None:
            raise ProviderError(f"out of order: delta for output item {index}, which is not open", "protocol")
        return item

    def _last_open(self) -> int:
        """Return the item that an event without an index is about; llama.cpp sends none."""
        return next(reversed(self._open), -1)

    def _open_item(self, event: _ItemEvent) -> None:
        index = event.output_index if event.output_index >= 0 else len(self._open) + len(self._done)
        self._require(index not in self._open and index not in self._done, f"output item {index} was added twice")
        self._open[index] = _OpenItem((event.item or {}).get("type"))

    def _close_item(self, event: _ItemEvent, chunks: list[base.Chunk]) -> None:
        index = event.output_index if event.output_index >= 0 else self._last_open()
        item = self._open.pop(index, None)
        if item is None:
            raise ProviderError(f"out of order: output item {index} ended but was not open", "protocol")
        self._done.add(index)
        self._read_item(event.item or {}, item, chunks)

    def _read_item(self, content: dict[str, Any], item: _OpenItem, chunks: list[base.Chunk]) -> None:
        match content.get("type"):
            case "message":
                self._read_message(content, item, chunks)
            case "function_call":
                self._read_call(content)
            case "reasoning":
                rest = item.joiner.flush() if item.length else _join_texts(content.get("summary"), "\n\n")
                if rest:
                    self._show(base.ThinkingChunk(rest), chunks)
                if content.get("encrypted_content") or content.get("content"):
                    self._held.append(base.OpaqueChunk(self._origin, base.make_encodable(content)))
            case str():
                self._held.append(base.OpaqueChunk(self._origin, base.make_encodable(content)))
            case _:
                pass  # nothing that could be returned

    def _read_message(self, content: dict[str, Any], item: _OpenItem, chunks: list[base.Chunk]) -> None:
        parts = content.get("content")
        refusal = _join_texts(parts, field="refusal")
        rest = item.joiner.flush() if item.length else _join_texts(parts) + refusal
        if not item.length:
            self._text_length += len(rest)
        self._refused = self._refused or bool(refusal)
        if rest:
            self._show(base.TextChunk(rest), chunks)
        if item.length or rest:
            self._keep(content, **({"refusal": True} if refusal else {}))

    def _read_call(self, content: dict[str, Any]) -> None:
        arguments = content.get("arguments")
        raw = arguments if isinstance(arguments, str) else base.dump_arguments(arguments or {})
        id, name = content.get("call_id"), content.get("name")
        self._calls.append((clean(str(id or "")), clean(str(name or "")), raw))
        self._keep(content)

    def _show(self, chunk: base.Chunk, chunks: list[base.Chunk]) -> None:
        if self._held:
            chunks += self._held
            self._held.clear()
        chunks.append(chunk)

    def _keep(self, content: dict[str, Any], **fields: object) -> None:
        """Keep the fields of an item that the text or the call does not have, at its position among the items."""
        kept = {name: clean(value) for name in _KEPT_FIELDS if isinstance(value := content.get(name), str)}
        if "id" in kept or "phase" in kept:
            self._held.append(base.OpaqueChunk(self._origin, {"type": content["type"], **kept, **fields}))

    def _finish_response(self, response: _Response, chunks: list[base.Chunk]) -> None:
        self.event_count += 1
        if response.error is not None or response.status == "failed":
            raise _classify({"error": response.error})
        if response.status not in ("completed", "incomplete"):
            raise ProviderError(f"the response ended with status {response.status!r}", "incomplete")
        if not self._open and not self._done:  # not streamed, or by a server that sends only the end
            for item in http.read_event(_output_decoder, bytes(response.output)) or ():
                self._read_item(item, _OpenItem(), chunks)
        self._end = response
        self.complete = self.closed = True

    def _require(self, condition: bool, problem: str) -> None:
        if not condition:
            raise ProviderError(f"stream events out of order: {problem}", "protocol")


def _find_name(data: bytes) -> bytes:
    """Return the name of an event that was sent without one: its type."""
    event = http.read_event(_any_decoder, data)
    return b"error" if not event.type and event.error is not None else clean(event.type).encode()


def _join_texts(parts: object, separator: str = "", field: str = "text") -> str:
    items = cast(list[Any], parts) if isinstance(parts, list) else []
    texts = [cast(dict[str, Any], each).get(field) for each in items if isinstance(each, dict)]
    return clean(separator.join([text for text in texts if isinstance(text, str)]))


def _classify(body: object) -> ProviderError:
    error = base.classify_error_event(body)
    if error.kind == "unknown" and (error.code in _BAD_INPUT or "image" in error.code):
        return ProviderError(str(error), "bad_request", code=error.code)
    return error


def _count_usage(usage: _ResponseUsage | None, text_length: int) -> Usage:
    if usage is None or usage.output_tokens is None:
        return Usage(output_tokens=round(text_length / 3.6), estimated=True)
    read = usage.input_tokens_details or _CachedTokens()
    reasoning = usage.output_tokens_details.reasoning_tokens if usage.output_tokens_details else None
    return Usage(
        usage.input_tokens or 0,
        usage.output_tokens,
        read.cached_tokens or 0,
        cache_write_tokens=read.cache_write_tokens or 0,
        reasoning_tokens=reasoning or 0,
    )


def find_origin(base_url: str, model: str) -> str:
    """Return the name under which items are stored: only the same model at the same address accepts them again."""
    address = urlsplit(base_url)
    return f"openai {model} {address.netloc.rpartition('@')[2]}{address.path}"


def encode_request(
    request: base.Request,
    model: str,
    origin: str,
    profile: ModelProfile,
    warn: Callable[[str, str], None] | None = None,
) -> bytes:
    """Encode the request body. Raises BrokenHistory if a tool call and its result are separated.

    `warn` is called with each omitted part of a message, and the reason.
    """
    attachments = adaptation.Attachments(request.without, profile, warn)
    key, encode_one = f"{_CACHE} {origin} {attachments.key}", partial(_encode_message, attachments, origin=origin)
    if adaptation.REASONING in request.without:  # refused once: not sent again with these messages
        for message in request.messages:
            memo(message)[key] = encode_one(message, origin="")
    messages = base.encode_messages(request.messages, key, encode_one)
    fields = _fields(request, profile)
    strict = adaptation.enforces_tools(request, profile)
    tools = [_encode_tool(tool, strict) for tool in request.tools]
    if request.system and "instructions" not in fields:
        messages.insert(0, encode({"role": "system", "content": request.system}))
    parts = [b'{"model":', encode(model), b',"stream":true,"store":false,"input":[', b",".join(messages), b"]"]
    if tools:
        parts += [b',"tools":[', b",".join(tools), b"]"]
    if fields:
        parts += [b",", encode(fields)[1:-1]]
    parts.append(b"}")
    return b"".join(parts)


def _fields(request: base.Request, profile: ModelProfile) -> dict[str, Any]:
    settings = request.settings
    fields = {name: value for name in _PLAIN_SETTINGS if (value := getattr(settings, name)) is not None}
    if request.system and not (request.output and request.output.json_mode):
        fields["instructions"] = request.system  # JSON mode demands the word JSON in a message
    if profile.reasoning != "never" and "include" not in request.without:
        fields["include"] = [_ENCRYPTED]
    if reasoning := _encode_effort(request, profile):
        fields["reasoning"] = reasoning
    if settings.max_tokens is not None:
        fields["max_output_tokens"] = max(settings.max_tokens, _MIN_TOKENS)
    if settings.cache != "off" and "cache" not in request.without and (key := base.make_cache_key(request)):
        fields["prompt_cache_key"] = key
    if request.tools:
        fields |= _encode_choice(request)
    if request.output:
        fields["text"] = {"format": _encode_output(request.output)}
    return fields


def _encode_choice(request: base.Request) -> dict[str, Any]:
    choice, parallel, fields = request.tool_choice, request.settings.parallel_tool_calls, dict[str, Any]()
    if parallel is not None:
        fields["parallel_tool_calls"] = parallel
    if choice in ("none", "required"):
        fields["tool_choice"] = choice
    elif choice != "auto":
        fields["tool_choice"] = {"type": "function", "name": wire_name(choice)}
    return fields


def _encode_effort(request: base.Request, profile: ModelProfile) -> dict[str, str]:
    effort = adaptation.resolve_effort(request.settings, profile)
    fields: dict[str, str] = {}
    if effort.level is not None:
        fields["effort"] = effort.level
    elif effort.off and profile.off == "none":
        fields["effort"] = "none"
    is_openai = profile.family.startswith(_SUMMARISING)
    if is_openai and adaptation.reasons(effort, profile) and _SUMMARY not in request.without:
        fields["summary"] = "auto"
    return fields


def _encode_output(output: base.OutputSpec) -> dict[str, Any]:
    if output.json_mode:
        return {"type": "json_object"}
    return {"type": "json_schema", "name": output.name, "schema": output.schema, "strict": output.strict}


def _encode_tool(tool: ToolSpec, may_be_strict: bool) -> bytes:
    key = _STRICT_CACHE if may_be_strict else _CACHE
    encoded: bytes | None = getattr(tool, key, None)
    if encoded is None:
        strict = schemas.strict_parameters(tool, "openai") if may_be_strict else None
        fields: dict[str, Any] = {"type": "function", "name": tool.name, "description": tool.description}
        fields |= {"parameters": tool.parameters if strict is None else strict, "strict": strict is not None}
        encoded = memo(tool)[key] = encode(fields)
    return encoded


def _encode_message(attachments: adaptation.Attachments, message: Message, origin: str) -> bytes:
    return b",".join([encode(item) for item in _encode_items(attachments, message, origin)])


def _encode_items(attachments: adaptation.Attachments, message: Message, origin: str) -> list[dict[str, Any]]:
    match message.role:
        case "assistant":
            return _returned_items(message, origin) or _plain_items(message)
        case "tool":
            return [_encode_result(attachments, result) for result in message.tool_results]
        case role:
            return [{"role": role, "content": _encode_content(attachments, message)}]


def _returned_items(message: Message, origin: str) -> list[dict[str, Any]] | None:
    """Return a reply's items as they were received; None unless all of them are there, and belong to this origin."""
    items: list[dict[str, Any]] = []
    texts: list[str] = []
    calls = iter(message.tool_calls)
    for part in message.parts:
        match part:
            case Text(text):
                texts.append(text)
            case Opaque(vendor, block) if vendor != origin:
                return None
            case Opaque(_, {"type": "message"} as block):
                if not texts:
                    return None
                items.append(_returned_message(block, "".join(texts)))
                texts.clear()
            case Opaque(_, {"type": "function_call"} as block):
                if (call := next(calls, None)) is None:
                    return None
                items.append({**block, **_encode_call(call)})
            case Opaque(_, block):
                items.append(block)
            case _:
                pass
    if texts or next(calls, None) or not items or items[-1].get("type") == "reasoning":
        return None
    return items


def _returned_message(block: dict[str, Any], text: str) -> dict[str, Any]:
    fields = {"status": "completed", **block, "role": "assistant"}
    if fields.pop("refusal", False):
        return {**fields, "content": [{"type": "refusal", "refusal": text}]}
    return {**fields, "content": [{"type": "output_text", "text": text, "annotations": []}]}


def _plain_items(message: Message) -> list[dict[str, Any]]:
    text = [_returned_message({"type": "message"}, message.text)] if message.text else []
    return [*text, *(_encode_call(call) for call in message.tool_calls)]


def _encode_call(call: ToolCall) -> dict[str, Any]:
    arguments = {"malformed": call.malformed} if call.malformed is not None else call.arguments
    return {
        "type": "function_call",
        "call_id": wire_name(call.id),
        "name": wire_name(call.name),
        "arguments": encode(arguments).decode(),
    }


def _encode_result(attachments: adaptation.Attachments, result: ToolResult) -> dict[str, Any]:
    text, images = base.render_result(result)
    note = attachments.omit_result_images(images)
    output: Any = text + note
    if images and not note:
        output = [{"type": "input_text", "text": text}, *(_encode_part(attachments, image) for image in images)]
    return {"type": "function_call_output", "call_id": wire_name(result.call_id), "output": output}


def _encode_content(attachments: adaptation.Attachments, message: Message) -> str | list[dict[str, Any]]:
    if all(isinstance(part, Text) for part in message.parts):
        return message.text
    return [content for part in message.parts if (content := _encode_part(attachments, part)) is not None]


def _encode_part(attachments: adaptation.Attachments, part: Part) -> dict[str, Any] | None:
    match part:
        case Text(text):
            return {"type": "input_text", "text": text}
        case Image(url=url) | File(url=url) if url and not base.is_fetchable(url):
            return {"type": "input_text", "text": base.OMITTED_NOTE}
        case Image() if note := attachments.omit_image(part):
            return {"type": "input_text", "text": note}
        case Image(media_type, data, url):
            return {"type": "input_image", "detail": "auto", "image_url": url or f"data:{media_type};base64,{data}"}
        case File():
            return _encode_file(attachments, part)
        case _:
            return None


def _encode_file(attachments: adaptation.Attachments, file: File) -> dict[str, Any]:
    media_type, data = base.read_file(file)
    has_address = bool(file.url) and not file.url.startswith("data:")
    if not has_address and (text := base.read_text_file(file)) is not None:
        return {"type": "input_text", "text": f"File {file.name}:\n{text}"}
    if not media_type.startswith("audio/") and (note := attachments.omit_file(file, media_type)):
        return {"type": "input_text", "text": note}
    if has_address:
        return {"type": "input_file", "file_url": file.url}
    if media_type.startswith(("audio/", "video/")) or not data:
        return {"type": "input_text", "text": f"[not attached: the file {file.name}; {media_type} is not accepted]"}
    return {"type": "input_file", "filename": file.name, "file_data": f"data:{media_type};base64,{data}"}


def prepare(
    base_url: str, model: str, profile: ModelProfile, refused: adaptation.Adaptation
) -> tuple[str, Callable[[base.Request], bytes], ResponsesReader]:
    """Return the rules for requests to a model at an address."""
    origin = find_origin(base_url, model)

    def encode_body(request: base.Request) -> bytes:
        adapted = refused.drop(request, model, _UNSUPPORTED)
        return encode_request(adapted, model, origin, profile, partial(refused.warn, model))

    return f"{base_url}/responses", encode_body, ResponsesReader(origin)


class OpenAIResponsesProvider(http.HttpProvider):
    """OpenAI Responses API at `base_url`, by default `OPENAI_BASE_URL` or OpenAI's own address.

    The key comes from `api_key` or `OPENAI_API_KEY`; your own server may need none.

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

    vendor = "OpenAI"
    official_url = "https://api.openai.com/v1"

    def _output_dialect(self, profile: ModelProfile) -> base.Dialect:
        return "openai" if self.is_official or profile.strict_tools else "plain"

    def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        """Send a request to the Responses API and yield its chunks."""
        model = request.model or self.model
        if not model:
            raise ProviderError(
                "no model given: expected a name, for example OpenAIResponsesProvider('gpt-…')", "bad_request"
            )
        url, encode_body, reader = prepare(self.base_url, model, self.find_profile(model), self._adaptation)
        return self._exchange(url, self._headers(), request, model, encode_body, reader)
