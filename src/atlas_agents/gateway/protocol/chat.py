"""Parameters and results of `chat.*` and `runs.*`."""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from atlas_agents.gateway.protocol import types

Key: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""Session key: a single line of text of limited length."""
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
RunId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Page: TypeAlias = Annotated[int, Meta(ge=1, le=500)]
StepKind: TypeAlias = Literal[
    "accepted",
    "resumed",
    "reply",
    "summary",
    "steer",
    "hook",
    "intent",
    "outcome",
    "state",
    "asked",
    "answered",
    "ended",
]


class TurnSettings(types.WireStruct, frozen=True, forbid_unknown_fields=True):
    """Model settings of one turn. They apply as far as the agent's own allow.

    A setting of the agent stays, except that the lower effort and the lower number of tokens apply. `effort` is a
    level, or the most tokens that the model may reason for.
    """

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: Annotated[tuple[str, ...], Meta(max_length=16)] = ()
    seed: int | None = None
    service_tier: Annotated[str, Meta(max_length=40)] | None = None
    parallel_tool_calls: bool | None = None
    effort: Effort | Annotated[int, Meta(ge=1)] | None = None


class TurnLimits(types.WireStruct, frozen=True, forbid_unknown_fields=True):
    """Budget of one turn, in addition to the others that apply: tokens, model requests, tool calls, US dollars and
    seconds."""

    tokens: Annotated[int, Meta(ge=1, le=10**12)] | None = None
    requests: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    tool_calls: Annotated[int, Meta(ge=1, le=10**9)] | None = None
    dollars: Annotated[float, Meta(gt=0, le=10**9)] | None = None
    seconds: Annotated[float, Meta(gt=0, le=10**9)] | None = None


class ClientToolShape(types.WireStruct, frozen=True, forbid_unknown_fields=True):
    """A tool that the client runs. `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str = ""
    parameters: dict[str, Any] = {}


class ClientToolsShape(types.WireStruct, frozen=True, forbid_unknown_fields=True):
    """The tools that the client of a turn runs; `tool.pending` names the calls, `chat.postResults` posts the results.

    `runs` are tools of the gateway that the client runs instead, for the files in its `folder`, because it knows
    unsaved text: `file_read`, `file_write` and `file_edit`. A call without a result fails after `deadline` seconds; the
    turn then continues or, with `unanswered: "end"`, ends.
    """

    tools: tuple[ClientToolShape, ...] = ()
    tool_choice: str = "auto"
    parallel: bool = True
    deadline: float = 600.0
    unanswered: Literal["continue", "end"] = "continue"
    runs: tuple[str, ...] = ()
    folder: Annotated[str, Meta(max_length=4096)] = ""


class ChatSend(types.WireStruct, frozen=True):
    """Send a message to a session, which is created if it does not exist.

    `untrusted` names the source of a message that someone else wrote, such as `mail: ana@example.org`. A `pinned`
    message is always sent to the model, however long the session gets. While a turn of the session runs, the message
    is queued, or with `whenBusy: "steer"` it enters that turn after its current tool calls. `channel` names the
    messenger that a person wrote it in, such as `telegram`. `clientTools` are tools that the client runs.
    `traceparent` and `tracestate` are the trace context of the client (W3C).
    """

    session_key: Key
    message: str | tuple[types.InputPart, ...]
    agent_id: str | None = None
    model: str | None = None
    mode: Literal["tools", "react", "plan"] | None = None
    settings: TurnSettings | None = None
    attachments: tuple[types.ImagePart | types.FilePart, ...] | None = None
    idempotency_key: Annotated[str, Meta(max_length=200)] | None = None
    when_busy: Literal["queue", "steer", "reject", "interrupt"] | None = None
    on_disconnect: Literal["continue", "cancel"] | None = None
    untrusted: Annotated[str, Meta(max_length=200)] | None = None
    budget: TurnLimits | None = None
    pinned: bool = False
    channel: Annotated[str, Meta(max_length=40)] | None = None
    client_tools: ClientToolsShape | None = None
    traceparent: types.Traceparent | None = None
    tracestate: types.Tracestate | None = None


class Sent(types.WireStruct, frozen=True):
    """The run that answers. `status` is omitted in the plain profile."""

    run_id: str
    status: Literal["started", "queued", "in_flight", "done"] | None = None


class ClientResultShape(types.WireStruct, frozen=True, forbid_unknown_fields=True):
    """The result of a call that the client ran; with `error`, the result says why it failed."""

    call_id: Annotated[str, Meta(max_length=200)]
    result: Any
    error: bool = False


class PostResults(types.WireStruct, frozen=True):
    """Post results of tools that the client ran. Posting the same result again has no effect."""

    results: Annotated[tuple[ClientResultShape, ...], Meta(min_length=1, max_length=128)]


class ChatAbort(types.WireStruct, frozen=True):
    """Cancel a run, or all runs of a session."""

    run_id: RunId | None = None
    session_key: Key | None = None


class Aborted(types.WireStruct, frozen=True):
    """The runs that were cancelled."""

    aborted: tuple[str, ...]


class ChatHistory(types.WireStruct, frozen=True):
    """The last messages of a session, or those before a message given by `seq` or id."""

    session_key: Key
    limit: Page = 100
    before: int | str | None = None


class RunOutcome(types.WireStruct, frozen=True):
    """A turn that ended without an answer, and why. `parts` is the incomplete answer."""

    run_id: str
    status: Literal["failed", "cancelled"]
    error: str | None = None
    parts: tuple[types.Part, ...] = ()


class ChatHistoryPage(types.WireStruct, frozen=True):
    """Messages in order, and whether there are older ones. `outcomes` lists turns that ended without an answer."""

    messages: tuple[types.MessageShape, ...]
    has_more: bool
    outcomes: tuple[RunOutcome, ...] = ()


class ChatWait(types.WireStruct, frozen=True):
    """Wait until a run has ended, up to a timeout."""

    run_id: RunId
    timeout_ms: Annotated[int, Meta(ge=0, le=600_000)] = 30_000


class Waited(types.WireStruct, frozen=True):
    """The status of a run, and its answer if it has completed."""

    status: types.RunState
    message: types.MessageShape | None = None
    error: str | None = None


class RunShape(types.WireStruct, frozen=True):
    """A run and its status."""

    run_id: str
    session_key: str
    agent_id: str
    status: types.RunState
    created_at: int
    ended_at: int | None = None
    error: str | None = None
    user: str = ""


class RunStep(types.WireStruct, frozen=True):
    """One step of a run, from its journal.

    `key` is the id of the call or approval, `name` the tool or model, `status` the outcome, `by` who resolved an
    approval and `reason` why. A reply has its `cost` in US dollars and the milliseconds until its first chunk
    (`firstMs`) and its end (`totalMs`). `jobId` is the job that a call delegated.
    """

    seq: int
    kind: StepKind
    key: str
    at: int
    name: str = ""
    call_id: str = ""
    status: str = ""
    error: str | None = None
    by: str = ""
    reason: str = ""
    usage: types.UsageShape | None = None
    cost: float | None = None
    first_ms: int | None = None
    total_ms: int | None = None
    job_id: str = ""


class RunsList(types.WireStruct, frozen=True):
    """The latest runs of a session, or of all sessions."""

    session_key: Key | None = None
    limit: Page = 50


class RunsResult(types.WireStruct, frozen=True):
    runs: tuple[RunShape, ...]


class OneRun(types.WireStruct, frozen=True):
    """Identifies a run."""

    run_id: RunId


class RunDetails(types.WireStruct, frozen=True):
    """A run with its steps, in order."""

    run: RunShape
    steps: tuple[RunStep, ...]
