"""Types of OpenAI's chat completions and responses APIs; conversion to core messages and turn options."""

import re
from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from atlas_agents.agents.output import Output
from atlas_agents.core.approvals import Question
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.json import encode, parse_object
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
from atlas_agents.tools.client_tools import ClientResult, ClientTool, ClientTools

Tokens: TypeAlias = Annotated[int, Meta(ge=1)]
FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]
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


class FunctionDefinition(msgspec.Struct, frozen=True):
    """A function that the client runs; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolDefinition(msgspec.Struct, frozen=True):
    type: str = "function"
    function: FunctionDefinition | None = None


class ChosenFunction(msgspec.Struct, frozen=True):
    name: str = ""


class ChosenTool(msgspec.Struct, frozen=True):
    type: str = "function"
    function: ChosenFunction = ChosenFunction()


class AllowedTools(msgspec.Struct, frozen=True):
    mode: Literal["auto", "required"] = "auto"
    tools: tuple[ChosenTool, ...] = ()


class ForcedChoice(msgspec.Struct, frozen=True):
    """A choice of one function, or of several that may be called."""

    type: Literal["function", "allowed_tools"]
    function: ChosenFunction = ChosenFunction()
    allowed_tools: AllowedTools = AllowedTools()


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
    tools: list[ToolDefinition] | None = None
    tool_choice: Literal["none", "auto", "required"] | ForcedChoice | None = None
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


class ItemPart(msgspec.Struct, frozen=True):
    """A part of an input item's content; `type` determines which other field is set."""

    type: str
    text: str = ""
    refusal: str = ""
    image_url: str | None = None
    file_data: str | None = None
    filename: str | None = None


class InputItem(msgspec.Struct, frozen=True):
    """An item of `input` of `/v1/responses`; `type` determines which other fields are set."""

    type: str = "message"
    id: str | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ItemPart] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: str | list[ItemPart] | None = None


class Reasoning(msgspec.Struct, frozen=True):
    effort: Effort | None = None
    summary: str | None = None


class TextFormat(msgspec.Struct, frozen=True, omit_defaults=True):
    """The requested form of the answer. `schema` is a JSON schema, for the type `json_schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class TextConfig(msgspec.Struct, frozen=True):
    format: TextFormat = TextFormat("text")
    verbosity: str | None = None


class ConversationRef(msgspec.Struct, frozen=True):
    """The session that a response belongs to."""

    id: Annotated[str, Meta(min_length=1, max_length=200)]


Includable: TypeAlias = Literal[
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
    "message.output_text.logprobs",
]
"""Additional data that OpenAI can include in a response. None of it exists here, so all values are ignored."""


class ResponseFunction(msgspec.Struct, frozen=True):
    """A function that the client runs; `parameters` is a JSON schema."""

    name: str = ""
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None
    type: str = "function"


class ChosenResponseTool(msgspec.Struct, frozen=True, omit_defaults=True):
    """A choice of one function, or of several that may be called."""

    type: Literal["function", "allowed_tools"]
    name: str = ""
    mode: Literal["auto", "required"] = "auto"
    tools: tuple[ResponseFunction, ...] = ()


ResponseToolChoice: TypeAlias = Literal["none", "auto", "required"] | ChosenResponseTool


class ResponseRequest(msgspec.Struct, frozen=True):
    """Request body of `/v1/responses`."""

    model: str
    input: str | Annotated[list[InputItem], Meta(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: ConversationRef | Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    text: TextConfig | None = None
    tools: tuple[ResponseFunction, ...] | None = None
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    max_output_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    reasoning: Reasoning | None = None
    service_tier: Annotated[str, Meta(max_length=40)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    include: list[Includable] | None = None
    prompt: dict[str, Any] | None = None
    metadata: Annotated[dict[str, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)] | None = None
    safety_identifier: Annotated[str, Meta(max_length=200)] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=200)] | None = None


class OutputText(msgspec.Struct, frozen=True, tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class OutputRefusal(msgspec.Struct, frozen=True, tag="refusal"):
    """Refusal of the model, with its reason."""

    refusal: str


ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


class MessageItem(msgspec.Struct, frozen=True, tag="message"):
    """A message of the agent."""

    id: str
    content: tuple[OutputText | OutputRefusal, ...]
    status: ItemStatus = "in_progress"
    role: Literal["assistant"] = "assistant"


class CallFailure(msgspec.Struct, frozen=True, tag="mcp_tool_execution_error"):
    content: str


class CallItem(msgspec.Struct, frozen=True, tag="mcp_call"):
    """A call of a tool of the agent, which ran in the gateway."""

    id: str
    name: str
    arguments: str
    output: str | None = None
    error: CallFailure | None = None
    status: ItemStatus = "in_progress"
    server_label: Literal["atlas"] = "atlas"
    approval_request_id: None = None


class FunctionCallItem(msgspec.Struct, frozen=True, tag="function_call"):
    """A call of a function that the client runs."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: ItemStatus = "in_progress"


OutputItem: TypeAlias = MessageItem | CallItem | FunctionCallItem
ResponseStatus: TypeAlias = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: OutputDetails


class ResponseError(msgspec.Struct, frozen=True):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class ResponseObject(msgspec.Struct, frozen=True):
    """A response. All keys are always there."""

    id: str
    created_at: int
    model: str
    status: ResponseStatus = "in_progress"
    output: tuple[OutputItem, ...] = ()
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    previous_response_id: str | None = None
    conversation: ConversationRef | None = None
    instructions: str | None = None
    store: bool = True
    background: bool = False
    text: TextConfig = TextConfig()
    tools: tuple[ResponseFunction, ...] = ()
    tool_choice: ResponseToolChoice = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    max_output_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    top_logprobs: int = 0
    truncation: Literal["auto", "disabled"] = "disabled"
    reasoning: Reasoning = Reasoning()
    service_tier: str = "default"
    metadata: dict[str, str] = {}
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    object: Literal["response"] = "response"


class DeletedResponse(msgspec.Struct, frozen=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputText(msgspec.Struct, frozen=True, tag="input_text"):
    text: str


class InputImage(msgspec.Struct, frozen=True, tag="input_image"):
    image_url: str
    detail: Literal["auto"] = "auto"


class InputFile(msgspec.Struct, frozen=True, tag="input_file"):
    filename: str
    file_data: str


class StoredInput(msgspec.Struct, frozen=True, tag="message"):
    """An item of the input of a response, as it is stored."""

    id: str
    role: Literal["system", "user", "assistant"]
    content: tuple[InputText | InputImage | InputFile | OutputText, ...]
    status: Literal["completed"] = "completed"


class StoredCall(msgspec.Struct, frozen=True, tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: Literal["completed"] = "completed"


class StoredCallOutput(msgspec.Struct, frozen=True, tag="function_call_output"):
    id: str
    call_id: str
    output: str
    status: Literal["completed"] = "completed"


StoredItem: TypeAlias = StoredInput | StoredCall | StoredCallOutput


class StoredItems(msgspec.Struct, frozen=True):
    """A page of the input items of a response."""

    data: tuple[StoredItem, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: Literal["list"] = "list"


class OpenAIUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: InputDetails
    completion_tokens_details: OutputDetails


class CompletionCall(msgspec.Struct, frozen=True):
    """A call of a function that the client runs."""

    id: str
    function: Function
    type: Literal["function"] = "function"


class CompletionMessage(msgspec.Struct, frozen=True):
    """The assistant's complete message. `refusal` says that the model refused, and why."""

    content: str | None
    role: Literal["assistant"] = "assistant"
    refusal: str | None = None
    tool_calls: tuple[CompletionCall, ...] | msgspec.UnsetType = msgspec.UNSET


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


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    arguments: str
    name: str = ""


class CallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a call. Only the first one has the id, the type and the name: clients join repeated texts."""

    index: int
    function: FunctionDelta
    id: str = ""
    type: str = ""


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """The next part of the text or of a call; the first one has the role, and the last one may have a refusal."""

    role: str = ""
    content: str | None = None
    refusal: str | None = None
    tool_calls: tuple[CallDelta, ...] = ()


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
    if body.functions:
        raise bad_request("functions is not supported: send tools instead", "functions", "unsupported_parameter")
    if body.messages[-1].role not in ("user", "tool"):
        raise bad_request("the last message must have the role 'user' or 'tool'", "messages")
    _check_tool_messages(body.messages)


def _check_tool_messages(messages: list[OpenAIMessage]) -> None:
    """Check that every tool call is followed by its result, and that every result follows its call."""
    missing: dict[str, None] = {}
    for index, message in enumerate([*messages, None]):
        if message is not None and message.role == "tool":
            if message.tool_call_id not in missing:
                problem = (
                    f"messages[{index}] has the role 'tool', but no call {message.tool_call_id[:80]!r} precedes it"
                )
                raise bad_request(problem, f"messages.[{index}].role")
            del missing[message.tool_call_id]
            continue
        if missing:
            problem = f"no message with the role 'tool' follows these tool calls: {', '.join(missing)}"
            raise bad_request(problem, f"messages.[{index}].role" if message is not None else "messages")
        missing = {call.id: None for call in message.tool_calls or ()} if message is not None else {}


def client_tools_of(body: CompletionRequest) -> ClientTools | None:
    """Return the tools that the client runs, as it wants them called; None if it has none."""
    if not body.tools and body.tool_choice not in (None, "none"):
        raise bad_request("tool_choice requires tools", "tool_choice")
    return _client_tools(body.tools or [], body.tool_choice, body.parallel_tool_calls)


def response_tools(body: ResponseRequest) -> ClientTools | None:
    """Return the tools that the client of a response runs; None if it has none."""
    tools = [
        ToolDefinition(each.type, FunctionDefinition(each.name, each.description, each.parameters, each.strict))
        for each in body.tools or ()
    ]
    given = body.tool_choice
    if isinstance(given, ChosenResponseTool):
        chosen = tuple([ChosenTool(each.type, ChosenFunction(each.name)) for each in given.tools])
        given = ForcedChoice(given.type, ChosenFunction(given.name), AllowedTools(given.mode, chosen))
    return _client_tools(tools, given, body.parallel_tool_calls)


def _client_tools(
    tools: list[ToolDefinition], wanted: str | ForcedChoice | None, parallel: bool | None
) -> ClientTools | None:
    """Return the tools of a client; None if it has none.

    A call without a result ends the turn: a client that does not send one has no use for an answer.
    """
    if not tools:
        return None
    choice, allowed = _read_choice(wanted, {each.function.name for each in tools if each.function})
    return ClientTools(
        tuple([_client_tool(each, index) for index, each in enumerate(tools)]),
        tool_choice=choice,
        allowed=allowed,
        parallel=parallel is not False,
        unanswered="end",
    )


def _client_tool(given: ToolDefinition, index: int) -> ClientTool:
    function = given.function
    if given.type != "function" or function is None:
        expected = "expected type 'function' with a function"
        raise bad_request(f"unsupported tool of type {given.type[:80]!r}: {expected}", f"tools[{index}].type")
    return ClientTool(function.name, function.description or "", function.parameters or {}, bool(function.strict))


def _read_choice(given: str | ForcedChoice | None, known: set[str]) -> tuple[str, tuple[str, ...] | None]:
    """Return the tool choice, and the names of the tools that may be called; None for all of them."""
    if given is None or isinstance(given, str):
        return given or "auto", None
    several = given.type == "allowed_tools"
    names = [each.function.name for each in given.allowed_tools.tools] if several else [given.function.name]
    if unknown := [name for name in names if name not in known]:
        raise bad_request(f"tool_choice names {unknown[0][:80]!r}, which is not among the tools", "tool_choice")
    return (given.allowed_tools.mode, tuple(names)) if several else (names[0], None)


def trailing_results(messages: Sequence[OpenAIMessage]) -> dict[int, ClientResult]:
    """Return the tool results at the end of the messages by their index, with their text as it was sent."""
    found: dict[int, ClientResult] = {}
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role != "tool":
            break
        found[index] = ClientResult(messages[index].tool_call_id, _text(messages[index], f"messages[{index}]"))
    return dict(sorted(found.items()))


def last_call_ids(messages: list[OpenAIMessage]) -> list[str]:
    """Return the ids of the calls in the last message that has some."""
    for message in reversed(messages):
        if message.tool_calls:
            return [call.id for call in message.tool_calls]
    return []


def call_shapes(calls: Sequence[Question]) -> tuple[CompletionCall, ...]:
    return tuple([CompletionCall(call.id, Function(call.tool, encode(call.arguments).decode())) for call in calls])


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
    return _checked(schema, "response_format")


def _checked(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """Return a JSON schema for structured output; HTTPError if it cannot be used."""
    try:
        Output(schema)
    except ConfigError as error:
        raise bad_request(str(error), where) from error
    return schema


def response_settings(body: ResponseRequest) -> ModelSettings | None:
    """Return the model settings that a request for a response asks for; None if it has none."""
    requested = ModelSettings(
        temperature=body.temperature,
        top_p=body.top_p or None,
        max_tokens=body.max_output_tokens,
        service_tier=body.service_tier,
        parallel_tool_calls=body.parallel_tool_calls,
        effort=body.reasoning.effort if body.reasoning else None,
    )
    return None if requested == DEFAULT_SETTINGS else requested


def response_output(text: TextConfig) -> dict[str, Any] | None:
    """Return the JSON schema of `text.format`; None for free text."""
    if text.format.type == "text":
        return None
    if text.format.type == "json_object":
        return _ANY_OBJECT
    if text.format.schema is None:
        raise bad_request("invalid text.format: expected a schema", "text.format.schema")
    return _checked(text.format.schema, "text.format.schema")


def items_to_messages(items: Sequence[InputItem], known: Collection[str]) -> tuple[list[OpenAIMessage], list[str]]:
    """Convert input items to messages of chat completions; return them with the place of each in the request.

    Items of `known` runs are left out: the session has them. So is reasoning, which only its own vendor can read.
    """
    messages: list[OpenAIMessage] = []
    places: list[str] = []
    dropped = {item.call_id for item in items if item.call_id and run_of_item(item.id or "") in known}
    last = max([index for index, item in enumerate(items) if item.type != "function_call_output"], default=-1)
    for index, item in enumerate(items):
        place = f"input[{index}]"
        if run_of_item(item.id or "") in known or item.type == "reasoning":
            continue
        if item.type == "function_call_output" and item.call_id in dropped and index < last:
            continue
        for message in _item_messages(item, place):
            if message.tool_calls and messages and messages[-1].tool_calls:  # calls of one reply
                messages[-1].tool_calls.extend(message.tool_calls)
                continue
            messages.append(message)
            places.append(place)
    return messages, places


def run_of_item(id: str) -> str:
    """Return the run in the id of an item that a response contained; empty if it is another id."""
    kind, _, rest = id.partition("_")
    return rest.rpartition("_")[0] if kind in ("msg", "mcp", "fc") else ""


def _item_messages(item: InputItem, place: str) -> list[OpenAIMessage]:
    match item.type:
        case "message" if item.role is not None:
            return [OpenAIMessage(item.role, _item_content(item.content, f"{place}.content"))]
        case "function_call" | "mcp_call":
            id = item.call_id or item.id or place
            call = OpenAIMessage("assistant", tool_calls=[Call(id, Function(item.name, item.arguments))])
            result = OpenAIMessage("tool", _item_content(item.output, f"{place}.output"), tool_call_id=id)
            return [call] if item.type == "function_call" else [call, result]
        case "function_call_output":
            return [OpenAIMessage("tool", _item_content(item.output, f"{place}.output"), tool_call_id=item.call_id)]
        case "message":
            raise bad_request("a message requires a role", f"{place}.role")
        case "item_reference":
            raise bad_request(
                f"unknown item {item.id!r}: name the response it belongs to as previous_response_id", f"{place}.id"
            )
        case _:
            raise bad_request(f"unsupported item type {item.type!r}", f"{place}.type", "unsupported_value")


def _item_content(content: str | list[ItemPart] | None, place: str) -> str | list[ContentPart]:
    """Convert the content of an item to that of a message of chat completions."""
    if content is None or isinstance(content, str):
        return content or ""
    found: list[ContentPart] = []
    for index, part in enumerate(content):
        match part.type:
            case "input_text" | "output_text" | "text":
                found.append(ContentPart("text", text=part.text))
            case "refusal":
                found.append(ContentPart("refusal", refusal=part.refusal))
            case "input_image" if part.image_url:
                found.append(ContentPart("image_url", image_url=ImageAddress(part.image_url)))
            case "input_file" if part.file_data:
                found.append(ContentPart("file", file=FileContent(part.filename or "file", part.file_data)))
            case "input_image" | "input_file":
                needed = "image_url" if part.type == "input_image" else "file_data with a data: URL"
                raise bad_request(f"unsupported {part.type}: expected {needed}", f"{place}[{index}]")
            case _:
                raise bad_request(f"unsupported content type {part.type!r}", f"{place}[{index}]", "unsupported_value")
    return found


def to_messages(messages: list[OpenAIMessage], places: list[str] | None = None) -> list[Message]:
    """Convert the messages to core messages. Consecutive tool results become one message.

    `places` names each message in errors.
    """
    found: list[Message] = []
    results: list[ToolResult] = []
    for index, message in enumerate(messages):
        place = places[index] if places else f"messages[{index}]"
        if message.role == "tool":
            text = _text(message, place)
            results.append(ToolResult(message.tool_call_id, "ok", text, untrusted="client: tool result"))
            continue
        if results:
            found.append(tool(*results))
            results = []
        found.append(to_message(message, place))
    return [*found, tool(*results)] if results else found


def to_prompt(messages: list[OpenAIMessage], places: list[str] | None = None) -> Message:
    """Convert the last message, which starts the turn."""
    place = places[-1] if places else f"messages[{len(messages) - 1}]"
    message = to_message(messages[-1], place)
    if message.is_blank:
        raise bad_request(f"{place} is empty", f"{place}.content")
    return message


def to_message(message: OpenAIMessage, place: str) -> Message:
    """Convert one message that is not a tool result."""
    parts = _parts(message, place)
    match message.role:
        case "assistant":
            # The gateway has not stored this answer, so it does not know what the answer is based on.
            sources = {UNTRUSTED: ["client: earlier answer"]}
            return assistant(*parts, *[_call(call) for call in message.tool_calls or ()], **sources)
        case "user":
            if not parts:
                raise bad_request(f"{place} is empty", f"{place}.content")
            return user_message(*parts)
        case _:
            return system(*parts)


def _text(message: OpenAIMessage, place: str) -> str:
    return "".join([part.text for part in _parts(message, place) if isinstance(part, Text)])


def _parts(message: OpenAIMessage, place: str) -> list[Part]:
    if message.content is None or isinstance(message.content, str):
        return [Text(clean(message.content))] if message.content else []
    return [_part(part, f"{place}.content[{at}]") for at, part in enumerate(message.content)]


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
