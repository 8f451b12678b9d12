"""OpenAI chat completions API and compatible servers: request encoder, stream decoder and provider.

A model's reasoning is returned with the next request, in the fields in which it came. An `Opaque` part names those
fields and holds what is not text; its vendor is the origin, and no other server is sent the reasoning.
"""

import hashlib
import re
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache, partial
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import msgspec

from atlas_agents.core import messages as parts
from atlas_agents.core.errors import ProviderError
from atlas_agents.core.events import Usage
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, Text, ToolCall, ToolSpec, memo
from atlas_agents.core.text import SurrogateJoiner, clean, wire_name
from atlas_agents.providers import adaptation, base, http, schemas
from atlas_agents.providers.catalogue import UNKNOWN, ModelProfile
from atlas_agents.providers.settings import EFFORT_BUDGETS, Effort

_STOP: dict[str, base.StopReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "content_filter": "refusal",
}
_CACHE = "openai_bytes"
_STRICT_CACHE = "openai_strict_bytes"
_CALL_ID_LENGTH = 40
_SHORT_ID = re.compile("[A-Za-z0-9]{9}")
_SKIP_VALIDATION = "skip_thought_signature_validator"
"""Google's documented signature for a call that its model did not make."""
_AUDIO_FORMATS = {
    "audio/wav": "wav",
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/mpeg": "mp3",
    "audio/mp3": "mp3",
}
_LEVELS: tuple[Effort, ...] = ("low", "medium", "high")
"""Effort levels of servers that accept no number of tokens."""
_PLAIN_SETTINGS = ("temperature", "top_p", "service_tier")


class ChatVariant(msgspec.Struct, frozen=True):
    """Differences of a vendor's chat completions from OpenAI's."""

    name: str = ""
    hosts: tuple[str, ...] = ()
    """Domains of the vendor."""
    models: str = ""
    """Pattern of the names of models with these rules."""
    limit: Literal["", "max_tokens"] = ""
    """The field name of `max_tokens`, if it does not depend on the model."""
    seed: str = "seed"
    effort: Literal["reasoning_effort", "thinking", "reasoning", "thinking_config"] = "reasoning_effort"
    """The field for the effort; `thinking` is a switch beside it, and the last two also take a number of tokens."""
    always_has_usage: bool = False
    """The usage is sent without being asked for, and `stream_options` is refused."""
    short_ids: bool = False
    """Ids of calls have nine letters and digits."""
    answers_results: bool = False
    """Only an assistant message may follow tool results."""
    requires_reasoning: bool = False
    """A message with calls has `reasoning_content`, even if it is empty."""
    signs_calls: bool = False
    """The first call of a message carries a signature, if the model demands one."""
    document_urls: bool = False
    """A PDF is sent as an address or a data URL, not as a file."""
    reads_files: bool = False
    """Files are read for every model, whatever its own inputs."""
    responses: bool = False
    """The Responses API serves all requests, because chat completions return no reasoning."""
    cache_key: bool = False
    """A key routes requests with the same beginning to the same cache."""
    cache_control: bool = False
    """A field asks for the cache of models that do not use it by themselves."""


_VENDORS = (
    ChatVariant("openai", ("api.openai.com", "openai.azure.com", "services.ai.azure.com"), cache_key=True),
    ChatVariant(
        "openrouter", ("openrouter.ai",), limit="max_tokens", effort="reasoning", reads_files=True, cache_control=True
    ),
    ChatVariant("xai", ("api.x.ai",), responses=True),
    ChatVariant("groq", ("api.groq.com",)),
    ChatVariant(
        "mistral",
        ("api.mistral.ai",),
        limit="max_tokens",
        seed="random_seed",
        always_has_usage=True,
        short_ids=True,
        answers_results=True,
        document_urls=True,
        cache_key=True,
    ),
    ChatVariant("deepseek", ("api.deepseek.com",), limit="max_tokens", effort="thinking", requires_reasoning=True),
    ChatVariant(
        "google",
        ("generativelanguage.googleapis.com", "aiplatform.googleapis.com"),
        effort="thinking_config",
        signs_calls=True,
    ),
)
_MODELS = (
    ChatVariant(models="deepseek", requires_reasoning=True),
    ChatVariant(models="gemini-", signs_calls=True),
    ChatVariant(
        models="(mistral|ministral|magistral|devstral|codestral|pixtral|voxtral)", short_ids=True, answers_results=True
    ),
)
"""Models whose rules apply at any other address."""
PLAIN = ChatVariant()


@lru_cache(maxsize=1000)
def find_variant(id: str, base_url: str, model: str) -> ChatVariant:
    """Return the rules of a server: of the vendor that the provider is named after, of its address, or of its model."""
    host = (urlsplit(base_url).hostname or "").lower()
    for variant in _VENDORS:
        is_host = any(f".{host}".endswith(f".{each}") for each in variant.hosts)
        if is_host or (id == variant.name and id != "openai"):  # every provider is called "openai" by default
            return variant
    name = model.lower().rpartition("/")[2]
    return next((each for each in _MODELS if re.match(each.models, name)), PLAIN)


def find_origin(variant: ChatVariant, base_url: str) -> str:
    """Return the name under which reasoning is stored: that of the vendor, or the address of an unknown server."""
    return f"chat {variant.name or urlsplit(base_url).netloc.rpartition('@')[2]}"


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: Any = None


class _CallDelta(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    extra_content: Any = None


class _ChoiceDelta(msgspec.Struct, gc=False):
    content: str | list[Any] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: Any = None
    reasoning_details: Any = None
    tool_calls: list[_CallDelta] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _ChoiceDelta | None = None
    message: _ChoiceDelta | None = None
    finish_reason: str | None = None
    error: Any = None


class _InputDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class _OutputDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class _CompletionUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _InputDetails | None = None
    completion_tokens_details: _OutputDetails | None = None
    prompt_cache_hit_tokens: int | None = None


class _CompletionEvent(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: _CompletionUsage | None = None
    model: str | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_CompletionEvent)


class _OpenCall:
    """A tool call that is still streaming."""

    __slots__ = ("extra", "id", "index", "name", "pieces")

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.extra: dict[str, Any] = {}
        self.id = ""
        self.name = ""
        self.pieces: list[str] = []


class OpenAIReader:
    """Decoder of one chat completion. Reads choice 0 only, and after its finish_reason only the usage.

    Without an `origin` the reasoning is only shown, not returned with the next request.
    """

    def __init__(self, origin: str = "") -> None:
        self.event_count = 0
        self.complete = False
        self.closed = False
        self._origin = origin
        self._thinking_field = ""
        self._details = _ReasoningDetails()
        self._events = http.EventSplitter()
        self._joiner = SurrogateJoiner()
        self._thoughts = SurrogateJoiner()
        self._stop = ""
        self._refused = False
        self._calls: list[_OpenCall] = []
        self._usage: _CompletionUsage | None = None
        self._model = ""
        self._text_length = 0

    def renew(self) -> "OpenAIReader":
        return OpenAIReader(self._origin)

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
        if self._origin and (state := self._collect_state()):
            chunks.append(base.OpaqueChunk(self._origin, base.make_encodable(state)))
        chunks += [base.ToolCallChunk(call) for call in calls]
        if not calls and not self._text_length and stop in ("stop", "tool_calls"):
            raise ProviderError("empty response: neither text nor a tool call", "empty_response")
        detail = base.CONTENT_FILTER if self._stop == "content_filter" else ""
        chunks.append(base.DoneChunk(_count_usage(self._usage, self._text_length), stop, self._model, detail))
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
        if choice.error is not None or choice.finish_reason == "error":
            raise base.classify_error_event({"error": choice.error or _UNNAMED_ERROR})
        if delta is not None:
            self.event_count += 1
            if delta.reasoning_content or delta.reasoning or delta.reasoning_details or type(delta.content) is list:
                self._add_thinking(delta, chunks, is_whole=choice.message is not None)
            if delta.content or delta.refusal:
                self._add_text(delta, chunks)
            if delta.tool_calls:
                self._add_calls(choice, delta.tool_calls)
        if choice.finish_reason:
            self.event_count += 1
            self.complete, self._stop = True, choice.finish_reason

    def _add_calls(self, choice: _Choice, parts: list[_CallDelta]) -> None:
        for index, part in enumerate(parts):
            if choice.message is not None:  # in a complete response each entry is a call, whatever its id
                part.index = index
            self._add_call_delta(part)

    def _add_text(self, delta: _ChoiceDelta, chunks: list[base.Chunk]) -> None:
        content = delta.content
        if delta.refusal:
            self._refused = True
        if isinstance(content, list):
            content = "".join(_read_texts(content, "text"))
        if content := content or delta.refusal:
            self._text_length += len(content)
            if not self._joiner.pending and content.isascii():  # as `add` would return it
                chunks.append(base.TextChunk(content))
            elif text := self._joiner.add(content):
                chunks.append(base.TextChunk(text))

    def _add_thinking(self, delta: _ChoiceDelta, chunks: list[base.Chunk], *, is_whole: bool) -> None:
        thinking = ""
        if delta.reasoning_content:
            thinking, self._thinking_field = delta.reasoning_content, "reasoning_content"
        elif type(delta.reasoning) is str and delta.reasoning:
            thinking, self._thinking_field = delta.reasoning, "reasoning"
        elif type(delta.content) is list and (thinking := "".join(_read_texts(delta.content, "thinking"))):
            self._thinking_field = "content"
        if type(found := cast(object, delta.reasoning_details)) is list:
            text = self._details.add(cast(list[Any], found), is_whole=is_whole)
            thinking = thinking or text
        if thinking and (text := self._thoughts.add(thinking)):
            chunks.append(base.ThinkingChunk(text))

    def _collect_state(self) -> dict[str, Any]:
        """Return the reasoning state for the next request: the field of the thinking, and content that is not text."""
        state: dict[str, Any] = {}
        if details := self._details.join():
            state["reasoning_details"] = details
        elif self._thinking_field:
            state["thinking"] = self._thinking_field
        if any(call.extra for call in self._calls):
            state["tool_calls"] = [call.extra for call in self._calls]
        return state

    def _add_call_delta(self, part: _CallDelta) -> None:
        """Append to the call that this delta belongs to; a new id starts a new call, whatever the index."""
        call = self._find_call(part)
        if part.id and not call.id:
            call.id = clean(part.id)
        if part.extra_content is not None:
            call.extra = {"extra_content": part.extra_content}
        function = part.function
        if function is None:
            return
        if function.name and not call.name:
            call.name = clean(function.name)
        arguments = function.arguments
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


_UNNAMED_ERROR = {"message": "the server ended the message with an error", "code": "server_error"}


def _read_texts(content: object, kind: str) -> Iterator[str]:
    """Yield the texts of the parts of one type; those of thinking are in parts of their own."""
    for part in cast(list[Any], content) if isinstance(content, list) else ():
        fields = cast(dict[str, Any], part) if isinstance(part, dict) else {}
        if fields.get("type") == kind:
            text = fields.get(kind)
            yield from [text] if isinstance(text, str) else _read_texts(text, "text")


class _ReasoningDetails:
    """OpenRouter's details of reasoning; a text or summary that comes in several pieces is one detail."""

    def __init__(self) -> None:
        self._details: list[dict[str, Any]] = []
        self._pieces: list[list[str]] = []

    def add(self, more: list[Any], *, is_whole: bool) -> str:
        """Add details, or pieces of them, and return their text."""
        texts: list[str] = []
        for detail in [cast(dict[str, Any], each) for each in more if isinstance(each, dict)]:
            field = _TEXT_FIELDS.get(str(detail.get("type")), "")
            text = detail.get(field)
            index = self._find(detail) if field and not is_whole else None
            if index is None:
                self._details.append(dict(detail))
                self._pieces.append([])
                index = len(self._details) - 1
            else:
                self._details[index].update({name: value for name, value in detail.items() if value is not None})
            if isinstance(text, str):
                self._pieces[index].append(text)
                texts.append(text)
        return "".join(texts)

    def join(self) -> list[dict[str, Any]]:
        """Return the complete details, in order."""
        for detail, pieces in zip(self._details, self._pieces, strict=True):
            if pieces:
                detail[_TEXT_FIELDS[detail["type"]]] = "".join(pieces)
        return self._details

    def _find(self, detail: dict[str, Any]) -> int | None:
        for index in range(len(self._details) - 1, -1, -1):
            other = self._details[index]
            if detail["type"] == other.get("type") and detail.get("index") == other.get("index"):
                return index
        return None


_TEXT_FIELDS = {"reasoning.text": "text", "reasoning.summary": "summary"}


def _count_usage(usage: _CompletionUsage | None, text_length: int) -> Usage:
    if usage is None or usage.completion_tokens is None:
        return Usage(output_tokens=round(text_length / 3.6), estimated=True)
    read, written = usage.prompt_tokens_details or _InputDetails(), usage.completion_tokens_details or _OutputDetails()
    return Usage(
        usage.prompt_tokens or 0,
        usage.completion_tokens,
        read.cached_tokens or usage.prompt_cache_hit_tokens or 0,
        cache_write_tokens=read.cache_write_tokens or 0,
        reasoning_tokens=written.reasoning_tokens or 0,
    )


def find_first_model(body: object) -> str | None:
    """Return the id of the first model in a `/models` response."""
    models = cast(dict[str, Any], body).get("data") if isinstance(body, dict) else None
    for entry in cast(list[Any], models) if isinstance(models, list) else []:
        if isinstance(entry, dict) and isinstance(name := cast(dict[str, Any], entry).get("id"), str):
            return name
    return None


def encode_request(
    request: base.Request,
    model: str,
    profile: ModelProfile = UNKNOWN,
    variant: ChatVariant = PLAIN,
    origin: str = "",
    extra: Mapping[str, Any] | None = None,
    warn: Callable[[str, str], None] | None = None,
) -> bytes:
    """Encode the request body. Raises BrokenHistory if a tool call and its result are separated.

    `extra` are fields that a server accepts beyond OpenAI's; the request's own fields take precedence. `warn` is called
    with each omitted part of a message, and the reason.
    """
    encoder = _MessageEncoder(variant, profile, origin, request.without, warn)
    messages = base.encode_messages(request.messages, encoder.cache_key, encoder.encode)
    if variant.answers_results:
        messages = _separate_results(messages)
    if request.system:
        messages.insert(0, encode({"role": "system", "content": request.system}))
    pieces = [b'{"model":', encode(model), b',"stream":true']
    if not variant.always_has_usage and adaptation.STREAM_OPTIONS not in request.without:
        pieces.append(b',"stream_options":{"include_usage":true}')
    pieces += [b',"messages":[', b",".join(messages), b"]"]
    if request.tools:
        pieces += [b',"tools":[', b",".join(_encode_tools(request, profile)), b"]"]
    if fields := {**(extra or {}), **_encode_fields(request, profile, variant)}:
        pieces += [b",", encode(fields)[1:-1]]
    pieces.append(b"}")
    return b"".join(pieces)


def _encode_fields(request: base.Request, profile: ModelProfile, variant: ChatVariant) -> dict[str, Any]:
    settings = request.settings
    fields = {name: value for name in _PLAIN_SETTINGS if (value := getattr(settings, name)) is not None}
    if settings.max_tokens is not None:
        fields[_name_limit(request, profile, variant)] = settings.max_tokens
    if settings.stop:
        fields["stop"] = list(settings.stop)
    if settings.seed is not None:
        fields[variant.seed] = settings.seed
    if request.tools and settings.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = settings.parallel_tool_calls
    if request.tools and request.tool_choice != "auto":
        named_tool = {"type": "function", "function": {"name": wire_name(request.tool_choice)}}
        fields["tool_choice"] = request.tool_choice if request.tool_choice in ("none", "required") else named_tool
    if request.output:
        fields["response_format"] = _encode_output(request.output)
    wants_cache = settings.cache != "off" and (variant.cache_key or settings.cache is not None)
    if wants_cache and "cache" not in request.without and (key := base.make_cache_key(request)):
        fields["prompt_cache_key"] = key
    if variant.cache_control and profile.cache_marks and settings.cache != "off" and "cache" not in request.without:
        fields["cache_control"] = {"type": "ephemeral", **({"ttl": "1h"} if settings.cache == "1h" else {})}
    return fields | _encode_effort(request, profile, variant)


def _name_limit(request: base.Request, profile: ModelProfile, variant: ChatVariant) -> str:
    """Return the name of `max_tokens`. A server that refused one of the two names gets the other one."""
    is_new = not variant.limit and (profile.completion_tokens or variant.name == "openai")
    return "max_completion_tokens" if is_new != (adaptation.LIMIT_NAME in request.without) else "max_tokens"


def _encode_effort(request: base.Request, profile: ModelProfile, variant: ChatVariant) -> dict[str, Any]:
    effort = _resolve_effort(request, profile)
    if variant.effort == "thinking" and effort.off:
        return {"thinking": {"type": "disabled"}}
    if variant.effort == "reasoning" and effort.budget is not None:
        return {"reasoning": {"max_tokens": effort.budget}}
    if variant.effort == "thinking_config" and effort.budget is not None:
        return {"extra_body": {"google": {"thinking_config": {"thinking_budget": effort.budget}}}}
    level = "none" if effort.off else effort.level or _find_level(effort.budget)
    if level is None:
        return {}
    if variant.effort == "reasoning":
        return {"reasoning": {"effort": level}}
    switch = {"thinking": {"type": "enabled"}} if variant.effort == "thinking" else {}
    return {**switch, "reasoning_effort": level}


def _resolve_effort(request: base.Request, profile: ModelProfile) -> adaptation.ResolvedEffort:
    effort = adaptation.resolve_effort(request.settings, profile)
    if request.tools and adaptation.TOOLS_WITH_REASONING in request.without:
        if profile.off == "impossible":
            raise ProviderError(
                "the model accepts no tools on chat completions, because it always reasons; "
                "use the Responses API: 'openai-responses/…'",
                "bad_request",
            )
        return adaptation.ResolvedEffort(off=True)
    if effort.level == "max" and profile.family.startswith("GPT"):
        return adaptation.ResolvedEffort("xhigh")  # "max" exists only on the Responses API
    return effort


def _find_level(budget: int | None) -> Effort | None:
    """Return the level that stands for a number of tokens."""
    return None if budget is None else min(_LEVELS, key=lambda level: abs(EFFORT_BUDGETS[level] - budget))


def _encode_output(output: base.OutputSpec) -> dict[str, Any]:
    if output.json_mode:
        return {"type": "json_object"}
    schema: dict[str, Any] = {"name": output.name, "schema": output.schema}
    return {"type": "json_schema", "json_schema": {**schema, "strict": True} if output.strict else schema}


def _encode_tools(request: base.Request, profile: ModelProfile) -> list[bytes]:
    may_be_strict = adaptation.enforces_tools(request, profile)
    return [_encode_tool(tool, may_be_strict) for tool in request.tools]


def _encode_tool(tool: ToolSpec, may_be_strict: bool) -> bytes:
    key = _STRICT_CACHE if may_be_strict else _CACHE
    encoded: bytes | None = getattr(tool, key, None)
    if encoded is None:
        strict = schemas.strict_parameters(tool, "openai") if may_be_strict else None
        function: dict[str, Any] = {"name": tool.name, "description": tool.description}
        function["parameters"] = tool.parameters if strict is None else strict
        if strict is not None:
            function["strict"] = True
        encoded = memo(tool)[key] = encode({"type": "function", "function": function})
    return encoded


_ACKNOWLEDGEMENT = {"role": "assistant", "content": "I have the results."}


def _separate_results(messages: list[bytes]) -> list[bytes]:
    """Insert an assistant message where a user's message follows tool results."""
    separated: list[bytes] = []
    for message in messages:
        if message.startswith(b'{"role":"user"') and separated and separated[-1].startswith(b'{"role":"tool"'):
            separated.append(encode(_ACKNOWLEDGEMENT))
        separated.append(message)
    return separated


class _MessageEncoder:
    """Encodes messages for one server; `origin` names the reasoning that it gets back."""

    def __init__(
        self,
        variant: ChatVariant,
        profile: ModelProfile,
        origin: str,
        without: frozenset[str],
        warn: Callable[[str, str], None] | None,
    ) -> None:
        self._variant = variant
        if variant.reads_files and profile.inputs:
            profile = msgspec.structs.replace(profile, inputs=(*profile.inputs, "pdf"))
        self._attachments = adaptation.Attachments(without, profile, warn)
        self._origin = "" if adaptation.REASONING in without else origin
        self._leading_system = adaptation.SYSTEM_INSIDE in without
        self._signed = variant.signs_calls and profile.signed_calls
        flags = f"{self._attachments.key}{self._leading_system:d}{self._signed:d}"
        self.cache_key = sys.intern(f"{_CACHE} {variant.name}{variant.models} {self._origin} {flags}")

    def encode(self, message: Message) -> bytes:
        return b",".join([encode(each) for each in self._wire_messages(message)])

    def _wire_messages(self, message: Message) -> list[dict[str, Any]]:
        """Encode one message as zero, one or (tool results) several messages of the API."""
        match message.role:
            case "tool":
                return self._encode_results(message)
            case "assistant":
                return [self._encode_reply(message)] if message.text or message.tool_calls else []
            case "system" if self._leading_system:
                return [{"role": "user", "content": f"<system>\n{message.text}\n</system>"}]
            case role:
                return [{"role": role, "content": self._encode_content(message)}]

    def _encode_results(self, message: Message) -> list[dict[str, Any]]:
        """Encode tool results. They can only be text, so that images follow them in a user's message."""
        results: list[dict[str, Any]] = []
        content: list[dict[str, Any]] = []
        for result in message.tool_results:
            text, images = base.render_result(result)
            id, note = self._encode_id(result.call_id), self._attachments.omit_result_images(images)
            results.append({"role": "tool", "tool_call_id": id, "content": text + note})
            if images and not note:
                content.append({"type": "text", "text": f"Images in the result of the tool call {id}:"})
                content += [_encode_image(image) for image in images]
        if not content:
            return results
        between: list[dict[str, Any]] = [_ACKNOWLEDGEMENT] if self._variant.answers_results else []
        return [*results, *between, {"role": "user", "content": content}]

    def _encode_reply(self, message: Message) -> dict[str, Any]:
        state = self._find_state(message)
        reply: dict[str, Any] = {"role": "assistant", "content": message.text or None}
        if field := state.get("thinking"):
            thinking = "".join([part.text for part in message.parts if type(part) is parts.Thinking])
            reply[field] = _thinking_content(thinking, message.text) if field == "content" else thinking
        if details := state.get("reasoning_details"):
            reply["reasoning_details"] = details
        if message.tool_calls:
            reply["tool_calls"] = self._encode_calls(message.tool_calls, state.get("tool_calls") or ())
            if self._variant.requires_reasoning and "reasoning" not in reply:
                reply.setdefault("reasoning_content", "")
        return reply

    def _find_state(self, message: Message) -> dict[str, Any]:
        """Return the reasoning state that this server sent with the message."""
        for part in message.parts:
            if type(part) is parts.Opaque and part.vendor == self._origin:
                return part.block
        return {}

    def _encode_calls(self, calls: Sequence[ToolCall], extras: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        encoded: list[dict[str, Any]] = []
        for index, call in enumerate(calls):
            arguments = {"malformed": call.malformed} if call.malformed is not None else call.arguments
            function = {"name": wire_name(call.name), "arguments": encode(arguments).decode()}
            extra = extras[index] if index < len(extras) else {}
            if not extra and index == 0 and self._signed:
                signature = (self._origin and call.signature) or _SKIP_VALIDATION
                extra = {"extra_content": {"google": {"thought_signature": signature}}}
            encoded.append({"id": self._encode_id(call.id), "type": "function", "function": function, **extra})
        return encoded

    def _encode_id(self, id: str) -> str:
        if self._variant.short_ids:
            return id if _SHORT_ID.fullmatch(id) else hashlib.sha256(id.encode()).hexdigest()[:9]
        name = wire_name(id)
        return name if len(name) <= _CALL_ID_LENGTH else f"call_{hashlib.sha256(id.encode()).hexdigest()[:32]}"

    def _encode_content(self, message: Message) -> str | list[dict[str, Any]]:
        if all(isinstance(part, Text) for part in message.parts):
            return message.text
        content: list[dict[str, Any]] = []
        for part in message.parts:
            match part:
                case Text(text):
                    content.append({"type": "text", "text": text})
                case parts.Image():
                    note = self._attachments.omit_image(part)
                    content.append({"type": "text", "text": note} if note else _encode_image(part))
                case parts.File():
                    content.append(self._encode_file(part))
                case _:
                    pass
        return content

    def _encode_file(self, file: parts.File) -> dict[str, Any]:
        """Encode a file: audio and text as such, others as data. Most servers fetch none, so an address is named."""
        if file.url and not base.is_fetchable(file.url):
            return {"type": "text", "text": base.OMITTED_NOTE}
        media_type, data = base.read_file(file)
        has_address = bool(file.url) and not file.url.startswith("data:")
        if self._variant.document_urls and media_type == "application/pdf":
            url = file.url if has_address else f"data:{media_type};base64,{data}"
            return {"type": "document_url", "document_url": url, "document_name": file.name}
        if has_address:
            return {"type": "text", "text": f"[not attached: the file {file.name} at {file.url}]"}
        if (text := base.read_text_file(file)) is not None:
            return {"type": "text", "text": f"File {file.name}:\n{text}"}
        if note := self._attachments.omit_file(file, media_type):
            return {"type": "text", "text": note}
        if format := _AUDIO_FORMATS.get(media_type):
            return {"type": "input_audio", "input_audio": {"data": data, "format": format}}
        if media_type.startswith(("audio/", "video/")) or not data:
            return {"type": "text", "text": f"[not attached: the file {file.name}; {media_type} is not accepted]"}
        return {"type": "file", "file": {"filename": file.name, "file_data": f"data:{media_type};base64,{data}"}}


def _thinking_content(thinking: str, text: str) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = [{"type": "thinking", "thinking": [{"type": "text", "text": thinking}]}]
    return [*content, {"type": "text", "text": text}] if text else content


def _encode_image(image: parts.Image) -> dict[str, Any]:
    if image.url and not base.is_fetchable(image.url):
        return {"type": "text", "text": base.OMITTED_NOTE}
    return {"type": "image_url", "image_url": {"url": image.url or f"data:{image.media_type};base64,{image.data}"}}


class OpenAIProvider(http.HttpProvider):
    """OpenAI chat completions API at `base_url`, by default `OPENAI_BASE_URL` or OpenAI's own address.

    The key comes from `api_key` or `OPENAI_API_KEY`; your own server may need none. Without a model, the first one that
    the server lists is used.

    OpenAI and Azure refuse tools on chat completions for models that reason. Such requests go to the Responses API; at
    another address only if `profile` names the model. xAI's models always use the Responses API.

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

    def stream(self, request: base.Request) -> AsyncGenerator[base.Chunk, None]:
        """Send a request to the chat completions API and yield its chunks."""
        model = request.model or self.model
        return self._stream_model(request, model) if model else self._stream_first_model(request)

    def _output_dialect(self, profile: ModelProfile) -> base.Dialect:
        return "openai" if self.is_official or profile.strict_tools else "plain"

    def _stream_model(self, request: base.Request, model: str) -> AsyncGenerator[base.Chunk, None]:
        url = f"{self.base_url}/chat/completions"
        profile = self.find_profile(model)
        variant = find_variant(self.id, self.base_url, self.profile or model)
        is_openai = variant.name == "openai" or (variant is PLAIN and self.profile is not None)
        if variant.responses or (is_openai and adaptation.needs_responses(request, profile)):
            from atlas_agents.providers import openai_responses  # most models and servers do not need it

            url, encode_body, reader = openai_responses.prepare(self.base_url, model, profile, self._adaptation)
            return self._exchange(url, self._headers(), request, model, encode_body, reader)
        origin = find_origin(variant, self.base_url)
        warn = partial(self._adaptation.warn, model)
        encode_body = partial(encode_request, model=model, profile=profile, variant=variant, origin=origin, warn=warn)
        return self._exchange(url, self._headers(), request, model, encode_body, OpenAIReader(origin))

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
