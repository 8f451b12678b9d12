"""Events of a turn: one union with a fixed order, shared by every interface.

message:sent, stream:start, then stream:chunk, stream:thinking, stream:reset, tool:called, tool:progress and
tool:result as they happen, then stream:end, and finally message:received or error. With a store, or while approvals
are pending, approval:asked, approval:answered and message:kept occur in between, and tool:pending when the turn waits
for tools that its client runs; a planning agent adds plan:updated, a handoff to another agent run:handoff, and a
summary of older messages session:compacted.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from atlas_agents.core.approvals import Decision, Question
from atlas_agents.core.errors import ErrorKind
from atlas_agents.core.messages import Message, Status

StepStatus: TypeAlias = Literal["pending", "running", "done", "failed", "changed", "dropped"]
EventName: TypeAlias = Literal[
    "message:sent",
    "message:steered",
    "stream:start",
    "stream:chunk",
    "stream:thinking",
    "stream:reset",
    "tool:called",
    "approval:asked",
    "approval:answered",
    "tool:pending",
    "plan:updated",
    "run:handoff",
    "session:compacted",
    "tool:progress",
    "tool:result",
    "message:kept",
    "stream:end",
    "message:received",
    "error",
]
"""Names of events, for `atlas.on`."""


class FailedAttempt(msgspec.Struct, frozen=True, array_like=True):
    """A failed request to a model, which was then sent again to the same model or to another one.

    `kind` is the error's kind, or `refusal` if the model refused to answer. `retry_after` is the wait in seconds that
    the vendor asked for.
    """

    model: str
    kind: str
    message: str
    milliseconds: int = 0
    retry_after: float | None = None

    def __str__(self) -> str:
        return f"{self.model}: {self.kind} after {self.milliseconds / 1000:.1f} s: {self.message}"


class Usage(msgspec.Struct, frozen=True):
    """Token usage: input tokens (with cache reads and cache writes, also those kept for an hour) and output tokens,
    which include reasoning tokens.

    `estimated` if the vendor sent no figures and they were derived from the text's length. `cost` is in US dollars, and
    `saved` the amount that the vendor's cache saved; both are None if the model's price is unknown.

    Attributes:
        input_tokens: Tokens of the request.
        output_tokens: Tokens of the reply, including those of reasoning.
        cached_tokens: Input tokens that were read from the vendor's cache.
        estimated: Whether the vendor sent no figures and they were derived from the length of the text.
        cost: US dollars; None if the price is unknown.
        cache_write_tokens: Input tokens that were written to the cache.
        reasoning_tokens: Output tokens of reasoning.
        cache_write_1h_tokens: Those written to the cache that it keeps for an hour.
        saved: US dollars that the cache saved; None if the price is unknown.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    estimated: bool = False
    cost: float | None = None
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_1h_tokens: int = 0
    saved: float | None = None

    def __add__(self, other: "Usage") -> "Usage":
        cost, saved = self.cost, self.saved  # an amount that is not known counts as nothing
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.estimated or other.estimated,
            other.cost if cost is None else cost if other.cost is None else cost + other.cost,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cache_write_1h_tokens + other.cache_write_1h_tokens,
            other.saved if saved is None else saved if other.saved is None else saved + other.saved,
        )

    def to_metadata(self) -> dict[str, Any]:
        """Internal: encode the usage as metadata of a message or of a journal step."""
        counts = {"input": self.input_tokens, "output": self.output_tokens, "cached": self.cached_tokens}
        if self.cache_write_tokens:
            counts["cache_write"] = self.cache_write_tokens
        if self.cache_write_1h_tokens:
            counts["cache_write_1h"] = self.cache_write_1h_tokens
        if self.reasoning_tokens:
            counts["reasoning"] = self.reasoning_tokens
        found: dict[str, Any] = {"usage": counts}
        if self.cost is not None:
            found["cost"] = round(self.cost, 8)
        if self.saved is not None:
            found["saved"] = round(self.saved, 8)
        if self.estimated:
            found["estimated"] = True
        return found

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> "Usage":
        """Internal: decode the usage recorded in metadata; empty usage if there is none."""
        counts: Mapping[str, int] = metadata.get("usage") or {}
        return cls(
            counts.get("input", 0),
            counts.get("output", 0),
            counts.get("cached", 0),
            bool(metadata.get("estimated")),
            metadata.get("cost"),
            counts.get("cache_write", 0),
            counts.get("reasoning", 0),
            counts.get("cache_write_1h", 0),
            metadata.get("saved"),
        )


NO_USAGE = Usage()


class MessageSent(msgspec.Struct, frozen=True, tag="message:sent", tag_field="type"):
    """The user's message was added to the conversation.

    Attributes:
        stream_id: Id of the turn.
        message: The message as it was added, changed by interceptors.
    """

    stream_id: str
    message: Message
    type: ClassVar[Literal["message:sent"]] = "message:sent"


class MessageSteered(msgspec.Struct, frozen=True, tag="message:steered", tag_field="type"):
    """The message entered the running turn `run_id`, which answers it. The events of that turn follow.

    Attributes:
        stream_id: Id under which the message was sent.
        run_id: Id of the running turn that it entered.
    """

    stream_id: str
    run_id: str
    type: ClassVar[Literal["message:steered"]] = "message:steered"


class StreamStart(msgspec.Struct, frozen=True, tag="stream:start", tag_field="type"):
    """The turn started.

    Attributes:
        stream_id: Id of the turn.
        agent_id: Id of the agent.
    """

    stream_id: str
    agent_id: str
    type: ClassVar[Literal["stream:start"]] = "stream:start"


class StreamChunk(msgspec.Struct, frozen=True, gc=False, tag="stream:chunk", tag_field="type"):
    """A piece of the answer's text.

    Attributes:
        stream_id: Id of the turn.
        text: The new piece of text.
    """

    stream_id: str
    text: str
    type: ClassVar[Literal["stream:chunk"]] = "stream:chunk"


class StreamThinking(msgspec.Struct, frozen=True, gc=False, tag="stream:thinking", tag_field="type"):
    """A piece of the model's reasoning.

    Attributes:
        stream_id: Id of the turn.
        text: The new piece of text.
    """

    stream_id: str
    text: str
    type: ClassVar[Literal["stream:thinking"]] = "stream:thinking"


class StreamReset(msgspec.Struct, frozen=True, gc=False, tag="stream:reset", tag_field="type"):
    """The chunks of the current message are withdrawn; it starts again.

    Attributes:
        stream_id: Id of the turn.
        attempt: Number of the attempt that follows.
    """

    stream_id: str
    attempt: int
    type: ClassVar[Literal["stream:reset"]] = "stream:reset"


class ToolCalled(msgspec.Struct, frozen=True, tag="tool:called", tag_field="type"):
    """The model requested a tool call.

    Attributes:
        stream_id: Id of the turn.
        name: Name of the tool.
        arguments: Arguments of the call.
        call_id: Id of the call.
    """

    stream_id: str
    name: str
    arguments: dict[str, Any]
    call_id: str
    type: ClassVar[Literal["tool:called"]] = "tool:called"


class ApprovalAsked(msgspec.Struct, frozen=True, tag="approval:asked", tag_field="type"):
    """A tool call is waiting for approval.

    Attributes:
        stream_id: Id of the turn.
        question: The tool, its arguments and the deadline. Answer with `atlas.answer(question.id, …)`.
    """

    stream_id: str
    question: Question
    type: ClassVar[Literal["approval:asked"]] = "approval:asked"


class ApprovalAnswered(msgspec.Struct, frozen=True, tag="approval:answered", tag_field="type"):
    """An approval was answered, or timed out, which counts as declined.

    Attributes:
        stream_id: Id of the turn.
        approval_id: Id of the question.
        decision: What was decided.
        by: Name of the person; empty if the question timed out.
    """

    stream_id: str
    approval_id: str
    decision: Decision
    by: str = ""
    type: ClassVar[Literal["approval:answered"]] = "approval:answered"


class ClientToolsCalled(msgspec.Struct, frozen=True, tag="tool:pending", tag_field="type"):
    """The turn waits for tools that its client runs. One event lists all waiting calls of the reply.

    Attributes:
        stream_id: Id of the turn.
        calls: The calls in the model's order. Post their results with `atlas.post_results(…)`, by their `id`.
    """

    stream_id: str
    calls: tuple[Question, ...]
    type: ClassVar[Literal["tool:pending"]] = "tool:pending"


class MessageStored(msgspec.Struct, frozen=True, tag="message:kept", tag_field="type"):
    """A message of this turn was stored; emitted only with a store.

    Attributes:
        stream_id: Id of the turn.
        message: The message as it was stored.
    """

    stream_id: str
    message: Message
    type: ClassVar[Literal["message:kept"]] = "message:kept"


class HandedOff(msgspec.Struct, frozen=True, tag="run:handoff", tag_field="type"):
    """Handoff: another agent continues the turn.

    Attributes:
        stream_id: Id of the turn.
        from_agent: Id of the agent that had the turn.
        to_agent: Id of the agent that continues it.
    """

    stream_id: str
    from_agent: str
    to_agent: str
    type: ClassVar[Literal["run:handoff"]] = "run:handoff"


class SessionCompacted(msgspec.Struct, frozen=True, tag="session:compacted", tag_field="type"):
    """Compaction: a summary replaces older messages in requests to the model. They stay in the conversation.

    Attributes:
        stream_id: Id of the turn.
        summary: Message with the summary.
        tokens_after: Estimated tokens of the conversation after it.
    """

    stream_id: str
    summary: Message
    messages: int
    """Number of messages that the summary replaces."""
    tokens_before: int
    """Estimated tokens of the conversation before and after."""
    tokens_after: int
    type: ClassVar[Literal["session:compacted"]] = "session:compacted"


class PlanStep(msgspec.Struct, frozen=True):
    """A step of a plan. `changed` marks a step that was running when the plan was revised.

    Attributes:
        text: What the step does.
        status: `pending`, `running`, `done`, `failed`, `changed` or `dropped`.
    """

    text: str
    status: StepStatus = "pending"


class PlanUpdated(msgspec.Struct, frozen=True, tag="plan:updated", tag_field="type"):
    """The current plan of the turn and its progress.

    Attributes:
        stream_id: Id of the turn.
        steps: All steps of the plan, with their progress.
    """

    stream_id: str
    steps: tuple[PlanStep, ...]
    type: ClassVar[Literal["plan:updated"]] = "plan:updated"


class StateChanged(msgspec.Struct, frozen=True, tag="state:changed", tag_field="type"):
    """A tool changed the state that the session shares with its frontend; the change is stored.

    Attributes:
        stream_id: Id of the turn.
        state: The whole new state; None if it was deleted.
    """

    stream_id: str
    state: Any
    type: ClassVar[Literal["state:changed"]] = "state:changed"


class ToolProgress(msgspec.Struct, frozen=True, tag="tool:progress", tag_field="type"):
    """Progress reported by a running tool.

    Attributes:
        stream_id: Id of the turn.
        name: Name of the tool.
        call_id: Id of the call.
        message: The tool's progress message.
    """

    stream_id: str
    name: str
    call_id: str
    message: str
    type: ClassVar[Literal["tool:progress"]] = "tool:progress"


class ToolAnswered(msgspec.Struct, frozen=True, tag="tool:result", tag_field="type"):
    """A tool call has its result. The duration is in milliseconds and excludes the wait for an approval.

    Attributes:
        stream_id: Id of the turn.
        name: Name of the tool.
        arguments: Arguments of the call.
        call_id: Id of the call.
        status: `ok`, `error`, or `unknown` if the call may have taken effect.
        error: Kind of fault; None if there was none.
        result: The result as the model reads it.
        duration_ms: How long it ran, in milliseconds.
    """

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
    """The turn ended. `error` holds the reason if it failed.

    Attributes:
        stream_id: Id of the turn.
        usage: Tokens and cost of the turn.
        cancelled: Whether it was cancelled.
        error: Why it failed; None if it did not.
    """

    stream_id: str
    usage: Usage
    cancelled: bool = False
    error: str | None = None
    type: ClassVar[Literal["stream:end"]] = "stream:end"


class MessageReceived(msgspec.Struct, frozen=True, tag="message:received", tag_field="type"):
    """The answer was added to the conversation.

    Attributes:
        stream_id: Id of the turn.
        message: The answer.
    """

    stream_id: str
    message: Message
    type: ClassVar[Literal["message:received"]] = "message:received"


class ErrorRaised(msgspec.Struct, frozen=True, tag="error", tag_field="type"):
    """The turn failed. `kind` is the exception's class name, or a provider error's own kind.

    Attributes:
        stream_id: Id of the turn.
        message: What went wrong, without secrets.
        kind: Name of the exception's class, or the kind of a provider error.
    """

    stream_id: str
    message: str
    kind: str
    type: ClassVar[Literal["error"]] = "error"


Event: TypeAlias = (
    MessageSent
    | MessageSteered
    | StreamStart
    | StreamChunk
    | StreamThinking
    | StreamReset
    | ToolCalled
    | ApprovalAsked
    | ApprovalAnswered
    | ClientToolsCalled
    | PlanUpdated
    | StateChanged
    | HandedOff
    | SessionCompacted
    | ToolProgress
    | ToolAnswered
    | MessageStored
    | StreamEnd
    | MessageReceived
    | ErrorRaised
)
"""All events of a turn; `event.type` tells the classes apart."""
