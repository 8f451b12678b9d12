"""Events sent by the server. Events of a run carry `runId`; the full profile adds `sessionKey` and `seq`."""

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, cast, get_args

import msgspec

from atlas_agents.core.text import clean
from atlas_agents.gateway.protocol import types
from atlas_agents.gateway.protocol.jobs import JobShape

E = TypeVar("E")
TERMINAL_EVENTS = frozenset(("chat.final", "chat.error"))
"""Terminal events: every run ends with exactly one of these."""
PLAIN: dict[str, tuple[str, ...]] = {
    "chat.delta": ("runId", "text"),
    "chat.reset": ("runId", "attempt"),
    "chat.final": ("runId", "usage", "cancelled"),
    "chat.error": ("runId", "message", "kind"),
    "exec.approval_request": ("approvalId", "command", "workingDir"),
}
"""The events of the plain profile, with the keys it includes."""
_PLAIN_USAGE = ("inputTokens", "outputTokens")
_encoder = msgspec.json.Encoder()


class ChatStarted(types.WireStruct, frozen=True):
    """A turn starts. `model` is the model that answers; `notice` says how the agent differs from its definition."""

    event: ClassVar[str] = "chat.started"
    run_id: str
    agent_id: str
    model: str
    notice: str = ""


class ChatDelta(types.WireStruct, frozen=True, gc=False):
    """The next part of the answer's text."""

    event: ClassVar[str] = "chat.delta"
    run_id: str
    """Id of the turn."""
    text: str
    """The text that is new."""


class ChatReasoning(types.WireStruct, frozen=True, gc=False):
    """The next part of the model's reasoning."""

    event: ClassVar[str] = "chat.reasoning"
    run_id: str
    text: str


class ChatReset(types.WireStruct, frozen=True, gc=False):
    """The current message is withdrawn: discard its text. Complete messages of the run stay, with the text `kept`."""

    event: ClassVar[str] = "chat.reset"
    run_id: str
    attempt: int
    kept: str = ""


class ToolCalling(types.WireStruct, frozen=True):
    """The model calls a tool."""

    event: ClassVar[str] = "tool.call"
    run_id: str
    tool_call_id: str
    name: str
    arguments: dict[str, Any]


class ToolProgressing(types.WireStruct, frozen=True):
    """A running tool reports progress."""

    event: ClassVar[str] = "tool.progress"
    run_id: str
    tool_call_id: str
    message: str


class PlanChanged(types.WireStruct, frozen=True):
    """The current plan of the turn; replaces the previous one."""

    event: ClassVar[str] = "plan.updated"
    run_id: str
    steps: tuple[types.PlanStepShape, ...]


class StateUpdated(types.WireStruct, frozen=True):
    """A tool changed the state that the session shares with its frontend; `state` is the whole new state."""

    event: ClassVar[str] = "state.updated"
    run_id: str
    state: Any


class RunHandoff(types.WireStruct, frozen=True):
    """The turn is handed off to another agent."""

    event: ClassVar[str] = "run.handoff"
    run_id: str
    from_: str = msgspec.field(name="from")
    to: str


class SessionSummarized(types.WireStruct, frozen=True):
    """Older messages are summarised for the model and stay in the session. `message` is the summary."""

    event: ClassVar[str] = "session.compacted"
    run_id: str
    message: types.MessageShape
    messages: int
    tokens_before: int
    tokens_after: int


class ToolSettled(types.WireStruct, frozen=True):
    """A tool call has a result."""

    event: ClassVar[str] = "tool.result"
    run_id: str
    """Id of the turn."""
    tool_call_id: str
    """Id of the call."""
    name: str
    """Name of the tool."""
    status: Literal["ok", "error", "unknown"]
    """`unknown` if the call may have taken effect."""
    result: Any
    """The result as the model reads it."""
    duration_ms: int
    """How long it ran, in milliseconds."""
    error: str | None = None
    """Kind of fault; None if there was none."""


class ClientCallShape(types.WireStruct, frozen=True):
    """A tool call that the client of the turn runs."""

    id: str
    """Id under which the client posts the result."""
    tool_call_id: str
    """Id of the call in the messages of the session."""
    name: str
    """Name of the tool."""
    arguments: dict[str, Any]
    """Arguments of the call."""
    expires_at: int
    """When the call fails without a result, in milliseconds since 1970."""
    file: str = ""
    """Path of the file, for a tool of the gateway that the client runs in its place."""


class ToolsPending(types.WireStruct, frozen=True):
    """The turn waits for tools that its client runs."""

    event: ClassVar[str] = "tool.pending"
    run_id: str
    """Id of the turn."""
    calls: tuple[ClientCallShape, ...]
    """All calls of the reply that wait."""


class ApprovalRequested(types.WireStruct, frozen=True):
    """Approval is requested for exactly these arguments or, with a `form`, input for a running tool."""

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
    options: tuple[types.Decision, ...]
    expires_at: int
    preview: str = ""
    form: types.FormShape | None = None
    agent_id: str = ""
    kind: types.ApprovalKind = "tool"
    sandbox: str = ""
    rule: str = ""
    digest: str = ""


class ApprovalResolved(types.WireStruct, frozen=True):
    """An approval was resolved."""

    event: ClassVar[str] = "approval.resolved"
    run_id: str
    approval_id: str
    decision: types.Decision
    by: str


class ChatMessage(types.WireStruct, frozen=True):
    """A message was added to the conversation and stored."""

    event: ClassVar[str] = "chat.message"
    run_id: str
    message: types.MessageShape


class ChatFinal(types.WireStruct, frozen=True):
    """The turn is complete or was cancelled.

    With `enteredRunId`, the message of this run entered that run, which was running and answers it.
    """

    event: ClassVar[str] = "chat.final"
    run_id: str
    """Id of the turn."""
    usage: types.UsageShape
    """Tokens and cost of the turn."""
    message: types.MessageShape | None = None
    """The answer; None if there is none."""
    cancelled: bool = False
    """Whether the turn was cancelled."""
    entered_run_id: str | None = None
    """Id of the running turn that the message entered."""


class ChatError(types.WireStruct, frozen=True):
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
    | StateUpdated
    | RunHandoff
    | SessionSummarized
    | ToolSettled
    | ToolsPending
    | ApprovalRequested
    | ApprovalResolved
    | ChatMessage
    | ChatFinal
    | ChatError
)


class SessionUpdated(types.WireStruct, frozen=True):
    """A session was created, changed or deleted. Sent to its subscribers and to clients that listed sessions."""

    event: ClassVar[str] = "session.updated"
    session: types.SessionShape
    deleted: bool = False


class AuditAdded(types.WireStruct, frozen=True):
    """A new audit entry. Sent to clients that called `audit.subscribe`."""

    event: ClassVar[str] = "audit.entry"
    entry: types.AuditShape


class ApprovalsUpdated(types.WireStruct, frozen=True):
    """An approval was requested or resolved in a session; `approvals.list` returns the pending ones."""

    event: ClassVar[str] = "approvals.updated"
    session_key: str


class JobUpdated(types.WireStruct, frozen=True):
    """A job was created, started, requeued or finished. Sent to clients that listed jobs."""

    event: ClassVar[str] = "job.updated"
    job: JobShape


class ServerShutdown(types.WireStruct, frozen=True):
    """The server is shutting down; `restartExpectedMs` is set if it expects to restart."""

    event: ClassVar[str] = "server.shutdown"
    restart_expected_ms: int | None = None


class AuditProgress(types.WireStruct, frozen=True):
    """Progress of `audit.verify`, sent to the client that called it: rows that are verified, of `total`."""

    event: ClassVar[str] = "audit.progress"
    rows: int
    total: int


class KnowledgeProgress(types.WireStruct, frozen=True):
    """Progress of ingesting documents, sent to the client that started it. `current` is the document being read; of a
    longer one, `stored` of `pieces` passages are done. `source` is the id of the upload for an uploaded document."""

    event: ClassVar[str] = "knowledge.progress"
    source: str
    done: int
    total: int
    passages: int
    current: str = ""
    stored: int = 0
    pieces: int = 0


class ModelProgress(types.WireStruct, frozen=True):
    """Progress of a local model that is downloaded or loaded; `done` of `total` bytes are there."""

    event: ClassVar[str] = "model.progress"
    id: str
    state: Literal["downloading", "paused", "failed", "loading", "ready"]
    done: int
    total: int
    step: str = ""
    error: str = ""


class ResourceUpdated(types.WireStruct, frozen=True):
    """An editable resource has a new version, null if it was removed. Guests do not receive `by`."""

    event: ClassVar[str] = "resource.updated"
    kind: str
    id: str
    version: str | None
    by: str = ""


class AgentTrial(types.WireStruct, frozen=True):
    """The next part of a draft's answer, sent to the client that tries it. `reset` withdraws the text so far."""

    event: ClassVar[str] = "agents.trial"
    trial_id: str
    text: str
    reset: bool = False


ServerEvent: TypeAlias = (
    SessionUpdated
    | AuditAdded
    | AuditProgress
    | ApprovalsUpdated
    | KnowledgeProgress
    | ModelProgress
    | JobUpdated
    | ResourceUpdated
    | AgentTrial
    | ServerShutdown
)
RUN_EVENTS: dict[str, type[RunEvent]] = {kind.event: kind for kind in get_args(RunEvent)}
SERVER_EVENTS: dict[str, type[ServerEvent]] = {kind.event: kind for kind in get_args(ServerEvent)}
_HEAD = {name: b'{"event":' + _encoder.encode(name) + b',"data":' for name in (*RUN_EVENTS, *SERVER_EVENTS)}


class _Named(msgspec.Struct, frozen=True):
    """A stored event, decoded only as far as needed to know that it is whole."""

    event: str
    data: dict[str, Any]


class _Joined(msgspec.Struct, frozen=True):
    """Text deltas that are stored in one row: the bytes of each text in the joined one, as it is encoded."""

    event: str
    lengths: tuple[int, ...]


_name_decoder = msgspec.json.Decoder(_Named)
_joined_decoder = msgspec.json.Decoder(_Joined)
_LENGTHS, _DATA, _TEXT, _TEXT_END = b',"lengths":', b',"data":', b'"text":"', b'"}}'


class _Stored(msgspec.Struct, Generic[E], frozen=True):
    """A run event as it is stored."""

    data: E


_READERS: dict[str, msgspec.json.Decoder[Any]] = {
    name: msgspec.json.Decoder(_Stored[kind]) for name, kind in RUN_EVENTS.items()
}


def encode_event(event: RunEvent | ServerEvent) -> bytes:
    """Encode an event as a frame. A run event is encoded as it is stored, without session key and number."""
    try:
        data = _encoder.encode(event)
    except (UnicodeEncodeError, TypeError, OverflowError):
        data = _encoder.encode(_replace_invalid_text(msgspec.to_builtins(event, enc_hook=repr)))
    return _HEAD[event.event] + data + b"}"


def _replace_invalid_text(value: Any) -> Any:
    """Return the same data with lone surrogates replaced, because models and tools may emit invalid text."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {clean(str(key)): _replace_invalid_text(item) for key, item in cast(dict[Any, Any], value).items()}
    return (
        [_replace_invalid_text(item) for item in cast(list[Any], value)] if isinstance(value, (list, tuple)) else value
    )


def join_deltas(name: str, bodies: Sequence[bytes]) -> bytes:
    """Return one body for consecutive deltas of a run; `split_deltas` returns exactly the same bodies again."""
    start = bodies[0].index(_TEXT) + len(_TEXT)
    texts = [body[start : -len(_TEXT_END)] for body in bodies]
    lengths = b",".join([b"%d" % len(text) for text in texts])
    head = _HEAD[name]
    data = bodies[0][len(head) : start]
    return b"%b%b[%b]%b%b%b%b" % (head[: -len(_DATA)], _LENGTHS, lengths, _DATA, data, b"".join(texts), _TEXT_END)


def split_deltas(body: bytes) -> list[bytes]:
    """Return the bodies of the events in a stored row: those of joined deltas, or the body itself."""
    if _LENGTHS not in body[:64]:
        return [body]
    try:
        joined = _joined_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return [body]
    data = body.index(_DATA) + len(_DATA)
    at = body.index(_TEXT, data) + len(_TEXT)
    head, bodies = _HEAD[joined.event] + body[data:at], list[bytes]()
    for length in joined.lengths:
        bodies.append(head + body[at : at + length] + _TEXT_END)
        at += length
    return bodies


def full_frame(body: bytes, session_key: bytes, seq: int) -> bytes:
    """Return a run event for the full profile. `session_key` is JSON-encoded already."""
    return b'%b,"sessionKey":%b,"seq":%d}}' % (body[:-2], session_key, seq)


def read_event_name(body: bytes) -> str:
    """Return the name of a stored event; empty if the event cannot be read, so that it must not be sent."""
    try:
        return _name_decoder.decode(body).event
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def decode_event(body: bytes) -> RunEvent | None:
    """Decode a stored run event; None if another version wrote it and this one cannot read it."""
    try:
        return _READERS[read_event_name(body)].decode(body).data
    except (KeyError, msgspec.MsgspecError):
        return None


def plain_frames(name: str, body: bytes) -> tuple[bytes, ...]:
    """Return a run event for the plain profile, with exactly its keys; nothing if the profile excludes it.

    The plain profile has no messages: after a `chat.reset`, the text of the complete ones is sent again, and a refusal
    is sent as text.
    """
    if name == "chat.delta":
        return (body,)
    keys = PLAIN.get(name)
    if keys is None:
        return ()
    data: dict[str, Any] = msgspec.json.decode(body)["data"]
    included = {key: data[key] for key in keys if key in data}
    if "usage" in included:
        included["usage"] = {key: included["usage"][key] for key in _PLAIN_USAGE}
    frame = _HEAD[name] + _encoder.encode(included) + b"}"
    if data.get("kept"):
        return (frame, encode_event(ChatDelta(data["runId"], data["kept"])))
    message = data.get("message") if name == "chat.final" else None
    if message and message.get("refusal"):
        separator = "\n\n" if any(part["type"] == "text" for part in message["parts"]) else ""
        return (encode_event(ChatDelta(data["runId"], separator + message["refusal"])), frame)
    return (frame,)
