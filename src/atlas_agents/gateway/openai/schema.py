"""Types of OpenAI's chat completions API, and their conversion to core messages and turn options."""

import re
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from atlas_agents.agents.output import Output
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.json import parse_object
from atlas_agents.core.messages import (
    UNTRUSTED,
    File,
    Image,
    Message,
    Part,
    Text,
    ToolCall,
    ToolResult,
    assistant,
    system,
    tool,
)
from atlas_agents.core.messages import user as user_message
from atlas_agents.core.text import clean
from atlas_agents.gateway.http_errors import bad_request
from atlas_agents.providers.settings import DEFAULT_SETTINGS, Effort, ModelSettings

Tokens: TypeAlias = Annotated[int, Meta(ge=1)]
FinishReason: TypeAlias = Literal["stop", "length", "content_filter"]
_INLINE = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=\s]*)")
_ANY_OBJECT: dict[str, Any] = {"type": "object"}


class Function(msgspec.Struct, frozen=True):
    """A function call by the model; the arguments are JSON text."""

    name: str
    arguments: str


class Call(msgspec.Struct, frozen=True):
    id: str
    function: Function


class ImageAddress(msgspec.Struct, frozen=True):
    url: str


class FileContent(msgspec.Struct, frozen=True):
    filename: str = "file"
    file_data: str = ""


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message's content; `type` determines which other field is set."""

    type: str
    text: str = ""
    refusal: str = ""
    image_url: ImageAddress | None = None
    file: FileContent | None = None


class OpenAIMessage(msgspec.Struct, frozen=True):
    """A message of any role."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[ContentPart] | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str = ""


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class WantedSchema(msgspec.Struct, frozen=True):
    name: str = "answer"
    schema: dict[str, Any] | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: WantedSchema | None = None


class CompletionRequest(msgspec.Struct, frozen=True):
    """Request body of `/v1/chat/completions`."""

    model: str
    messages: Annotated[list[OpenAIMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: ResponseFormat | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    stop: str | Annotated[list[str], Meta(max_length=16)] | None = None
    seed: int | None = None
    service_tier: Annotated[str, Meta(max_length=40)] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None
    user: Annotated[str, Meta(max_length=200)] | None = None


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class OpenAIUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: InputDetails
    completion_tokens_details: OutputDetails


class CompletionMessage(msgspec.Struct, frozen=True):
    """The assistant's complete message. `refusal` says that the model refused, and why."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: str | None = None


class CompletionChoice(msgspec.Struct, frozen=True):
    message: CompletionMessage
    finish_reason: FinishReason
    index: int = 0
    logprobs: None = None


class Completion(msgspec.Struct, frozen=True):
    """Response that is not streamed."""

    id: str
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: OpenAIUsage
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The next part of the text; the first one has the role, and the last one may have a refusal."""

    role: str = ""
    content: str | None = None
    refusal: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    delta: Delta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: None = None


class CompletionChunk(msgspec.Struct, frozen=True):
    """One streamed chunk. `usage` is present if requested, with values only in the last chunk."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: OpenAIUsage | msgspec.UnsetType | None = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class OpenAIModel(msgspec.Struct, frozen=True):
    """An agent, listed as a model."""

    id: str
    created: int
    owned_by: str = "atlas"
    object: Literal["model"] = "model"


class Models(msgspec.Struct, frozen=True):
    data: tuple[OpenAIModel, ...]
    object: Literal["list"] = "list"


def check_supported(body: CompletionRequest) -> None:
    """Refuse parameters that are not supported instead of ignoring them."""
    if body.n is not None and body.n != 1:
        raise bad_request("unsupported value of n: expected 1", "n", "unsupported_value")
    for name, value in (("tools", body.tools), ("functions", body.functions)):
        if value:
            raise bad_request(
                f"{name} is not supported: agents use their own tools, which run in the gateway",
                name,
                "unsupported_parameter",
            )
    if body.messages[-1].role != "user":
        raise bad_request("the last message must have the role 'user'", "messages")


def settings_of(body: CompletionRequest) -> ModelSettings | None:
    """Return the model settings that a request asks for; None if it has none."""
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or ()
    requested = ModelSettings(
        temperature=body.temperature,
        top_p=body.top_p or None,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        stop=tuple(each for each in stop if each),
        seed=body.seed,
        service_tier=body.service_tier,
        parallel_tool_calls=body.parallel_tool_calls,
        effort=body.reasoning_effort,
    )
    return None if requested == DEFAULT_SETTINGS else requested


def output_of(body: CompletionRequest) -> dict[str, Any] | None:
    """Return the JSON schema for structured output; None for free text."""
    requested = body.response_format
    if requested is None or requested.type == "text":
        return None
    if requested.type == "json_object":
        return _ANY_OBJECT
    schema = requested.json_schema.schema if requested.json_schema else None
    if schema is None:
        raise bad_request("invalid response_format: expected json_schema with a schema", "response_format")
    try:
        Output(schema)
    except ConfigError as error:
        raise bad_request(str(error), "response_format") from error
    return schema


def to_messages(messages: list[OpenAIMessage]) -> list[Message]:
    """Convert the messages to core messages. Consecutive tool results become one message."""
    found: list[Message] = []
    results: list[ToolResult] = []
    for index, message in enumerate(messages):
        if message.role == "tool":
            text = "".join([part.text for part in _parts(message, index) if isinstance(part, Text)])
            results.append(ToolResult(message.tool_call_id, "ok", text, untrusted="client: tool result"))
            continue
        if results:
            found.append(tool(*results))
            results = []
        found.append(to_message(message, index))
    return [*found, tool(*results)] if results else found


def to_prompt(messages: list[OpenAIMessage]) -> Message:
    """Convert the last message, which starts the turn."""
    last = len(messages) - 1
    message = to_message(messages[last], last)
    if message.is_blank:
        raise bad_request(f"messages[{last}] is empty", f"messages[{last}].content")
    return message


def to_message(message: OpenAIMessage, index: int) -> Message:
    """Convert one message that is not a tool result."""
    parts = _parts(message, index)
    match message.role:
        case "assistant":
            # The gateway has not stored this answer, so it does not know what the answer is based on.
            sources = {UNTRUSTED: ["client: earlier answer"]}
            return assistant(*parts, *[_call(call) for call in message.tool_calls or ()], **sources)
        case "user":
            if not parts:
                raise bad_request(f"messages[{index}] is empty", f"messages[{index}].content")
            return user_message(*parts)
        case _:
            return system(*parts)


def _parts(message: OpenAIMessage, index: int) -> list[Part]:
    if message.content is None or isinstance(message.content, str):
        return [Text(clean(message.content))] if message.content else []
    return [_part(part, f"messages[{index}].content[{at}]") for at, part in enumerate(message.content)]


def _part(part: ContentPart, where: str) -> Part:
    match part.type:
        case "text" | "refusal":
            return Text(clean(part.text or part.refusal))
        case "image_url" if part.image_url is not None:
            url = part.image_url.url
            inline = _INLINE.fullmatch(url)
            if inline is None and not url.startswith(("https://", "http://")):
                raise bad_request("invalid image URL: expected a data: or https: URL", where)
            return Image(inline[1], inline[2]) if inline else Image("", url=url)
        case "file" if part.file is not None and (inline := _INLINE.fullmatch(part.file.file_data)):
            return File(part.file.filename, inline[1], inline[2])
        case _:
            raise bad_request(f"unsupported content type {part.type!r}", where, "unsupported_value")


def _call(call: Call) -> ToolCall:
    try:
        return ToolCall(call.id, call.function.name, parse_object(call.function.arguments or "{}"))
    except ValueError:
        return ToolCall(call.id, call.function.name, {}, malformed=call.function.arguments)
