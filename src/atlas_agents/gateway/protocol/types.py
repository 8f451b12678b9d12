"""Types shared by several frames: messages, sessions, approvals, agents, tools."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

Scope: TypeAlias = Literal["read", "write", "approve", "admin"]
Cell: TypeAlias = Literal["yes", "ask", "no"]
"""Whether a tool may be called: yes, only after approval, or no."""
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Decision: TypeAlias = Literal["allow-once", "allow-session", "allow-always", "deny", "dismiss"]
ApprovalKind: TypeAlias = Literal["command", "code", "file", "form", "tool"]
Traceparent: TypeAlias = Annotated[
    str, Meta(pattern=r"^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?!\n)$")
]
"""Trace context of a client, as W3C Trace Context defines it. Python's `$` alone would accept a newline at the end."""
Tracestate: TypeAlias = Annotated[str, Meta(max_length=512)]
"""State that tracing systems add to a trace context, as W3C Trace Context defines it."""
RunState: TypeAlias = Literal["queued", "running", "waiting", "done", "failed", "cancelled"]


class WireStruct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of all wire types. A field that has its default value is omitted."""


class EditParams(WireStruct, frozen=True, kw_only=True):
    """Common parameters of all edit methods. `expectedVersion` is the version that was read, null to create.

    With `dryRun` nothing is written, and the result has only the diff and the warnings.
    """

    expected_version: str | None = None
    dry_run: bool = False


class EditStamp(WireStruct, frozen=True, kw_only=True):
    """The version of an editable resource, and its last change. `changedBy` is empty if the change was not made
    through the gateway, `changedAt` is null if its time is unknown."""

    version: str | None = None
    changed_by: str = ""
    changed_at: int | None = None


class EditResult(EditStamp, frozen=True, kw_only=True):
    """Common results of all edit methods besides the new value: its version, a unified diff and warnings."""

    diff: str = ""
    warnings: tuple[str, ...] = ()


class RemovalResult(WireStruct, frozen=True):
    """The outcome of a removal. After a dry run nothing was removed; `warnings` describe the effects of the removal."""

    ok: bool
    diff: str = ""
    warnings: tuple[str, ...] = ()


class CurrentValue(EditStamp, frozen=True, kw_only=True):
    """The current value, if another author changed it since a version was read; `value` is null if it was removed."""

    value: Any = None


class TextPart(WireStruct, frozen=True, tag="text", tag_field="type"):
    """Text."""

    text: str


class ThinkingPart(WireStruct, frozen=True, tag="thinking", tag_field="type"):
    """The model's reasoning."""

    text: str


class ToolCallPart(WireStruct, frozen=True, tag="tool_call", tag_field="type"):
    """A tool call by the model."""

    id: str
    name: str
    arguments: dict[str, Any]


class ToolResultPart(WireStruct, frozen=True, tag="tool_result", tag_field="type"):
    """The result of a tool call, and how long it took."""

    call_id: str
    status: Literal["ok", "error", "unknown"]
    result: Any
    error: str | None = None
    duration_ms: int | None = None


class ImagePart(WireStruct, frozen=True, tag="image", tag_field="type"):
    """An image: base64 data or a URL."""

    media_type: str
    data: str = ""
    url: str = ""


class FilePart(WireStruct, frozen=True, tag="file", tag_field="type"):
    """A document: base64 data or a URL."""

    name: str
    media_type: str
    data: str = ""
    url: str = ""


Part: TypeAlias = TextPart | ThinkingPart | ToolCallPart | ToolResultPart | ImagePart | FilePart
InputPart: TypeAlias = TextPart | ImagePart | FilePart


class OriginShape(WireStruct, frozen=True):
    """Origin of a message with the role "user" that a person did not write in this session.

    `id` is the job, the schedule or the channel. `state` is the outcome that a job reports to the session that
    delegated it; it is omitted where the job receives its task. `agentId` is the agent that reports or delegates.
    """

    kind: Literal["job", "schedule", "channel"]
    id: str
    agent_id: str = ""
    state: str = ""


class MessageShape(WireStruct, frozen=True):
    """One message of a conversation; `seq` is its position. All times are in milliseconds since 1970.

    `refusal` is a sentence to show below the text: the model refused, and why. `agentId` is the agent that wrote it.
    A message that a user wrote in this session has no `origin`.
    """

    id: str
    role: Role
    parts: tuple[Part, ...]
    created_at: int
    run_id: str = ""
    seq: int = 0
    metadata: dict[str, Any] = {}
    refusal: str = ""
    agent_id: str = ""
    origin: OriginShape | None = None


class PlanStepShape(WireStruct, frozen=True):
    """A step of a plan. `changed` marks a step that was in progress when the plan was replaced."""

    text: str
    status: Literal["pending", "running", "done", "failed", "changed", "dropped"]


class UsageShape(WireStruct, frozen=True):
    """Input and output tokens. Of the input, `cachedTokens` were read from a vendor's cache and `cacheWriteTokens`
    written to it; of the output, `reasoningTokens` were reasoning."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    estimated: bool = False
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0


class SessionShape(WireStruct, frozen=True):
    """A stored conversation.

    `model` and `effort` are what a person chose for it; clients send them with each message. `pinned` and `folder` say
    where lists show it.
    """

    session_key: str
    label: str
    agent_id: str
    archived: bool
    running: bool
    created_at: int
    updated_at: int
    metadata: dict[str, Any] = {}
    model: str = ""
    effort: str = ""
    pinned: bool = False
    folder: str = ""


class ChoiceShape(WireStruct, frozen=True):
    """One of several values, and its label."""

    value: str
    title: str = ""


class FieldShape(WireStruct, frozen=True):
    """An input field. `least` and `most` bound a number, the length of a text, or the number of choices."""

    name: str
    kind: Literal["text", "number", "integer", "boolean", "choice", "choices"]
    title: str = ""
    description: str = ""
    required: bool = False
    default: Any = None
    choices: tuple[ChoiceShape, ...] = ()
    format: str = ""
    pattern: str = ""
    least: int | float | None = None
    most: int | float | None = None


class FormShape(WireStruct, frozen=True):
    """Input that a running tool requests; the values are sent as arguments of the resolution.

    With a `url`, the person is asked to open it. `asker` receives the values.
    """

    asker: str
    message: str
    fields: tuple[FieldShape, ...] = ()
    url: str = ""


class ApprovalShape(WireStruct, frozen=True):
    """A request for approval of exactly these arguments. `preview` shows what would change, if the tool supports it.

    With a `form`, it requests input instead, and the arguments are suggested values. `sandbox` names what confines the
    call ("none" if nothing does; empty if the tool does not declare it): then the lines of the preview up to the first
    empty one describe the sandbox and the limits, and the command or the code follows. `rule` is the rule of the policy
    that requires the approval. `digest` is a hash of all that is shown, to name in an answer what was seen.
    """

    approval_id: str
    run_id: str
    session_key: str
    tool_call_id: str
    tool_name: str
    summary: str
    details: dict[str, Any]
    command: str
    working_dir: str
    risk: str
    options: tuple[Decision, ...]
    expires_at: int
    agent_id: str = ""
    preview: str = ""
    form: FormShape | None = None
    kind: ApprovalKind = "tool"
    sandbox: str = ""
    rule: str = ""
    digest: str = ""


class AgentShape(WireStruct, frozen=True):
    """An agent. `notice` says why it uses another model than its own, or lacks tools that it names."""

    id: str
    name: str
    model: str
    description: str
    role: str
    tools: tuple[str, ...]
    default: bool = False
    notice: str = ""
    hands_off_to: tuple[str, ...] = ()
    needs_key: bool = False
    """Whether the model that it names has no API key, so that another one answers."""


class ModelShape(WireStruct, frozen=True):
    """A model that agents use; `available` if its provider can be used."""

    id: str
    provider: str
    available: bool
    agents: tuple[str, ...]


class ToolShape(WireStruct, frozen=True):
    """A tool, with the permissions of one agent."""

    name: str
    description: str
    input_schema: dict[str, Any]
    source: str
    requires_approval: bool
    allowed: bool
    agent_id: str = ""
    pure: bool = False
    """Whether it only reads and computes, without side effects."""


class Principal(WireStruct, frozen=True):
    """The authenticated user of a connection and their scopes."""

    id: str
    role: str
    scopes: tuple[Scope, ...]
    sessions: Literal["own", "all"] = "all"
    """Whether the user has access to all sessions or only to their own."""


class ServerShape(WireStruct, frozen=True):
    """Name and version of the server."""

    name: str
    version: str


class Features(WireStruct, frozen=True):
    """Features of this server."""

    methods: tuple[str, ...]
    events: tuple[str, ...]


class PolicyShape(WireStruct, frozen=True):
    """Limits of a connection."""

    max_frame_bytes: int
    ping_ms: int


class AuditShape(WireStruct, frozen=True):
    """One audit entry with its position and hash in the chain."""

    seq: int
    entry: dict[str, Any]
    previous: str
    hash: str


class NoParams(WireStruct, frozen=True):
    """No params."""


class Ack(WireStruct, frozen=True):
    """The request succeeded."""

    ok: Literal[True]
