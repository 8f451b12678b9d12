"""The part of OpenAI's chat completions that we speak; what else a client says is ignored."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

Tokens: TypeAlias = Annotated[int, Meta(ge=1)]
FinishReason: TypeAlias = Literal["stop", "length", "content_filter"]


class Function(msgspec.Struct, frozen=True):
    """A call that a model made; its arguments are JSON in a text."""

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
    """Which of the others is set follows from `type`."""

    type: str
    text: str = ""
    refusal: str = ""
    image_url: ImageAddress | None = None
    file: FileContent | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """What was said, by whomever."""

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


class Asked(msgspec.Struct, frozen=True):
    """The body of a request."""

    model: str
    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    response_format: ResponseFormat | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    user: Annotated[str, Meta(max_length=200)] | None = None


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class UsageShape(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: InputDetails


class Said(msgspec.Struct, frozen=True):
    """The whole answer."""

    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class Choice(msgspec.Struct, frozen=True):
    message: Said
    finish_reason: FinishReason
    index: int = 0
    logprobs: None = None


class Completion(msgspec.Struct, frozen=True):
    """An answer in one piece."""

    id: str
    created: int
    model: str
    choices: tuple[Choice, ...]
    usage: UsageShape
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A few more words; who says them stands in the first."""

    role: str = ""
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True):
    delta: Delta
    finish_reason: FinishReason | None = None
    index: int = 0
    logprobs: None = None


class Chunk(msgspec.Struct, frozen=True):
    """A piece of an answer. `usage` is there if it was asked for, and filled in the last piece."""

    id: str
    created: int
    model: str
    choices: tuple[ChunkChoice, ...]
    usage: UsageShape | msgspec.UnsetType | None = msgspec.UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class ModelShape(msgspec.Struct, frozen=True):
    """An agent, as a model."""

    id: str
    created: int
    owned_by: str = "atlas"
    object: Literal["model"] = "model"


class Models(msgspec.Struct, frozen=True):
    data: tuple[ModelShape, ...]
    object: Literal["list"] = "list"
