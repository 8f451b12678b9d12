"""Params and results of what can be looked up: agents, tools, the audit log, usage, limits, the server itself."""

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from atlas_agents.gateway.protocol.chat import Page
from atlas_agents.gateway.protocol.shapes import (
    AgentShape,
    Features,
    ModelShape,
    PolicyShape,
    Principal,
    ServerShape,
    ToolShape,
    Wire,
)

Day = Annotated[str, Meta(pattern=r"^\d{4}-\d{2}-\d{2}$")]


class Health(Wire, frozen=True):
    """Well, and for how many seconds."""

    status: Literal["ok"]
    uptime: float


class LimitsFound(Wire, frozen=True):
    """What a tool call may cost; null is no limit."""

    per_tick: int | None
    tick_seconds: float
    per_day: int | None
    at_once: int
    repeats: int | None
    used_today: dict[str, int]


class SystemInfo(Wire, frozen=True):
    server: ServerShape
    principal: Principal
    features: Features
    policy: PolicyShape
    limits: LimitsFound
    uptime: float


class AgentsFound(Wire, frozen=True):
    agents: tuple[AgentShape, ...]


class OneAgent(Wire, frozen=True):
    agent_id: str


class AgentFound(Wire, frozen=True):
    agent: AgentShape


class ModelsFound(Wire, frozen=True):
    models: tuple[ModelShape, ...]


class ToolsList(Wire, frozen=True):
    """The tools of an agent, or of the agent that a session talks to."""

    agent_id: str | None = None
    session_key: str | None = None


class ToolsFound(Wire, frozen=True):
    tools: tuple[ToolShape, ...]


class MatrixRow(Wire, frozen=True):
    """What one agent may do with each tool: yes, no or ask."""

    agent_id: str
    role: str
    cells: dict[str, Literal["yes", "no", "ask"]]


class Matrix(Wire, frozen=True):
    tools: tuple[str, ...]
    rows: tuple[MatrixRow, ...]


class AuditList(Wire, frozen=True):
    """Entries, the latest first; filters join with and."""

    limit: Page = 100
    cursor: str | None = None
    agent_id: str | None = None
    tool: str | None = None
    level: Literal["info", "warn", "error"] | None = None
    run_id: str | None = None


class AuditShape(Wire, frozen=True):
    """One line of the audit log, in its place in the chain."""

    seq: int
    entry: dict[str, Any]
    previous: str
    hash: str


class AuditPage(Wire, frozen=True):
    entries: tuple[AuditShape, ...]
    next_cursor: str | None = None


class AuditVerified(Wire, frozen=True):
    """How many lines there are; `broken` is the first one that does not follow from the one before it, and
    `problem` says in words what is wrong with it."""

    rows: int
    broken: int | None = None
    problem: str | None = None


class UsageSummary(Wire, frozen=True):
    """Sums over the days from one up to, and with, another; with `byDay`, one of each day."""

    since: Day | None = field(default=None, name="from")
    to: Day | None = None
    group_by: Literal["agent", "model", "session", "day"] = "agent"
    by_day: bool = False


class UsageSum(Wire, frozen=True):
    """The sum of all that share a name, and a day if asked so."""

    name: str
    turns: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_microcents: int
    day: str = ""


class UsageFound(Wire, frozen=True):
    rows: tuple[UsageSum, ...]


class UsageTools(Wire, frozen=True):
    """Calls of the days from one up to, and with, another, as the audit log has them."""

    since: Day | None = field(default=None, name="from")
    to: Day | None = None


class ToolUse(Wire, frozen=True):
    """The calls of one tool on one day."""

    name: str
    day: str
    calls: int
    failed: int
    duration_ms: float


class ToolsUsed(Wire, frozen=True):
    rows: tuple[ToolUse, ...]


class ConfigFound(Wire, frozen=True):
    """The settings in force, without secrets."""

    config: dict[str, Any]


class TokenMade(Wire, frozen=True):
    """Where the new token stands; it is not sent."""

    path: str
