"""AG-UI's events, as far as a turn of ours has something to say."""

from typing import Any, Literal

import msgspec

VERSION = "1.0"
"""Of the protocol."""


class Shape(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What goes over the wire; a field with a default is left out when it has that value."""


class AgUiEvent(Shape, frozen=True, tag_field="type"):
    """One of them; `type` tells which."""


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
    """All messages of the page as they are now: what it has and this has not was taken back."""

    messages: tuple[Any, ...]


class Custom(AgUiEvent, frozen=True, tag="CUSTOM"):
    """Something of ours that the protocol has no word for."""

    name: str
    value: Any


class TokenUsage(Shape, frozen=True):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    cached_input_tokens: int
    model: str = ""


class Interrupt(Shape, frozen=True):
    """A question to a person. The answer comes with the next run."""

    id: str
    reason: str
    message: str
    tool_call_id: str
    response_schema: dict[str, Any]
    expires_at: str
    metadata: dict[str, Any]


class Outcome(Shape, frozen=True):
    type: Literal["success", "interrupt", "cancelled"]
    interrupts: tuple[Interrupt, ...] = ()


class RunFinished(AgUiEvent, frozen=True, tag="RUN_FINISHED"):
    thread_id: str
    run_id: str
    outcome: Outcome
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
    """A message as a snapshot holds it."""

    id: str
    role: str
    content: str = ""
    tool_calls: tuple[CallShape, ...] = ()


class ToolShape(Shape, frozen=True):
    """A result as a snapshot holds it."""

    id: str
    role: str
    content: str
    tool_call_id: str
