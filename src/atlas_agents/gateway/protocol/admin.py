"""A tool call without a model, and the MCP servers whose tools there are."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from atlas_agents.gateway.protocol.chat import Page
from atlas_agents.gateway.protocol.types import (
    AgentShape,
    Features,
    ModelShape,
    PolicyShape,
    Principal,
    ServerShape,
    ToolShape,
    WireStruct,
)

Day = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class Health(WireStruct, frozen=True):
    """Well, and for how many seconds."""

    status: Literal["ok"]
    uptime: float


class LimitsFound(WireStruct, frozen=True):
    """What a tool call may cost; null is no limit."""

    per_tick: int | None
    tick_seconds: float
    per_day: int | None
    at_once: int
    repeats: int | None
    used_today: dict[str, int]


class SystemInfo(WireStruct, frozen=True):
    server: ServerShape
    principal: Principal
    features: Features
    policy: PolicyShape
    limits: LimitsFound
    uptime: float


class AgentsFound(WireStruct, frozen=True):
    agents: tuple[AgentShape, ...]


class OneAgent(WireStruct, frozen=True):
    agent_id: str


class AgentFound(WireStruct, frozen=True):
    agent: AgentShape


class ModelsFound(WireStruct, frozen=True):
    models: tuple[ModelShape, ...]


class ToolsList(WireStruct, frozen=True):
    """The tools of an agent, or of the agent that a session talks to."""

    agent_id: str | None = None
    session_key: str | None = None


class ToolsFound(WireStruct, frozen=True):
    tools: tuple[ToolShape, ...]


class MatrixRow(WireStruct, frozen=True):
    """What one agent may do with each tool: yes, no or ask."""

    agent_id: str
    role: str
    cells: dict[str, Literal["yes", "no", "ask"]]


class Matrix(WireStruct, frozen=True):
    tools: tuple[str, ...]
    rows: tuple[MatrixRow, ...]


class AuditList(WireStruct, frozen=True):
    """Entries, the latest first; filters join with and."""

    limit: Page = 100
    cursor: str | None = None
    agent_id: str | None = None
    tool: str | None = None
    level: Literal["info", "warn", "error"] | None = None
    run_id: str | None = None


class AuditShape(WireStruct, frozen=True):
    """One line of the audit log, in its place in the chain."""

    seq: int
    entry: dict[str, Any]
    previous: str
    hash: str


class AuditPage(WireStruct, frozen=True):
    entries: tuple[AuditShape, ...]
    next_cursor: str | None = None


class AuditVerified(WireStruct, frozen=True):
    """How many lines there are; `broken` is the first one that does not follow from the one before it, and
    `problem` says in words what is wrong with it."""

    rows: int
    broken: int | None = None
    problem: str | None = None


class UsageSummary(WireStruct, frozen=True):
    """Sums over the days from one up to, and with, another; with `byDay`, one of each day."""

    since: Day | None = field(default=None, name="from")
    to: Day | None = None
    group_by: Literal["agent", "model", "session", "day"] = "agent"
    by_day: bool = False


class UsageSum(WireStruct, frozen=True):
    """The sum of all that share a name, and a day if asked so."""

    name: str
    turns: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_microcents: int
    day: str = ""


class UsageFound(WireStruct, frozen=True):
    rows: tuple[UsageSum, ...]


class UsageTools(WireStruct, frozen=True):
    """Calls of the days from one up to, and with, another, as the audit log has them."""

    since: Day | None = field(default=None, name="from")
    to: Day | None = None


class ToolUse(WireStruct, frozen=True):
    """The calls of one tool on one day."""

    name: str
    day: str
    calls: int
    failed: int
    duration_ms: float


class ToolsUsed(WireStruct, frozen=True):
    rows: tuple[ToolUse, ...]


class ConfigFound(WireStruct, frozen=True):
    """The settings in force, without secrets."""

    config: dict[str, Any]


class TokenMade(WireStruct, frozen=True):
    """Where the new token stands; it is not sent."""

    path: str


Name = Annotated[str, Meta(pattern=r"^[a-z0-9_-]{1,64}$")]
Count = Annotated[int, Meta(ge=0, le=1 << 62)]


class UserShape(WireStruct, frozen=True):
    """Somebody who belongs here; `lastActive` is when a turn was last taken for them, in milliseconds since 1970."""

    name: str
    role: str
    status: Literal["active", "invited", "suspended"]
    last_active: int | None = None


class UsersFound(WireStruct, frozen=True):
    users: tuple[UserShape, ...]


class UsersPut(WireStruct, frozen=True):
    """Add somebody, or change them."""

    name: Name
    role: Annotated[str, Meta(min_length=1, max_length=64)] = "member"
    status: Literal["active", "invited", "suspended"] = "active"


class UserFound(WireStruct, frozen=True):
    user: UserShape


class OneUser(WireStruct, frozen=True):
    """Name a user."""

    name: Name


class PlanShape(WireStruct, frozen=True):
    """What may be used: tokens in a month, agents, bytes, users; null is no limit."""

    name: str
    tokens: int | None = None
    agents: int | None = None
    storage: int | None = None
    seats: int | None = None


class PlansFound(WireStruct, frozen=True):
    plans: tuple[PlanShape, ...]


class PlansPut(WireStruct, frozen=True):
    """Make a plan, or change one."""

    name: Name
    tokens: Count | None = None
    agents: Count | None = None
    storage: Count | None = None
    seats: Count | None = None


class PlanFound(WireStruct, frozen=True):
    plan: PlanShape


class TenantFound(WireStruct, frozen=True):
    """The tenant that is served here, its plan, and what it uses of it."""

    tenant: str
    plan: PlanShape
    tokens: int
    storage: int
    agents: int
    seats: int


class TenantsUpdate(WireStruct, frozen=True):
    """Have another plan from now on."""

    plan: Name


class TenantsFound(WireStruct, frozen=True):
    """The tenants that have said something of themselves in this store."""

    tenants: tuple[str, ...]


class ToolsInvoke(WireStruct, frozen=True):
    """Which tool of which agent, with what; the same key again gives the result of the first time."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    arguments: dict[str, Any] = {}
    agent_id: str | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class ForeignServer(WireStruct, frozen=True):
    """An MCP server: whether it may be used, the tools that were approved, and why it cannot be reached."""

    name: str
    state: str
    tools: tuple[str, ...] = ()
    trouble: str = ""


class ForeignServers(WireStruct, frozen=True):
    """All that the workspace names; with `trouble`, why none of them is used."""

    servers: tuple[ForeignServer, ...] = ()
    trouble: str = ""


class Called(WireStruct, frozen=True):
    """What came of it; `unknown` if it may have happened."""

    run_id: str
    status: Literal["ok", "error", "unknown"]
    result: Any
    error: str | None = None
