"""The things that travel in several frames: messages, sessions, approvals, agents, tools."""

from typing import Any, Literal, TypeAlias

import msgspec

Scope: TypeAlias = Literal["read", "write", "approve", "admin"]
Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Decision: TypeAlias = Literal["allow-once", "allow-session", "allow-always", "deny", "dismiss"]
RunState: TypeAlias = Literal["queued", "running", "waiting", "done", "failed", "cancelled"]


class WireStruct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What goes over the wire. A field with a default is left out when it has that value."""


class TextPart(WireStruct, frozen=True, tag="text", tag_field="type"):
    """Words."""

    text: str


class ThinkingPart(WireStruct, frozen=True, tag="thinking", tag_field="type"):
    """The model's reasoning."""

    text: str


class ToolCallPart(WireStruct, frozen=True, tag="tool_call", tag_field="type"):
    """The model asks for a tool."""

    id: str
    name: str
    arguments: dict[str, Any]


class ToolResultPart(WireStruct, frozen=True, tag="tool_result", tag_field="type"):
    """What came of a call, and how long it took."""

    call_id: str
    status: Literal["ok", "error", "unknown"]
    result: Any
    error: str | None = None
    duration_ms: int | None = None


class ImagePart(WireStruct, frozen=True, tag="image", tag_field="type"):
    """A picture: base64 data, or an address."""

    media_type: str
    data: str = ""
    url: str = ""


class FilePart(WireStruct, frozen=True, tag="file", tag_field="type"):
    """A document: base64 data, or an address."""

    name: str
    media_type: str
    data: str = ""
    url: str = ""


Part: TypeAlias = TextPart | ThinkingPart | ToolCallPart | ToolResultPart | ImagePart | FilePart
InputPart: TypeAlias = TextPart | ImagePart | FilePart


class MessageShape(WireStruct, frozen=True):
    """One entry of a conversation; `seq` is its place there. Times are in milliseconds since 1970, here and below."""

    id: str
    role: Role
    parts: tuple[Part, ...]
    created_at: int
    run_id: str = ""
    seq: int = 0
    metadata: dict[str, Any] = {}


class PlanStepShape(WireStruct, frozen=True):
    """A step of a plan. `changed` is one that was under way when the plan was made anew."""

    text: str
    status: Literal["pending", "running", "done", "failed", "changed", "dropped"]


class UsageShape(WireStruct, frozen=True):
    """Tokens that went in and came out; `cachedTokens` of those that went in were in a cache."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    estimated: bool = False


class SessionShape(WireStruct, frozen=True):
    """A conversation that is kept."""

    session_key: str
    label: str
    agent_id: str
    archived: bool
    running: bool
    created_at: int
    updated_at: int
    metadata: dict[str, Any] = {}


class ChoiceShape(WireStruct, frozen=True):
    """One of several values, and how it is called."""

    value: str
    title: str = ""


class FieldShape(WireStruct, frozen=True):
    """A value that is asked for. `least` and `most` bound a number, the length of a text, or how many are chosen."""

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
    """Values that a tool asks for while it works, as arguments of the answer; with a `url`, whether the person goes
    there by themselves. The `asker` gets them."""

    asker: str
    message: str
    fields: tuple[FieldShape, ...] = ()
    url: str = ""


class ApprovalShape(WireStruct, frozen=True):
    """A question to a person, about exactly these arguments; `preview` is what would change, where the tool says so.
    With a `form`, it is for values instead, and the arguments are those that are suggested."""

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


class AgentShape(WireStruct, frozen=True):
    """An agent, as far as a client needs to know it; `notice` says why another model than its own speaks."""

    id: str
    name: str
    model: str
    description: str
    role: str
    tools: tuple[str, ...]
    default: bool = False
    notice: str = ""


class ModelShape(WireStruct, frozen=True):
    """A model that some agent speaks with; `available` if its provider can be used here."""

    id: str
    provider: str
    available: bool
    agents: tuple[str, ...]


class ToolShape(WireStruct, frozen=True):
    """A tool as one agent sees it."""

    name: str
    description: str
    input_schema: dict[str, Any]
    source: str
    requires_approval: bool
    allowed: bool
    agent_id: str = ""


class Principal(WireStruct, frozen=True):
    """Who speaks on a connection, and what they may do. Never taken from what a client says of itself."""

    id: str
    role: str
    scopes: tuple[Scope, ...]


class ServerShape(WireStruct, frozen=True):
    """The program at this end."""

    name: str
    version: str


class Features(WireStruct, frozen=True):
    """What this server can do."""

    methods: tuple[str, ...]
    events: tuple[str, ...]


class PolicyShape(WireStruct, frozen=True):
    """How a connection must behave."""

    max_frame_bytes: int
    ping_ms: int


class Nothing(WireStruct, frozen=True):
    """No params."""


class Done(WireStruct, frozen=True):
    """It is done."""

    ok: Literal[True]
