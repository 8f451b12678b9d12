"""OpenAI chat completions API and compatible servers: request encoder, stream decoder and provider."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, cast

import msgspec

from atlas_agents.core.errors import ProviderError
from atlas_agents.core.events import Usage
from atlas_agents.core.json import encode
from atlas_agents.core.messages import File, Image, Message, Text, ToolCall, ToolSpec, memo
from atlas_agents.core.text import SurrogateJoiner, clean, wire_name
from atlas_agents.providers import base, http
from atlas_agents.providers.catalogue import ModelProfile

_STOP: dict[str, base.StopReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "refusal",
}
_CACHE = "openai_bytes"


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _CallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _ChoiceDelta(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _ChoiceDelta | None = None
    message: _ChoiceDelta | None = None
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class _CompletionUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None


class _CompletionEvent(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _CompletionUsage | None = None
    model: str | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_CompletionEvent)


class _OpenCall:
    """A tool call that is still streaming."""

    __slots__ = ("id", "index", "name", "pieces")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []


class OpenAIReader:
    """Decoder of one chat completion. Reads choice 0 only, and after its finish_reason only the usage."""

    def __init__(self) -> None:
        self.event_count = 0
        self.complete = False
        self.closed = False
        self._events = http.EventSplitter()
        self._joiner = SurrogateJoiner()
        self._thoughts = SurrogateJoiner()
        self._stop = ""
        self._refused = False
        self._calls: list[_OpenCall] = []
        self._usage: _CompletionUsage | None = None
        self._model = ""
        self._text_length = 0

    def feed(self, piece: bytes) -> list[base.Chunk]:
        chunks: list[base.Chunk] = []
        for name, data in self._events.feed(piece):
            if data == b"[DONE]":
                self.closed = self.complete
            elif data and not self.closed:
                self._handle_event(name, data, chunks)
        return chunks

    def decode_body(self, body: bytes) -> list[base.Chunk]:
        chunks: list[base.Chunk] = []
        self._handle_event(b"", body, chunks)
        return chunks + self.finish()

    def finish(self) -> list[base.Chunk]:
        if not self.complete:
            if self.event_count == 0:
                raise ProviderError("empty response: the stream contained no chat completion events", "empty_response")
            raise ProviderError("the stream ended before its finish_reason", "incomplete")
        stop = "refusal" if self._refused else _STOP.get(self._stop, "other")
        chunks: list[base.Chunk] = []
        if remainder := self._joiner.flush():
            chunks.append(base.TextChunk(remainder))
        calls = self._build_calls(truncated=stop == "length") if stop in ("stop", "tool_calls", "length") else []
        chunks += [base.ToolCallChunk(call) for call in calls]
        if not calls and not self._text_length and stop in ("stop", "tool_calls"):
            raise ProviderError("empty response: neither text nor a tool call", "empty_response")
        chunks.append(base.DoneChunk(_count_usage(self._usage, self._text_length), stop, self._model))
        return chunks

    def _handle_event(self, name: bytes, data: bytes, chunks: list[base.Chunk]) -> None:
        if name == b"error":
            raise base.classify_error_event(http.read_plain(data))
        event = http.read_event(_decoder, data)
        if event.error is not None:
            raise base.classify_error_event({"error": event.error})
        if event.usage is not None:
            self._usage = event.usage
        if event.model and not self._model:
            self._model = clean(event.model)
        if not event.choices or self.complete:
            return
        for choice in event.choices:
            if choice.index == 0:
                self._read_choice(choice, chunks)

    def _read_choice(self, choice: _Choice, chunks: list[base.Chunk]) -> None:
        delta = choice.delta or choice.message
        if delta is not None:
            self.event_count += 1
            self._add_text(delta, chunks)
            for index, part in enumerate(delta.tool_calls or ()):
                if choice.message is not None:  # in a complete response each entry is a call, whatever its id
                    part.index = index
                self._add_call_delta(part)
        if choice.finish_reason:
            self.event_count += 1
            self.complete, self._stop = True, choice.finish_reason

    def _add_text(self, delta: _ChoiceDelta, chunks: list[base.Chunk]) -> None:
        if delta.refusal:
            self._refused = True
        if content := delta.content or delta.refusal:
            self._text_length += len(content)
            if text := self._joiner.add(content):
                chunks.append(base.TextChunk(text))
        if (thinking := delta.reasoning_content or delta.reasoning) and (text := self._thoughts.add(thinking)):
            chunks.append(base.ThinkingChunk(text))

    def _add_call_delta(self, part: _CallDelta) -> None:
        """Append to the call that this delta belongs to; a new id starts a new call, whatever the index."""
        call = self._find_call(part)
        call.id = call.id or clean(part.id or "")
        if part.function is None:
            return
        call.name = call.name or clean(part.function.name or "")
        arguments = part.function.arguments
        if isinstance(arguments, str):
            call.pieces.append(arguments)
        elif arguments is not None:
            call.pieces.append(base.dump_arguments(arguments))

    def _find_call(self, part: _CallDelta) -> _OpenCall:
        for call in reversed(self._calls):
            same_index = part.index is None or part.index == call.index
            if same_index and (not part.id or not call.id or clean(part.id) == call.id):
                if part.index is None and part.function and part.function.name and call.name and not part.id:
                    break  # neither index nor id, but a name of its own: a new call
                return call
        self._calls.append(_OpenCall(part.index))
        return self._calls[-1]

    def _build_calls(self, *, truncated: bool) -> list[ToolCall]:
        return [
            base.build_tool_call(call.id, call.name, "".join(call.pieces), truncated=truncated) for call in self._calls
        ]


def _count_usage(usage: _CompletionUsage | None, text_length: int) -> Usage:
    if usage is None or usage.completion_tokens is None:
        return Usage(output_tokens=round(text_length / 3.6), estimated=True)
    cached = usage.prompt_tokens_details.cached_tokens if usage.prompt_tokens_details else None
    return Usage(usage.prompt_tokens or 0, usage.completion_tokens, cached or 0)


def find_first_model(body: object) -> str | None:
    """Return the id of the first model in a `/models` response."""
    models = cast(dict[str, Any], body).get("data") if isinstance(body, dict) else None
    for entry in cast(list[Any], models) if isinstance(models, list) else []:
        if isinstance(entry, dict) and isinstance(name := cast(dict[str, Any], entry).get("id"), str):
            return name
    return None


def encode_request(
    request: base.Request, model: str, *, official: bool, extra: Mapping[str, Any] | None = None
) -> bytes:
    """Encode the request body. Raises BrokenHistory if a tool call and its result are separated.

    `extra` are fields that a server accepts beyond OpenAI's; the request's own fields take precedence.
    """
    messages = base.encode_messages(request.messages, _CACHE, _encode_message)
    if request.system:
        messages.insert(0, encode({"role": "system", "content": request.system}))
    parts = [
        b'{"model":',
        encode(model),
        b',"stream":true,"stream_options":{"include_usage":true},"messages":[',
        b",".join(messages),
        b"]",
    ]
    if request.tools:
        parts += [b',"tools":[', b",".join([_encode_tool(tool) for tool in request.tools]), b"]"]
    if settings := {**(extra or {}), **_settings(request, official)}:
        parts += [b",", encode(settings)[1:-1]]
    parts.append(b"}")
    return b"".join(parts)


def _settings(request: base.Request, official: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if request.settings.temperature is not None:
        fields["temperature"] = request.settings.temperature
    if request.settings.max_tokens is not None:
        fields["max_completion_tokens" if official else "max_tokens"] = request.settings.max_tokens
    if request.settings.stop:
        fields["stop"] = list(request.settings.stop)
    if request.tools and request.tool_choice != "auto":
        named_tool = {"type": "function", "function": {"name": wire_name(request.tool_choice)}}
        fields["tool_choice"] = request.tool_choice if request.tool_choice in ("none", "required") else named_tool
    if request.output:
        fields["response_format"] = _encode_output(request.output)
    return fields


def _encode_output(output: base.OutputSpec) -> dict[str, Any]:
    if output.json_mode:
        return {"type": "json_object"}
    schema: dict[str, Any] = {"name": output.name, "schema": output.schema}
    return {"type": "json_schema", "json_schema": {**schema, "strict": True} if output.strict else schema}


def _encode_tool(tool: ToolSpec) -> bytes:
    encoded: bytes | None = getattr(tool, _CACHE, None)
    if encoded is None:
        function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        encoded = memo(tool)[_CACHE] = encode({"type": "function", "function": function})
    return encoded


def _encode_message(message: Message) -> bytes:
    return b",".join([encode(each) for each in _wire_messages(message)])


def _wire_messages(message: Message) -> list[dict[str, Any]]:
    """Encode one message as zero, one or (tool results) several messages of the API."""
    match message.role:
        case "tool":
            return [
                {"role": "tool", "tool_call_id": wire_name(result.call_id), "content": base.render_result_text(result)}
                for result in message.tool_results
            ]
        case "assistant":
            assistant_message: dict[str, Any] = {"role": "assistant", "content": message.text or None}
            if message.tool_calls:
                assistant_message["tool_calls"] = [_wire_call(call) for call in message.tool_calls]
            return [assistant_message] if message.text or message.tool_calls else []
        case role:
            return [{"role": role, "content": _wire_content(message)}]


def _wire_call(call: ToolCall) -> dict[str, Any]:
    arguments = {"malformed": call.malformed} if call.malformed is not None else call.arguments
    function = {"name": wire_name(call.name), "arguments": encode(arguments).decode()}
    return {"id": wire_name(call.id), "type": "function", "function": function}


def _wire_content(message: Message) -> str | list[dict[str, Any]]:
    if all(isinstance(part, Text) for part in message.parts):
        return message.text
    content: list[dict[str, Any]] = []
    for part in message.parts:
        match part:
            case Text(text):
                content.append({"type": "text", "text": text})
            case Image(url=url) if url and not base.is_fetchable(url):
                content.append({"type": "text", "text": base.OMITTED_NOTE})
            case Image(media_type, data, url):
                content.append({"type": "image_url", "image_url": {"url": url or f"data:{media_type};base64,{data}"}})
            case File(name, media_type, data, _):
                file = {"filename": name, "file_data": f"data:{media_type};base64,{data}"}
                content.append({"type": "file", "file": file})
            case _:
                pass
    return content


class OpenAIProvider(http.HttpProvider):
    """OpenAI chat completions API at `base_url`, by default `OPENAI_BASE_URL` or OpenAI's own address.

    The key comes from `api_key` or `OPENAI_API_KEY`; your own server may need none. Without a model, the first one that
    the server lists is used.
    """

    vendor = "OpenAI"
    official_url = "https://api.openai.com/v1"

    def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        """Send a request to the chat completions API and yield its chunks."""
        model = request.model or self.model
        return self._stream_model(request, model) if model else self._stream_first_model(request)

    def _output_dialect(self, profile: ModelProfile) -> base.Dialect:
        return "openai" if self.is_official or profile.strict_tools else "plain"

    def _stream_model(self, request: base.Request, model: str) -> AsyncGenerator[base.Chunk, None]:
        url = f"{self.base_url}/chat/completions"
        encode_body = partial(encode_request, model=model, official=self.is_official)
        return self._exchange(url, self._headers(), request, model, encode_body, OpenAIReader())

    async def _stream_first_model(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        async with aclosing(self._stream_model(request, await self._find_first_model())) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _find_first_model(self) -> str:
        if self.is_official:
            raise ProviderError("no model given: expected a name, for example OpenAIProvider('gpt-…')", "bad_request")
        async with self._http.request("GET", f"{self.base_url}/models", await self._current_headers(), b"") as response:
            body = await http.read_error(response)
            if response.status != 200:
                raise base.classify_response(response.status, body, response.headers)
        self.model = find_first_model(body)
        if self.model is None:
            raise ProviderError(f"{self.base_url}/models lists no model; set one with model=", "bad_request")
        return self.model
