"""Google Gemini API: request encoder, stream decoder and provider. Vertex AI speaks the same wire."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, cast
from urllib.parse import quote

import msgspec

from atlas_agents.core import messages as parts
from atlas_agents.core.errors import ProviderError
from atlas_agents.core.events import Usage
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, ToolCall, ToolResult
from atlas_agents.core.text import SurrogateJoiner, clean, wire_name
from atlas_agents.providers import adaptation, base, http
from atlas_agents.providers.catalogue import ModelProfile

_STOP: dict[str, base.StopReason] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "CONTINUATION": "length",
    "SAFETY": "refusal",
    "RECITATION": "refusal",
    "BLOCKLIST": "refusal",
    "PROHIBITED_CONTENT": "refusal",
    "SPII": "refusal",
    "MODEL_ARMOR": "refusal",
    "IMAGE_SAFETY": "refusal",
    "IMAGE_PROHIBITED_CONTENT": "refusal",
    "IMAGE_RECITATION": "refusal",
}
_FAILURES = frozenset(("MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"))
"""Finish reasons of a generation that failed; the same request may succeed."""
_VENDOR = "google"
_SKIP_VALIDATION = "skip_thought_signature_validator"
"""The vendor's documented signature for a call that its model did not make."""
_MISSING_SETTINGS = ("parallel_tool_calls",)
_MAX_REQUESTS = 32
"""Requests for one answer; twice as many as the longest answer needs."""
_TOOL = "gemini_bytes"
_MODEL_ROLE = b'{"role":"model","parts":['
_LEVELS = ("minimal", "low", "medium", "high")
_MEDIA_IN_RESULTS = ("image/png", "image/jpeg", "image/webp")
_REFUSED_IMAGES = ("image/gif", "image/bmp", "image/svg+xml", "image/tiff")
_TEXT_TYPES = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/toml")


class _FunctionCall(msgspec.Struct):
    id: str | None = None
    name: str | None = None
    args: msgspec.Raw = msgspec.Raw()
    partialArgs: Any = None
    willContinue: bool | None = None


class _Part(msgspec.Struct):
    text: str | None = None
    thought: bool | None = None
    thoughtSignature: str | None = None
    functionCall: _FunctionCall | None = None


class _Content(msgspec.Struct):
    parts: list[_Part] | None = None


class _Candidate(msgspec.Struct):
    index: int | None = None
    content: _Content | None = None
    finishReason: str | None = None
    finishMessage: str | None = None
    continuationToken: str | None = None


class _UsageMetadata(msgspec.Struct):
    promptTokenCount: int | None = None
    toolUsePromptTokenCount: int | None = None
    cachedContentTokenCount: int | None = None
    candidatesTokenCount: int | None = None
    thoughtsTokenCount: int | None = None


class _PromptFeedback(msgspec.Struct):
    blockReason: str | None = None
    blockReasonMessage: str | None = None


class _Response(msgspec.Struct):
    candidates: list[_Candidate] | None = None
    promptFeedback: _PromptFeedback | None = None
    usageMetadata: _UsageMetadata | None = None
    modelVersion: str | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Response)


def _read_response(data: bytes) -> _Response:
    """Decode one event. The arguments of calls stay as they were written, so that they can be parsed strictly."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # or JSON that other parsers accept
        pass
    try:
        return msgspec.convert(json.loads(data, object_hook=_keep_arguments), _Response)
    except (ValueError, TypeError, RecursionError) as error:
        raise ProviderError(f"invalid event in the stream: {error}", "incomplete") from error


def _keep_arguments(fields: dict[str, Any]) -> dict[str, Any]:
    call = fields.get("functionCall")
    if isinstance(call, dict) and "args" in call:
        call["args"] = msgspec.Raw(base.dump_arguments(cast(dict[str, Any], call)["args"]))
    return fields


class GeminiReader:
    """Decoder of one answer. Reads candidate 0 only.

    An answer that is too long for one request ends with a token; `finish` then leaves `complete` unset, and the reader
    continues with the response to a request with that `continuation`.
    """

    def __init__(self) -> None:
        self.event_count = 0
        self.complete = False
        self.closed = False
        self.continuation = ""
        self._events = http.EventSplitter()
        self._joiner = SurrogateJoiner()
        self._thoughts = SurrogateJoiner()
        self._after_signed_text = False
        self._calls: list[tuple[str, str, str, str]] = []
        self._stop = self._reason = ""
        self._token = ""
        self._usage: _UsageMetadata | None = None
        self._earlier_usage = Usage()
        self._requests = 1
        self._model = ""
        self._text_length = 0

    def renew(self) -> "GeminiReader":
        """Return this reader, which a request continues: nothing was read of a refused one."""
        self._events = http.EventSplitter()
        return self

    def feed(self, piece: bytes) -> list[base.Chunk]:
        chunks: list[base.Chunk] = []
        for name, data in self._events.feed(piece):
            if name == b"error" and not self.complete:
                raise base.classify_error_event(http.read_plain(data))
            if data and name != b"error":
                self._handle_event(data, chunks)
        return chunks

    def decode_body(self, body: bytes) -> list[base.Chunk]:
        chunks: list[base.Chunk] = []
        if body.lstrip().startswith(b"["):  # the format without `alt=sse`: an array of responses
            try:
                events = msgspec.json.decode(body, type=list[msgspec.Raw])
            except (msgspec.DecodeError, RecursionError) as error:
                raise ProviderError(f"invalid response: {error}", "incomplete") from error
            for event in events:
                self._handle_event(bytes(event), chunks)
        else:
            self._handle_event(body, chunks)
        return chunks + self.finish()

    def finish(self) -> list[base.Chunk]:
        if not self.complete:
            if self.event_count == 0:
                raise ProviderError("empty response: the stream contained no candidate", "empty_response")
            raise ProviderError("the stream ended before its finishReason", "incomplete")
        if self._stop in _FAILURES:
            raise ProviderError(f"the model's answer failed: {self._reason}", "protocol")
        chunks: list[base.Chunk] = []
        if remainder := self._joiner.flush():
            chunks.append(base.TextChunk(remainder))
        may_continue = self._requests < _MAX_REQUESTS and self._token not in ("", self.continuation)
        if self._stop == "CONTINUATION" and may_continue:
            self._continue()
            return chunks
        stop = _STOP.get(self._stop, "other")
        calls = self._calls if stop in ("stop", "length") else []
        if not calls and not self._text_length and stop == "stop":
            raise ProviderError("empty response: neither text nor a tool call", "empty_response")
        chunks += [base.ToolCallChunk(_build_call(call, truncated=stop == "length")) for call in calls]
        usage = self._earlier_usage + _count_usage(self._usage, self._text_length)
        detail = self._reason if stop == "refusal" else ""
        chunks.append(base.DoneChunk(usage, "tool_calls" if calls and stop == "stop" else stop, self._model, detail))
        return chunks

    def _continue(self) -> None:
        """Prepare for the next response of a continued answer; each request has its own usage."""
        self.complete, self.continuation, self._stop = False, self._token, ""
        self._earlier_usage += _count_usage(self._usage, 0)
        self._usage = None
        self._requests += 1
        self._events = http.EventSplitter()

    def _handle_event(self, data: bytes, chunks: list[base.Chunk]) -> None:
        event = _read_response(data)
        if event.error is not None and not self.complete:
            raise base.classify_error_event({"error": event.error})
        if event.usageMetadata is not None:
            self._usage = event.usageMetadata  # a running total
        if event.modelVersion and not self._model:
            self._model = clean(event.modelVersion)
        feedback = event.promptFeedback
        if feedback is not None and feedback.blockReason and not event.candidates:
            self._end(
                "PROHIBITED_CONTENT", f"the prompt was blocked: {feedback.blockReason}", feedback.blockReasonMessage
            )
        for position, candidate in enumerate(event.candidates or ()):
            if not candidate.index:
                self._read_candidate(candidate, position, data, chunks)

    def _read_candidate(self, candidate: _Candidate, position: int, data: bytes, chunks: list[base.Chunk]) -> None:
        for number, part in enumerate((candidate.content.parts if candidate.content else None) or ()):
            self.event_count += 1
            if part.functionCall is not None:
                self._add_call(part.functionCall, clean(part.thoughtSignature or ""))
            elif part.text is not None:
                self._add_text(part, chunks)
            elif (block := _find_part(data, position, number)).keys() - {"thought", "thoughtSignature"}:
                chunks.append(base.OpaqueChunk(_VENDOR, base.make_encodable(block)))
            elif part.thoughtSignature:
                self._add_text(part, chunks)
        if candidate.continuationToken:
            self._token = clean(candidate.continuationToken)
        if (reason := candidate.finishReason) and reason != "FINISH_REASON_UNSPECIFIED":
            self._end(reason, reason, candidate.finishMessage)

    def _end(self, stop: str, reason: str, message: str | None) -> None:
        self.event_count += 1
        self.complete, self._stop = True, stop
        self._reason = f"{clean(reason)}: {clean(message)[:500]}" if message else clean(reason)

    def _add_text(self, part: _Part, chunks: list[base.Chunk]) -> None:
        """Add a part of text. A signature is kept before its text, and splits it from the text before and after."""
        text, signature = part.text or "", clean(part.thoughtSignature or "")
        if part.thought:
            if thought := self._thoughts.add(text):
                chunks.append(base.ThinkingChunk(thought))
            if signature:
                block = {"text": clean(text), "thought": True, "thoughtSignature": signature}
                chunks.append(base.OpaqueChunk(_VENDOR, block))
            return
        if signature:
            if remainder := self._joiner.flush():
                chunks.append(base.TextChunk(remainder))
            block = {"thoughtSignature": signature} if text else {"text": "", "thoughtSignature": signature}
            chunks.append(base.OpaqueChunk(_VENDOR, block))
        elif self._after_signed_text and text:
            chunks.append(base.OpaqueChunk(_VENDOR, {}))
        self._after_signed_text = bool(signature and text)
        if text:
            self._text_length += len(text)
            if text := self._joiner.add(text):
                chunks.append(base.TextChunk(text))

    def _add_call(self, call: _FunctionCall, signature: str) -> None:
        if call.partialArgs is not None or call.willContinue:
            raise ProviderError("the arguments of a call were streamed in parts, which was not requested", "protocol")
        try:
            raw = bytes(call.args).decode()
        except UnicodeDecodeError as error:
            raise ProviderError(f"invalid event in the stream: {error}", "incomplete") from error
        arguments = "" if raw == "null" else raw
        self._calls.append((clean(call.id or ""), clean(call.name or ""), arguments, signature))


def _build_call(call: tuple[str, str, str, str], *, truncated: bool) -> ToolCall:
    id, name, arguments, signature = call
    built = base.build_tool_call(id, name, arguments, truncated=truncated)
    return msgspec.structs.replace(built, signature=signature) if signature else built


def _find_part(data: bytes, candidate: int, part: int) -> dict[str, Any]:
    """Return a part as it was sent."""
    try:
        response: Any = json.loads(data)
    except ValueError as error:
        raise ProviderError(f"invalid event in the stream: {error}", "incomplete") from error
    return response["candidates"][candidate]["content"]["parts"][part]


def _count_usage(usage: _UsageMetadata | None, text_length: int) -> Usage:
    if usage is None or usage.promptTokenCount is None:
        return Usage(output_tokens=round(text_length / 3.6), estimated=True)
    thoughts = usage.thoughtsTokenCount or 0
    return Usage(
        usage.promptTokenCount + (usage.toolUsePromptTokenCount or 0),
        (usage.candidatesTokenCount or 0) + thoughts,
        usage.cachedContentTokenCount or 0,
        reasoning_tokens=thoughts,
    )


def encode_request(request: base.Request, profile: ModelProfile, continuation: str = "") -> bytes:
    """Encode the request body. Raises BrokenHistory if a tool call and its result are separated."""
    body = [b'{"contents":[', b",".join(_encode_contents(request, profile)), b"]"]
    if request.tools:
        body += [b',"tools":[{"functionDeclarations":[', b",".join(map(_encode_tool, request.tools)), b"]}]"]
    if settings := _settings(request, profile, continuation):
        body += [b",", encode(settings)[1:-1]]
    body.append(b"}")
    return b"".join(body)


def _settings(request: base.Request, profile: ModelProfile, continuation: str) -> dict[str, Any]:
    settings = request.settings
    fields: dict[str, Any] = {}
    if request.system:
        fields["systemInstruction"] = {"parts": [{"text": request.system}]}
    if request.tools and request.tool_choice != "auto":
        fields["toolConfig"] = {"functionCallingConfig": _encode_choice(request.tool_choice)}
    generation: dict[str, Any] = {
        "temperature": settings.temperature,
        "topP": settings.top_p,
        "seed": settings.seed,
        "maxOutputTokens": settings.max_tokens,
        "stopSequences": list(settings.stop) or None,
        "thinkingConfig": _encode_effort(request, profile),
    }
    if request.output:
        generation["responseMimeType"] = "application/json"
        generation["responseJsonSchema"] = None if request.output.json_mode else request.output.schema
    if generation := {name: value for name, value in generation.items() if value is not None}:
        fields["generationConfig"] = generation
    if settings.service_tier is not None:
        fields["serviceTier"] = settings.service_tier
    if continuation:
        fields["continuationToken"] = continuation
    return fields


def _encode_choice(choice: str) -> dict[str, Any]:
    match choice:
        case "none":
            return {"mode": "NONE"}
        case "required":
            return {"mode": "ANY"}
        case name:
            return {"mode": "ANY", "allowedFunctionNames": [wire_name(name)]}


def _encode_effort(request: base.Request, profile: ModelProfile) -> dict[str, Any] | None:
    effort = adaptation.resolve_effort(request.settings, profile)
    if effort.off:
        return {"thinkingBudget": 0}
    if effort.level is None and effort.budget is None:
        return None
    shown = {"includeThoughts": True} if request.settings.effort != "none" else {}
    if effort.level is None or (effort.budget is not None and profile.reasoning == "unknown"):
        return {"thinkingBudget": effort.budget, **shown}
    return {"thinkingLevel": (effort.level if effort.level in _LEVELS else "high").upper(), **shown}


def _encode_tool(tool: parts.ToolSpec) -> bytes:
    encoded: bytes | None = getattr(tool, _TOOL, None)
    if encoded is None:
        declaration = {
            "name": tool.name,
            "description": tool.description,
            "parametersJsonSchema": tool.parameters,
        }
        encoded = parts.memo(tool)[_TOOL] = encode(declaration)
    return encoded


def _encode_contents(request: base.Request, profile: ModelProfile) -> list[bytes]:
    """Encode the messages; consecutive ones of the model become one, as a call must follow a message of the user."""
    encoder = _Encoder(
        request.messages, signed_calls=profile.signed_calls, keep_signatures=adaptation.REASONING not in request.without
    )
    contents: list[bytes] = []
    after_model = False
    for piece in base.encode_messages(request.messages, encoder.cache_key, encoder.encode):
        of_model = piece.startswith(_MODEL_ROLE)
        if of_model and after_model:
            contents[-1] = b"".join([contents[-1][:-2], b",", piece[len(_MODEL_ROLE) :]])
        else:
            contents.append(piece)
        after_model = of_model
    return contents


class _Encoder:
    """Encodes messages for one kind of model: `signed_calls` if each step needs a signature on its first call."""

    def __init__(self, messages: Sequence[Message], *, signed_calls: bool, keep_signatures: bool) -> None:
        self.cache_key = f"gemini_bytes_{signed_calls:d}{keep_signatures:d}"
        self._messages = messages
        self._signed_calls = signed_calls
        self._keep_signatures = keep_signatures
        self._names: dict[str, str] | None = None

    def encode(self, message: Message) -> bytes:
        match message.role:
            case "assistant":
                encoded = self._encode_reply(message)
                return b"".join([_MODEL_ROLE, encode(encoded)[1:-1], b"]}"]) if encoded else b""
            case "tool":
                return self._encode_results(message)
            case "system":  # the API accepts no system message inside a conversation
                return _content([{"text": f"<system>\n{message.text}\n</system>"}])
            case "user":
                encoded = [block for part in message.parts if (block := _encode_part(part)) is not None]
                return _content(encoded) if encoded else b""

    def _encode_reply(self, message: Message) -> list[dict[str, Any]]:
        encoded: list[dict[str, Any]] = []
        signature: str | None = None
        needs_signature = self._signed_calls
        for part in message.parts:
            match part:
                case parts.Opaque(vendor, block):
                    if vendor != _VENDOR or not (block := self._filter(block)):
                        continue
                    if block.keys() == {"thoughtSignature"}:
                        signature = block["thoughtSignature"]
                    else:
                        encoded.append(block)
                case parts.Text(text) if text:
                    encoded.append({"text": text, "thoughtSignature": signature} if signature else {"text": text})
                    signature = None
                case ToolCall():
                    encoded.append(self._encode_call(part, needs_signature=needs_signature))
                    needs_signature = False
                case _:
                    pass  # thoughts without a signature are summaries, which the model does not read
        return encoded

    def _filter(self, block: dict[str, Any]) -> dict[str, Any]:
        """Return a block as it was received, or without its signature if signatures are not sent."""
        if self._keep_signatures or "thoughtSignature" not in block:
            return block
        rest = {name: value for name, value in block.items() if name != "thoughtSignature"}
        return {} if rest.keys() <= {"text", "thought"} else rest

    def _encode_call(self, call: ToolCall, *, needs_signature: bool) -> dict[str, Any]:
        arguments = {"malformed": call.malformed} if call.malformed is not None else call.arguments
        encoded: dict[str, Any] = {
            "functionCall": {"id": call.id, "name": wire_name(call.name), "args": arguments},
        }
        signature = call.signature if self._keep_signatures and call.malformed is None else ""
        if signature or needs_signature:
            encoded["thoughtSignature"] = signature or _SKIP_VALIDATION
        return encoded

    def _encode_results(self, message: Message) -> bytes:
        """Encode all results of a round as one content; images that cannot be part of it follow in a second one."""
        names = self._find_names()
        responses: list[dict[str, Any]] = []
        more: list[dict[str, Any]] = []
        for result in message.tool_results:
            text, images = base.render_result(result)
            response: dict[str, Any] = {
                "id": result.call_id,
                "name": wire_name(names.get(result.call_id, "")),
                "response": _encode_result(result, text, images),
            }
            media = [block for image in images if (block := _encode_part(image)) is not None]
            if self._signed_calls:
                inline = [block for block in media if block.get("inlineData", {}).get("mimeType") in _MEDIA_IN_RESULTS]
                if inline:
                    response["parts"] = inline
                media = [block for block in media if block not in inline]
            if media:
                more += [{"text": f"Content of the result of {response['name']} ({result.call_id}):"}, *media]
            responses.append({"functionResponse": response})
        return b",".join([_content(responses), *([_content(more)] if more else [])])

    def _find_names(self) -> dict[str, str]:
        """Return the tool of each call, which a result has to name."""
        if self._names is None:
            self._names = {call.id: call.name for message in self._messages for call in message.tool_calls}
        return self._names


def _content(blocks: list[dict[str, Any]]) -> bytes:
    return encode({"role": "user", "parts": blocks})


def _encode_result(result: ToolResult, text: str, images: Sequence[parts.Image]) -> dict[str, Any]:
    if result.status != "ok":
        return {"error": text}
    return {"output": text if images or isinstance(result.result, str) else result.result}


def _encode_part(part: parts.Part) -> dict[str, Any] | None:
    """Encode a part of a user's message; None for parts this vendor must not receive."""
    match part:
        case parts.Text(text):
            return {"text": text} if text else None
        case parts.Image(media_type, data, url):
            return _encode_media(parts.File("", media_type, data, url))
        case parts.File():
            return _encode_media(part)
        case _:
            return None


def _encode_media(file: parts.File) -> dict[str, Any]:
    if file.url and not base.is_fetchable(file.url):
        return {"text": base.OMITTED_NOTE}
    media_type, data = base.read_file(file)
    if media_type in _REFUSED_IMAGES:
        return {"text": f"[omitted: the model does not accept {media_type}]"}
    if media_type.startswith("text/") or media_type in _TEXT_TYPES:
        media_type = "text/plain"
    if data:
        return {"inlineData": {"mimeType": media_type, "data": data}}
    return {"fileData": {"mimeType": media_type, "fileUri": file.url}}


class GeminiProvider(http.HttpProvider):
    """Gemini API at `base_url`, by default `GOOGLE_BASE_URL` or Google's own address.

    The key comes from `api_key`, `GOOGLE_API_KEY` or `GEMINI_API_KEY`. For Vertex AI, `base_url` ends with
    `/publishers/google` and `api_key` is a function that returns an access token.

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

    vendor = "Google"
    official_url = "https://generativelanguage.googleapis.com"
    api_path = "/v1beta"
    list_query = "?pageSize=1000"

    @property
    def _key_variables(self) -> tuple[str, ...]:
        return ("GOOGLE_API_KEY", "GEMINI_API_KEY")

    def _authorize(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if self.is_vertex else {"x-goog-api-key": key}

    def _output_dialect(self, profile: ModelProfile) -> base.Dialect:
        return "gemini"

    @property
    def is_vertex(self) -> bool:
        """Return whether requests go to Vertex AI."""
        return "/publishers/google" in self.base_url

    def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        """Send a request to the Gemini API and yield its chunks."""
        model = request.model or self.model
        if not model:
            raise ProviderError(
                "no model given: expected a name, for example GeminiProvider('gemini-…')", "bad_request"
            )
        return self._stream_model(self._adaptation.drop(request, model, _MISSING_SETTINGS), model)

    async def _stream_model(self, request: base.Request, model: str) -> AsyncGenerator[base.Chunk, None]:
        """Stream an answer; one that is too long for a single request is continued in further ones."""
        reader, profile, url = GeminiReader(), self.find_profile(model), self._url(model)
        while not reader.complete:
            encode_body = partial(encode_request, profile=profile, continuation=reader.continuation)
            exchange = self._exchange(url, self._headers(), request, model, encode_body, reader)
            async with aclosing(exchange) as chunks:
                async for chunk in chunks:
                    yield chunk

    def _url(self, model: str) -> str:
        name = model.removeprefix("models/")
        path = name if name.startswith("tunedModels/") else f"models/{name}"
        root = self.base_url if self.is_vertex else f"{self.base_url}{self.api_path}"
        return f"{root}/{quote(path, safe='/@.-_~')}:streamGenerateContent?alt=sse"
