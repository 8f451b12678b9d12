"""What the server says unasked. Every event of a run has its `runId`; the full profile adds `sessionKey` and `seq`."""

from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, cast

import msgspec

from atlas_agents.core.text import clean
from atlas_agents.gateway.protocol.admin import AuditShape
from atlas_agents.gateway.protocol.jobs import JobShape
from atlas_agents.gateway.protocol.types import (
    Decision,
    FormShape,
    MessageShape,
    PlanStepShape,
    SessionShape,
    UsageShape,
    WireStruct,
)

E = TypeVar("E")


class ChatStarted(WireStruct, frozen=True):
    """A turn begins; `model` is the one that will speak, `notice` says why it is another than the agent names."""

    event: ClassVar[str] = "chat.started"
    run_id: str
    agent_id: str
    model: str
    notice: str = ""


class ChatDelta(WireStruct, frozen=True, gc=False):
    """A few more words of the answer."""

    event: ClassVar[str] = "chat.delta"
    run_id: str
    text: str


class ChatReasoning(WireStruct, frozen=True, gc=False):
    """A few more words of the model's reasoning."""

    event: ClassVar[str] = "chat.reasoning"
    run_id: str
    text: str


class ChatReset(WireStruct, frozen=True, gc=False):
    """The words of the message under way are withdrawn: drop them."""

    event: ClassVar[str] = "chat.reset"
    run_id: str
    attempt: int


class ToolCalling(WireStruct, frozen=True):
    """The model has asked for a tool."""

    event: ClassVar[str] = "tool.call"
    run_id: str
    tool_call_id: str
    name: str
    arguments: dict[str, Any]


class ToolProgressing(WireStruct, frozen=True):
    """A tool says how far it is."""

    event: ClassVar[str] = "tool.progress"
    run_id: str
    tool_call_id: str
    message: str


class PlanChanged(WireStruct, frozen=True):
    """The plan of a turn as it now stands; each takes the place of the one before."""

    event: ClassVar[str] = "plan.updated"
    run_id: str
    steps: tuple[PlanStepShape, ...]


class RunHandoff(WireStruct, frozen=True):
    """From here on another agent speaks in this turn."""

    event: ClassVar[str] = "run.handoff"
    run_id: str
    from_: str = msgspec.field(name="from")
    to: str


class ToolSettled(WireStruct, frozen=True):
    """A call has its result."""

    event: ClassVar[str] = "tool.result"
    run_id: str
    tool_call_id: str
    name: str
    status: Literal["ok", "error", "unknown"]
    result: Any
    duration_ms: int
    error: str | None = None


class ApprovalRequested(WireStruct, frozen=True):
    """A person is asked, about exactly these arguments; with a `form`, for values that a tool at work wants."""

    event: ClassVar[str] = "exec.approval_request"
    run_id: str
    approval_id: str
    tool_call_id: str
    tool_name: str
    summary: str
    details: dict[str, Any]
    command: str
    working_dir: str
    risk: str
    options: tuple[Decision, ...]
    expires_at: int
    preview: str = ""
    form: FormShape | None = None


class ApprovalResolved(WireStruct, frozen=True):
    """A question has its answer."""

    event: ClassVar[str] = "approval.resolved"
    run_id: str
    approval_id: str
    decision: Decision
    by: str


class ChatMessage(WireStruct, frozen=True):
    """A message has joined the conversation and is kept."""

    event: ClassVar[str] = "chat.message"
    run_id: str
    message: MessageShape


class ChatFinal(WireStruct, frozen=True):
    """The turn is over, by itself or because it was stopped."""

    event: ClassVar[str] = "chat.final"
    run_id: str
    usage: UsageShape
    message: MessageShape | None = None
    cancelled: bool = False


class ChatError(WireStruct, frozen=True):
    """The turn failed."""

    event: ClassVar[str] = "chat.error"
    run_id: str
    message: str
    kind: str


RunEvent: TypeAlias = (
    ChatStarted
    | ChatDelta
    | ChatReasoning
    | ChatReset
    | ToolCalling
    | ToolProgressing
    | PlanChanged
    | RunHandoff
    | ToolSettled
    | ApprovalRequested
    | ApprovalResolved
    | ChatMessage
    | ChatFinal
    | ChatError
)


class SessionUpdated(WireStruct, frozen=True):
    """A session was made, changed or removed; for those who hear it, or have asked for the list."""

    event: ClassVar[str] = "session.updated"
    session: SessionShape
    deleted: bool = False


class AuditAdded(WireStruct, frozen=True):
    """The audit log has a new line; for those who asked to hear."""

    event: ClassVar[str] = "audit.entry"
    entry: AuditShape


class ApprovalsUpdated(WireStruct, frozen=True):
    """A question was put or answered in a session: `approvals.list` has those that are open now."""

    event: ClassVar[str] = "approvals.updated"
    session_key: str


class JobUpdated(WireStruct, frozen=True):
    """A job is new, begun, put back or over; for those who have asked for the list."""

    event: ClassVar[str] = "job.updated"
    job: JobShape


class ServerShutdown(WireStruct, frozen=True):
    """The server stops; with a figure, it expects to be back."""

    event: ClassVar[str] = "server.shutdown"
    restart_expected_ms: int | None = None


class KnowledgeProgress(WireStruct, frozen=True):
    """Documents are being read, for who asked for it: so many of all are done, `current` is the one at hand."""

    event: ClassVar[str] = "knowledge.progress"
    source: str
    done: int
    total: int
    passages: int
    current: str = ""


HouseEvent: TypeAlias = SessionUpdated | AuditAdded | ApprovalsUpdated | KnowledgeProgress | JobUpdated | ServerShutdown
RUN_EVENTS: dict[str, type[RunEvent]] = {
    kind.event: kind
    for kind in (
        ChatStarted,
        ChatDelta,
        ChatReasoning,
        ChatReset,
        ToolCalling,
        ToolProgressing,
        PlanChanged,
        RunHandoff,
        ToolSettled,
        ApprovalRequested,
        ApprovalResolved,
        ChatMessage,
        ChatFinal,
        ChatError,
    )
}
HOUSE_EVENTS: dict[str, type[HouseEvent]] = {
    kind.event: kind
    for kind in (SessionUpdated, AuditAdded, ApprovalsUpdated, KnowledgeProgress, JobUpdated, ServerShutdown)
}
LAST_WORDS = frozenset(("chat.final", "chat.error"))
"""Every run ends with exactly one of these."""
PLAIN: dict[str, tuple[str, ...]] = {
    "chat.delta": ("runId", "text"),
    "chat.reset": ("runId", "attempt"),
    "chat.final": ("runId", "usage", "cancelled"),
    "chat.error": ("runId", "message", "kind"),
    "exec.approval_request": ("approvalId", "command", "workingDir"),
}
"""All that a plain client hears, and the keys it sees."""
_PLAIN_USAGE = ("inputTokens", "outputTokens")
_encoder = msgspec.json.Encoder()
_HEAD = {name: b'{"event":' + _encoder.encode(name) + b',"data":' for name in (*RUN_EVENTS, *HOUSE_EVENTS)}


class _Stored(msgspec.Struct, Generic[E], frozen=True):
    """A run's event as it is stored."""

    data: E


_READERS: dict[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(_Stored[kind]) for name, kind in RUN_EVENTS.items()
}


def body_of(event: RunEvent | HouseEvent) -> bytes:
    """The event as a frame of its own; of a run's, as it is stored: without session and number."""
    try:
        data = _encoder.encode(event)
    except (UnicodeEncodeError, TypeError, OverflowError):
        data = _encoder.encode(_writable(msgspec.to_builtins(event, enc_hook=repr)))
    return _HEAD[event.event] + data + b"}"


def _writable(value: Any) -> Any:
    """The same data with half characters replaced: a model or a tool may say anything, and it must be told."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): _writable(item) for key, item in cast(dict[Any, Any], value).items()}
    return [_writable(item) for item in cast(list[Any], value)] if isinstance(value, list | tuple) else value


def full(body: bytes, session_key: bytes, seq: int) -> bytes:
    """A run's event as the full profile sees it; `session_key` is JSON already."""
    return b'%b,"sessionKey":%b,"seq":%d}}' % (body[:-2], session_key, seq)


def name_of(body: bytes) -> str:
    """The event's name, read off its frame."""
    return body[10 : body.index(b'"', 10)].decode()


def event_of(body: bytes) -> RunEvent | None:
    """A run's event, read back as it was stored; None for what another version wrote, and this one cannot read."""
    try:
        return _READERS[name_of(body)].decode(body).data
    except (KeyError, msgspec.MsgspecError):
        return None


def plain(name: str, body: bytes) -> bytes | None:
    """A run's event as the plain profile sees it, with exactly its keys; None where it has no word for it."""
    if name == "chat.delta":
        return body
    keys = PLAIN.get(name)
    if keys is None:
        return None
    data: dict[str, Any] = msgspec.json.decode(body)["data"]
    kept = {key: data[key] for key in keys if key in data}
    if "usage" in kept:
        kept["usage"] = {key: kept["usage"][key] for key in _PLAIN_USAGE}
    return _HEAD[name] + _encoder.encode(kept) + b"}"
