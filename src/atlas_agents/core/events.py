"""What a turn says while it runs: one union, one order; every face listens to the same words.

message:sent, stream:start, then stream:chunk, stream:thinking, stream:reset, tool:called, tool:progress and
tool:result as they happen, then stream:end, and last message:received or error. Where turns are kept in a store, or
questions wait for an answer, approval:asked, approval:answered and message:kept stand among them, and where a turn is
taken by a plan, plan:updated; where it changes hands, run:handoff.
"""

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from atlas_agents.core.approvals import Decision, Question
from atlas_agents.core.errors import ErrorKind
from atlas_agents.core.messages import Message, Status


class Usage(msgspec.Struct, frozen=True):
    """Tokens: all that went in, those of them that a cache had, all that came out.

    `estimated` when the vendor did not say and we counted characters; `cost` in dollars, None where the price of the
    model is not known.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    cost: float | None = None

    def __add__(self, other: "Usage") -> "Usage":
        costs = [cost for cost in (self.cost, other.cost) if cost is not None]
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.estimated or other.estimated,
            sum(costs) if costs else None,
        )


class MessageSent(msgspec.Struct, frozen=True, tag="message:sent", tag_field="type"):
    """The user's message has joined the conversation."""

    stream_id: str
    message: Message
    type: ClassVar[Literal["message:sent"]] = "message:sent"


class StreamStart(msgspec.Struct, frozen=True, tag="stream:start", tag_field="type"):
    """The turn begins."""

    stream_id: str
    agent_id: str
    type: ClassVar[Literal["stream:start"]] = "stream:start"


class StreamChunk(msgspec.Struct, frozen=True, gc=False, tag="stream:chunk", tag_field="type"):
    """A few more words of the answer."""

    stream_id: str
    text: str
    type: ClassVar[Literal["stream:chunk"]] = "stream:chunk"


class StreamThinking(msgspec.Struct, frozen=True, gc=False, tag="stream:thinking", tag_field="type"):
    """A few more words of the model's reasoning."""

    stream_id: str
    text: str
    type: ClassVar[Literal["stream:thinking"]] = "stream:thinking"


class StreamReset(msgspec.Struct, frozen=True, gc=False, tag="stream:reset", tag_field="type"):
    """The chunks of the message under way are withdrawn; it starts again."""

    stream_id: str
    attempt: int
    type: ClassVar[Literal["stream:reset"]] = "stream:reset"


class ToolCalled(msgspec.Struct, frozen=True, tag="tool:called", tag_field="type"):
    """The model has asked for a tool."""

    stream_id: str
    name: str
    arguments: dict[str, Any]
    call_id: str
    type: ClassVar[Literal["tool:called"]] = "tool:called"


class ApprovalAsked(msgspec.Struct, frozen=True, tag="approval:asked", tag_field="type"):
    """A call waits for a person's yes."""

    stream_id: str
    question: Question
    type: ClassVar[Literal["approval:asked"]] = "approval:asked"


class ApprovalAnswered(msgspec.Struct, frozen=True, tag="approval:answered", tag_field="type"):
    """A question has its answer, or none came in time, which is a no."""

    stream_id: str
    approval_id: str
    decision: Decision
    by: str = ""
    type: ClassVar[Literal["approval:answered"]] = "approval:answered"


class MessageKept(msgspec.Struct, frozen=True, tag="message:kept", tag_field="type"):
    """A message of this turn is in the store; told where there is one."""

    stream_id: str
    message: Message
    type: ClassVar[Literal["message:kept"]] = "message:kept"


class HandedOver(msgspec.Struct, frozen=True, tag="run:handoff", tag_field="type"):
    """From here on another agent speaks in this turn."""

    stream_id: str
    from_agent: str
    to_agent: str
    type: ClassVar[Literal["run:handoff"]] = "run:handoff"


StepStatus: TypeAlias = Literal["pending", "running", "done", "failed", "changed", "dropped"]


class PlanStep(msgspec.Struct, frozen=True):
    """A step of a plan. `changed` is one that was under way when the plan was made anew."""

    text: str
    status: StepStatus = "pending"


class PlanUpdated(msgspec.Struct, frozen=True, tag="plan:updated", tag_field="type"):
    """The plan of this turn as it now stands, and how far it is."""

    stream_id: str
    steps: tuple[PlanStep, ...]
    type: ClassVar[Literal["plan:updated"]] = "plan:updated"


class ToolProgress(msgspec.Struct, frozen=True, tag="tool:progress", tag_field="type"):
    """A tool says how far it is."""

    stream_id: str
    name: str
    call_id: str
    message: str
    type: ClassVar[Literal["tool:progress"]] = "tool:progress"


class ToolAnswered(msgspec.Struct, frozen=True, tag="tool:result", tag_field="type"):
    """A call has its result, whatever it is; it took so many milliseconds, the wait for a person apart."""

    stream_id: str
    name: str
    arguments: dict[str, Any]
    call_id: str
    status: Status
    error: ErrorKind | None
    result: Any
    duration_ms: int = 0
    type: ClassVar[Literal["tool:result"]] = "tool:result"


class StreamEnd(msgspec.Struct, frozen=True, tag="stream:end", tag_field="type"):
    """The turn is over. `error` says why when it failed."""

    stream_id: str
    usage: Usage
    cancelled: bool = False
    error: str | None = None
    type: ClassVar[Literal["stream:end"]] = "stream:end"


class MessageReceived(msgspec.Struct, frozen=True, tag="message:received", tag_field="type"):
    """The answer has joined the conversation."""

    stream_id: str
    message: Message
    type: ClassVar[Literal["message:received"]] = "message:received"


class ErrorRaised(msgspec.Struct, frozen=True, tag="error", tag_field="type"):
    """The turn failed. `kind` is the class of the error, or a provider error's own kind."""

    stream_id: str
    message: str
    kind: str
    type: ClassVar[Literal["error"]] = "error"


Event: TypeAlias = (
    MessageSent
    | StreamStart
    | StreamChunk
    | StreamThinking
    | StreamReset
    | ToolCalled
    | ApprovalAsked
    | ApprovalAnswered
    | PlanUpdated
    | HandedOver
    | ToolProgress
    | ToolAnswered
    | MessageKept
    | StreamEnd
    | MessageReceived
    | ErrorRaised
)

EventName: TypeAlias = Literal[
    "message:sent",
    "stream:start",
    "stream:chunk",
    "stream:thinking",
    "stream:reset",
    "tool:called",
    "approval:asked",
    "approval:answered",
    "plan:updated",
    "run:handoff",
    "tool:progress",
    "tool:result",
    "message:kept",
    "stream:end",
    "message:received",
    "error",
]
