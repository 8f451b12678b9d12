"""Types of the AG-UI protocol: events, interrupts and run input."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

from atlas_agents.core.messages import File, Image, Message, Part, Text, user
from atlas_agents.core.text import clean
from atlas_agents.gateway.http_errors import bad_request
from atlas_agents.gateway.protocol.chat import Key, TurnSettings
from atlas_agents.tools.client_tools import ClientResult, ClientTool, ClientTools
from atlas_agents.tools.context import MAX_SHARED_STATE, SHARED_STATE

VERSION = "1.0"
"""Version of the AG-UI protocol."""
_PARTS = ("image", "document")
_SETTINGS = "forwardedProps.settings"
_MAX_DEPTH = 50
"""Depth to which states are compared; deeper values are replaced as a whole."""
_HTTP_URL = re.compile(r"https?://")
PAYLOAD_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {
            "type": "object",
            "description": "Replaces the arguments, without merging; or the values for a form.",
        },
        "reason": {"type": "string"},
        "remember": {"enum": ["once", "session", "always"], "description": "How long the approval is valid."},
    },
    "required": ["approved"],
    "additionalProperties": False,
}


class Shape(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of all wire types. A field that has its default value is omitted."""


class AgUiEvent(Shape, frozen=True, tag_field="type"):
    """Base of all events; `type` identifies the event."""


class RunStarted(AgUiEvent, frozen=True, tag="RUN_STARTED"):
    thread_id: str
    run_id: str
    protocol_version: str


class TextMessageStart(AgUiEvent, frozen=True, tag="TEXT_MESSAGE_START"):
    message_id: str
    role: str


class TextMessageContent(AgUiEvent, frozen=True, gc=False, tag="TEXT_MESSAGE_CONTENT"):
    message_id: str
    delta: str


class TextMessageEnd(AgUiEvent, frozen=True, tag="TEXT_MESSAGE_END"):
    message_id: str


class ReasoningStart(AgUiEvent, frozen=True, tag="REASONING_START"):
    message_id: str


class ReasoningMessageStart(AgUiEvent, frozen=True, tag="REASONING_MESSAGE_START"):
    message_id: str
    role: str


class ReasoningMessageContent(AgUiEvent, frozen=True, gc=False, tag="REASONING_MESSAGE_CONTENT"):
    message_id: str
    delta: str


class ReasoningMessageEnd(AgUiEvent, frozen=True, tag="REASONING_MESSAGE_END"):
    message_id: str


class ReasoningEnd(AgUiEvent, frozen=True, tag="REASONING_END"):
    message_id: str


class ToolCallStart(AgUiEvent, frozen=True, tag="TOOL_CALL_START"):
    tool_call_id: str
    tool_call_name: str
    parent_message_id: str


class ToolCallArgs(AgUiEvent, frozen=True, tag="TOOL_CALL_ARGS"):
    tool_call_id: str
    delta: str


class ToolCallEnd(AgUiEvent, frozen=True, tag="TOOL_CALL_END"):
    tool_call_id: str


class ToolCallResult(AgUiEvent, frozen=True, tag="TOOL_CALL_RESULT"):
    message_id: str
    tool_call_id: str
    content: str
    role: str


class MessagesSnapshot(AgUiEvent, frozen=True, tag="MESSAGES_SNAPSHOT"):
    """All current messages; a message that is missing here was withdrawn."""

    messages: tuple[Any, ...]


class StateSnapshot(AgUiEvent, frozen=True, tag="STATE_SNAPSHOT"):
    """The whole state."""

    snapshot: Any


class PatchOperation(Shape, frozen=True, omit_defaults=True):
    """An operation of JSON Patch (RFC 6902)."""

    op: Literal["add", "remove", "replace"]
    path: str
    value: Any = msgspec.UNSET


class StateDelta(AgUiEvent, frozen=True, tag="STATE_DELTA"):
    """Changes of the state since the last snapshot or delta, as JSON Patch."""

    delta: tuple[PatchOperation, ...]


class Custom(AgUiEvent, frozen=True, tag="CUSTOM"):
    """An event that the protocol does not define."""

    name: str
    value: Any


class TokenUsage(Shape, frozen=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cached_input_tokens: int
    model: str = ""


class Interrupt(Shape, frozen=True):
    """A request for approval or input. The answer comes with the next run."""

    id: str
    reason: str
    message: str
    tool_call_id: str
    response_schema: dict[str, Any]
    expires_at: str
    metadata: dict[str, Any]


class RunOutcomeShape(Shape, frozen=True):
    type: Literal["success", "interrupt", "cancelled"]
    interrupts: tuple[Interrupt, ...] = ()
    pending_tool_call_ids: tuple[str, ...] = ()
    """Calls of the frontend's tools that the turn waits for."""


class RunFinished(AgUiEvent, frozen=True, tag="RUN_FINISHED"):
    thread_id: str
    run_id: str
    outcome: RunOutcomeShape
    usage: tuple[TokenUsage, ...] = ()


class RunError(AgUiEvent, frozen=True, tag="RUN_ERROR"):
    message: str
    code: str


class FunctionShape(Shape, frozen=True):
    name: str
    arguments: str


class CallShape(Shape, frozen=True):
    id: str
    type: Literal["function"]
    function: FunctionShape


class AssistantShape(Shape, frozen=True):
    """An assistant message in a snapshot."""

    id: str
    role: str
    content: str = ""
    tool_calls: tuple[CallShape, ...] = ()


class AgUiToolMessage(Shape, frozen=True):
    """A tool result in a snapshot."""

    id: str
    role: str
    content: str
    tool_call_id: str


class Source(Shape, frozen=True):
    """The content of an image or document: base64 data or a URL."""

    type: str
    value: str = ""
    mime_type: str = ""


class InputPart(Shape, frozen=True):
    """A part of a message's content; `type` determines which other field is set."""

    type: str
    text: str = ""
    source: Source | None = None


class Resume(Shape, frozen=True):
    """The answer to an interrupt."""

    interrupt_id: str
    status: Literal["resolved", "cancelled"]
    payload: Any = None


class AgUiMessage(Shape, frozen=True):
    """A message of the client; only the last one is read, or the tool results at the end."""

    role: str
    content: str | list[InputPart] | None = None
    tool_call_id: str = ""
    error: str | None = None


class FrontendTool(Shape, frozen=True):
    """A tool that the frontend runs."""

    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None


class ContextItem(Shape, frozen=True):
    """Context from the frontend, such as the user's current view."""

    description: str
    value: str


class RunInput(Shape, frozen=True):
    """Request body. The conversation is stored in the gateway, so only the client's last message is read, or the
    results of the frontend's tools at the end.

    Context and state are attached to it as files, and tools can change the state. `settings` of the forwarded props are
    model settings of the turn.
    """

    thread_id: Key
    run_id: Annotated[str, Meta(min_length=1, max_length=190)]
    messages: list[msgspec.Raw]
    resume: list[Resume] | None = None
    context: list[ContextItem] | None = None
    state: Any = None
    forwarded_props: Any = None
    tools: list[FrontendTool] | None = None


class Payload(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The decision about a tool call; `edited_args` replace the model's arguments."""

    approved: bool
    edited_args: dict[str, Any] | None = None
    reason: Annotated[str, Meta(max_length=1000)] = ""
    remember: Literal["once", "session", "always"] = "once"


def last_message(run_input: RunInput) -> Message:
    """Return the user's message."""
    message = _decode_message(run_input.messages[-1]) if run_input.messages else None
    if message is None or message.role != "user" or not message.content:
        raise bad_request("the last message must have the role 'user'", "messages")
    content = message.content
    found = user(content) if isinstance(content, str) else user(*[_part(part) for part in content])
    if found.is_blank:
        raise bad_request("the last message is empty", "messages")
    context = [msgspec.to_builtins(each) for each in run_input.context or ()]
    attached = [*_attach("context", context), *_attach("state", run_input.state)]
    return msgspec.structs.replace(found, parts=(*found.parts, *attached)) if attached else found


def _attach(name: str, value: Any) -> list[File]:
    """Attach content from a frontend as a file, so that the model and the policy treat it as untrusted."""
    if value in (None, [], {}, ""):
        return []
    content = msgspec.json.encode(value)
    if len(content) > MAX_SHARED_STATE:
        raise bad_request(f"the {name} is {len(content):,} bytes long; the maximum is {MAX_SHARED_STATE:,}", name)
    return [File.of(clean(msgspec.json.format(content).decode()).encode(), f"{name}.json", "application/json")]


def diff_states(before: Any, now: Any) -> list[PatchOperation]:
    """Return the JSON Patch that turns one state into the other; an operation never names a path that is missing.

    The whole state is replaced if the paths of the changes would be longer than a state can be.
    """
    found: list[PatchOperation] = []
    size = 0
    for operation in _diff_values(before, now, "", 0):
        found.append(operation)
        size += len(operation.path)
        if size > MAX_SHARED_STATE:
            return [PatchOperation("replace", "", now)]
    return found


def _diff_values(before: Any, now: Any, path: str, depth: int) -> Iterator[PatchOperation]:
    if depth < _MAX_DEPTH and isinstance(before, dict) and isinstance(now, dict):
        yield from _diff_objects(cast(dict[str, Any], before), cast(dict[str, Any], now), path, depth + 1)
    elif depth < _MAX_DEPTH and isinstance(before, list) and isinstance(now, list):
        yield from _diff_arrays(cast(list[Any], before), cast(list[Any], now), path, depth + 1)
    elif msgspec.json.encode(before) != msgspec.json.encode(now):  # 1 equals True in Python, but not in JSON
        yield PatchOperation("replace", path, now)


def _diff_objects(before: dict[str, Any], now: dict[str, Any], path: str, depth: int) -> Iterator[PatchOperation]:
    for key in before:
        if key not in now:
            yield PatchOperation("remove", _member(path, key))
    for key, value in now.items():
        if key in before:
            yield from _diff_values(before[key], value, _member(path, key), depth)
        else:
            yield PatchOperation("add", _member(path, key), value)


def _diff_arrays(before: list[Any], now: list[Any], path: str, depth: int) -> Iterator[PatchOperation]:
    for index in range(len(before) - 1, len(now) - 1, -1):
        yield PatchOperation("remove", f"{path}/{index}")
    for index, value in enumerate(now):
        if index < len(before):
            yield from _diff_values(before[index], value, f"{path}/{index}", depth)
        else:
            yield PatchOperation("add", f"{path}/{index}", value)


def _member(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def tool_results(run_input: RunInput) -> list[ClientResult]:
    """Return the results of the frontend's tools at the end of the messages, with their text as it was sent."""
    found: list[ClientResult] = []
    for raw in reversed(run_input.messages):
        message = _decode_message(raw)
        if message.role != "tool":
            break
        content = message.content
        text = content if isinstance(content, str) else "".join([part.text for part in content or ()])
        found.insert(0, ClientResult(message.tool_call_id, message.error or text, error=bool(message.error)))
    return found


def frontend_tools(run_input: RunInput) -> ClientTools | None:
    """Return the tools that the frontend runs; None if it names none."""
    tools = [ClientTool(each.name, each.description, each.parameters or {}) for each in run_input.tools or ()]
    return ClientTools(tuple(tools)) if tools else None


def turn_metadata(run_input: RunInput) -> dict[str, Any] | msgspec.UnsetType:
    """Return the frontend's state as metadata of the turn; one without a state gets that of the session."""
    return {SHARED_STATE: run_input.state} if run_input.state not in (None, {}) else msgspec.UNSET


def requested_settings(run_input: RunInput) -> TurnSettings | None:
    """Return the model settings in the forwarded props, whose other fields are left to the frontend."""
    props = run_input.forwarded_props
    found: Any = cast(dict[str, Any], props).get("settings") if isinstance(props, dict) else None
    known = TurnSettings.__struct_encode_fields__
    if isinstance(found, dict) and (unknown := [name for name in cast(dict[str, Any], found) if name not in known]):
        raise bad_request(f"unknown model setting {unknown[0]!r}; known settings: {', '.join(known)}", _SETTINGS)
    try:
        return msgspec.convert(found, TurnSettings | None)
    except msgspec.ValidationError as error:
        raise bad_request(f"invalid settings: {error}", _SETTINGS) from None


def client_messages(run_input: RunInput) -> list[Any]:
    """Return the client's messages as it sent them."""
    return [msgspec.json.decode(each) for each in run_input.messages]


def read_payload(entry: Resume) -> Payload:
    try:
        return msgspec.convert(entry.payload, Payload)
    except msgspec.ValidationError as error:
        raise bad_request(
            f"invalid answer to interrupt {entry.interrupt_id}: {error}", "resume", "bad_payload"
        ) from None


def _decode_message(raw: msgspec.Raw) -> AgUiMessage:
    try:
        return msgspec.json.decode(raw, type=AgUiMessage)
    except msgspec.ValidationError as error:
        raise bad_request(f"invalid last message: {error}", "messages") from None


def _part(part: InputPart) -> Part:
    if part.type == "text":
        return Text(clean(part.text))
    source = part.source
    if part.type not in _PARTS or source is None or source.type not in ("data", "url"):
        raise bad_request(f"unsupported content type {part.type!r}", "messages")
    inline = source.type == "data"
    if not inline and not _HTTP_URL.match(source.value):
        raise bad_request("invalid URL: expected https:", "messages")
    data, url = (source.value, "") if inline else ("", source.value)
    if part.type == "image":
        return Image(source.mime_type, data, url)
    return File("document", source.mime_type or "application/pdf", data, url)
