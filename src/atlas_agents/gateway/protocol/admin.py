"""Parameters and results of administration methods: agents, models, tools, MCP servers, audit, usage, users, plans."""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType, field

from atlas_agents.gateway.protocol import types
from atlas_agents.gateway.protocol.chat import Page

Day = Annotated[str, Meta(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
Name = Annotated[str, Meta(pattern=r"^[a-z0-9_-]{1,64}$")]
Text = Annotated[str, Meta(max_length=4_000)]
Count = Annotated[int, Meta(ge=0, le=1 << 62)]
TokenName = Annotated[str, Meta(pattern="^[a-z0-9_-]{1,64}$")]
ExpectedVersion: TypeAlias = str | UnsetType | None
"""The version that was read, null to create; without it any version is replaced."""


class Health(types.WireStruct, frozen=True):
    """Health status and uptime in seconds."""

    status: Literal["ok"]
    uptime: float


class BudgetShape(types.WireStruct, frozen=True):
    """One limit of a budget: the amounts used and reserved by running turns; `resets_at` is in milliseconds."""

    scope: str
    subject: str
    measure: str
    limit: float
    used: float
    reserved: float
    per: str | None = None
    resets_at: int | None = None


class LimitsResult(types.WireStruct, frozen=True):
    """Limits of tool calls; null means unlimited. `budgets` are those that apply to the caller."""

    per_tick: int | None
    tick_seconds: float
    per_day: int | None
    at_once: int
    repeats: int | None
    used_today: dict[str, int]
    budgets: tuple[BudgetShape, ...] = ()


class SystemInfo(types.WireStruct, frozen=True):
    server: types.ServerShape
    principal: types.Principal
    features: types.Features
    policy: types.PolicyShape
    limits: LimitsResult
    uptime: float


class BackupShape(types.WireStruct, frozen=True):
    """A backup of the database. `problem` says why its audit log cannot be trusted; empty if it can."""

    file: str
    size: int
    created_at: int
    problem: str = ""


class StorageStatus(types.WireStruct, frozen=True):
    """Storage locations, with sizes in bytes. `database_size` is null if the database is not a file.

    `backups` are those made by `ops.backup`, newest first.
    """

    home: str
    database: str
    database_size: int | None
    disk_free: int
    disk_total: int
    backups: tuple[BackupShape, ...] = ()


class LatencyShape(types.WireStruct, frozen=True):
    """Percentiles in seconds over the last 15 minutes; null if there is no value."""

    count: int
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None


class ModelHealthShape(types.WireStruct, frozen=True):
    """Requests of the last 15 minutes to one model, and the kind of its latest failure; `cooldown` is in seconds."""

    model: str
    requests: int
    failures: int
    first_chunk: LatencyShape
    last_error: str = ""
    last_error_at: int | None = None
    cooldown: float = 0.0


class RateLimitShape(types.WireStruct, frozen=True):
    """Limits of each key of a provider, per minute and at once, and the requests that run now; null is unlimited."""

    provider: str
    keys: int
    busy: int
    requests: int | None = None
    tokens: int | None = None
    at_once: int | None = None


class KeyCooldownShape(types.WireStruct, frozen=True):
    """A provider key that cools down in the whole cluster, identified by a hash."""

    name: str
    seconds: float


class MemberShape(types.WireStruct, frozen=True):
    """A process that serves or executes turns. `lost` means that its heartbeat is overdue. Times are in seconds."""

    role: str
    host: str
    pid: int
    version: str
    uptime: float
    runs: int
    capacity: int | None = None
    heartbeat_age: float = 0.0
    leads: bool = False
    draining: bool = False
    lost: bool = False


class QueueShape(types.WireStruct, frozen=True):
    """Open turns: running, waiting for a person, or queued behind another turn; and turns that wait for a worker, with
    the longest wait in seconds."""

    open: int
    running: int
    waiting: int
    queued: int
    unassigned: int = 0
    lag: float = 0.0


class EndedTurns(types.WireStruct, frozen=True):
    """Outcomes of the turns of the last 15 minutes."""

    done: int
    failed: int
    cancelled: int


class AlertShape(types.WireStruct, frozen=True):
    """An alert rule and its state. Times are in milliseconds; `error` says why the rule could not be checked or its
    message not sent."""

    rule: str
    state: Literal["ok", "pending", "firing"]
    value: float | None = None
    since: int | None = None
    sent_at: int | None = None
    error: str = ""


class LiveStatus(types.WireStruct, frozen=True):
    """Live figures. In a cluster, turns and models are those of all live members that execute turns."""

    queue: QueueShape
    members: tuple[MemberShape, ...]
    ended: EndedTurns
    first_output: LatencyShape
    duration: LatencyShape
    models: tuple[ModelHealthShape, ...] = ()
    rate_limits: tuple[RateLimitShape, ...] = ()
    cooldowns: tuple[KeyCooldownShape, ...] = ()
    budgets: tuple[BudgetShape, ...] = ()
    alerts: tuple[AlertShape, ...] = ()
    problems: tuple[str, ...] = ()


class OpsStatus(types.WireStruct, frozen=True):
    """The gateway's version, uptime in seconds, connected clients, storage, and live figures."""

    version: str
    python: str
    uptime: float
    clients: int
    storage: StorageStatus
    live: LiveStatus


class BackupMade(types.WireStruct, frozen=True):
    backup: BackupShape


class CheckShape(types.WireStruct, frozen=True):
    """The result of one check of `atlas doctor`, with a remedy for a problem."""

    what: str
    state: Literal["ok", "notice", "broken"]
    words: str
    remedy: str = ""


class ChecksResult(types.WireStruct, frozen=True):
    checks: tuple[CheckShape, ...]


class OpsLogs(types.WireStruct, frozen=True):
    """`level` is the lowest level of the lines."""

    limit: Page = 200
    level: Literal["info", "warning", "error"] = "info"


class LogLine(types.WireStruct, frozen=True):
    """A line of the log; `time` is in milliseconds."""

    time: int
    level: str
    source: str
    text: str


class LogLines(types.WireStruct, frozen=True):
    lines: tuple[LogLine, ...]


class EvaluationShape(types.WireStruct, frozen=True):
    """An evaluation: a file of cases that ran, or runs, with agents and models. `score` is the mean of all scores."""

    id: str
    name: str
    file: str
    started_at: int
    agents: tuple[str, ...]
    models: tuple[str, ...]
    results: int
    total: int
    passed: int
    score: float


class EvaluationsResult(types.WireStruct, frozen=True):
    evaluations: tuple[EvaluationShape, ...]


class OneEvaluation(types.WireStruct, frozen=True):
    """`compare` is the id of an earlier evaluation."""

    id: str
    compare: str = ""


class EvaluationColumn(types.WireStruct, frozen=True, kw_only=True):
    """The results of one agent with one model. `low` and `high` are the 95 % interval of the pass rate."""

    agent: str
    model: str
    results: int
    passed: int
    errors: int
    low: float
    high: float
    score: float
    tokens: int
    dollars: float | None
    seconds: float


class EvaluationRow(types.WireStruct, frozen=True, kw_only=True):
    """The result of a case. `reason` says why it did not pass; `before` is the score of the compared evaluation."""

    case: str
    agent: str
    model: str
    repeat: int
    status: Literal["passed", "failed", "error"]
    score: float
    reason: str = ""
    answer: str = ""
    calls: tuple[str, ...] = ()
    seconds: float = 0.0
    before: float | None = None


class EvaluationComparison(types.WireStruct, frozen=True, kw_only=True):
    """The difference of the mean scores to an earlier evaluation, with its 95 % interval if there are enough cases."""

    agent: str
    model: str
    earlier_model: str
    cases: int
    difference: float
    low: float | None = None
    high: float | None = None


class EvaluationDetails(types.WireStruct, frozen=True):
    """An evaluation with its results. Of a large one, only the first results are included."""

    evaluation: EvaluationShape
    columns: tuple[EvaluationColumn, ...]
    rows: tuple[EvaluationRow, ...]
    comparisons: tuple[EvaluationComparison, ...] = ()


class AgentsResult(types.WireStruct, frozen=True):
    agents: tuple[types.AgentShape, ...]


class OneAgent(types.WireStruct, frozen=True):
    agent_id: str


class AgentDraft(types.WireStruct, frozen=True):
    """An agent as a form edits it. Other lines of its section in AGENTS.md stay as they are.

    `fallbacks` are tried in order if the model fails; `tools` are names, `*` for all.
    """

    id: Annotated[str, Meta(min_length=1, max_length=64)]
    name: Text = ""
    description: Text = ""
    model: Text = ""
    fallbacks: tuple[Text, ...] = ()
    effort: Text = ""
    instructions: Annotated[str, Meta(max_length=200_000)] = ""
    tools: tuple[Text, ...] = ("*",)
    role: Text = ""
    hands_off_to: tuple[Text, ...] = ()


class AgentResult(types.EditStamp, frozen=True):
    """An agent. Callers with the scope `admin` also receive what can be edited, and its version."""

    agent: types.AgentShape
    draft: AgentDraft | None = None


class AgentsPut(types.EditParams, frozen=True):
    """Create or change an agent."""

    agent: AgentDraft


class AgentsRemove(types.EditParams, frozen=True):
    """Remove an agent. Its chats stay; hand-offs to it are removed, and its schedules are paused."""

    agent_id: str


class AgentEdited(types.EditResult, frozen=True):
    """The agent as it is now; null after a removal or a dry run."""

    agent: types.AgentShape | None = None
    draft: AgentDraft | None = None


class DraftMessage(types.WireStruct, frozen=True):
    """An earlier message of a trial."""

    role: Literal["user", "assistant"]
    text: Annotated[str, Meta(max_length=100_000)]


class AgentsTryDraft(types.WireStruct, frozen=True):
    """A message to an agent that is not saved. With a `trialId`, the answer also arrives in pieces: `agents.trial`."""

    draft: AgentDraft
    message: Annotated[str, Meta(min_length=1, max_length=100_000)]
    history: Annotated[tuple[DraftMessage, ...], Meta(max_length=100)] = ()
    trial_id: Annotated[str, Meta(max_length=64)] = ""


class DraftAnswer(types.WireStruct, frozen=True):
    """The answer of a draft, which is not stored. `withheld`: its tools that have side effects or need approval."""

    text: str
    model: str
    called: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()
    notice: str = ""


class ModelsResult(types.WireStruct, frozen=True):
    models: tuple[types.ModelShape, ...]


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
ModelStateName = Literal["missing", "downloading", "paused", "failed", "ready"]


class FoundShape(types.WireStruct, frozen=True):
    """A key or a model server that was found. `source` is a variable, `stored`, or the address of a server."""

    kind: Literal["key", "server"]
    provider: str
    label: str
    source: str
    last_four: str = ""
    models: tuple[str, ...] = ()


class CurrentModel(types.WireStruct, frozen=True):
    """The model that the default agent uses."""

    agent_id: str
    model: str
    title: str
    effort: Effort | None = None


class LocalModelShape(types.WireStruct, frozen=True):
    """A model that can be downloaded to this machine; `done` of `size` bytes are downloaded.

    `install` is the command that installs the engine of local models; empty if it is installed.
    """

    id: str
    title: str
    label: str
    size: int
    state: ModelStateName
    done: int = 0
    error: str = ""
    install: str = ""


class SetupStatus(types.WireStruct, frozen=True):
    """Whether a model was chosen, the model in use, and the alternatives."""

    done: bool
    current: CurrentModel
    found: tuple[FoundShape, ...] = ()
    local: tuple[LocalModelShape, ...] = ()


class ProviderShape(types.WireStruct, frozen=True):
    """A provider of models. Its key is never sent: only where it comes from, its last characters and its date."""

    id: str
    title: str
    state: Literal["connected", "needs_key", "not_reachable"]
    source: Literal["", "environment", "stored", "server"] = ""
    variable: str = ""
    last_four: str = ""
    added_at: int | None = None
    base_url: str = ""
    models: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    offered: tuple[str, ...] = ()
    """Models that chats can choose, in addition to those that agents use."""


class ProvidersResult(types.WireStruct, frozen=True):
    providers: tuple[ProviderShape, ...]
    local: tuple[LocalModelShape, ...]


class ProviderResult(types.WireStruct, frozen=True):
    provider: ProviderShape


class ProvidersTest(types.WireStruct, frozen=True):
    """The provider to test, with a key and address that need not be stored; by default the configured ones."""

    provider: str
    key: str | None = None
    base_url: str | None = None


class ProviderTested(types.WireStruct, frozen=True):
    """Whether the key works: the models of the provider, or the error."""

    ok: bool
    models: tuple[str, ...] = ()
    error: str = ""


class SecretsPut(types.WireStruct, frozen=True):
    """The key of a provider, which is stored and never sent back.

    `baseUrl` is the address of a compatible server. The stored one stays if it is omitted; an empty one removes it.
    """

    provider: str
    key: str = ""
    base_url: str | None = None


class SecretsRemove(types.WireStruct, frozen=True):
    provider: str


class ModelsSelect(types.WireStruct, frozen=True):
    """The model for agents without one of their own, or for one agent; an empty one removes the choice.

    One agent keeps its fallbacks, and its effort if none is given.
    """

    model: str
    agent_id: str | None = None
    effort: Effort | None = None


class ModelSelected(types.WireStruct, frozen=True):
    """The chosen model, and the agents that use it now."""

    model: str
    title: str
    effort: Effort | None = None
    agents: tuple[str, ...] = ()


class ModelsOffer(types.WireStruct, frozen=True):
    """Models as `provider/model` that chats can choose from now on; without `offered`, no longer."""

    models: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=1000)]
    offered: bool = True
    dry_run: bool = False


class ModelsOffered(types.WireStruct, frozen=True):
    """All models that are offered in addition to those that agents use. After a dry run nothing has changed."""

    models: tuple[str, ...]
    diff: str = ""


class OneLocalModel(types.WireStruct, frozen=True):
    id: str


class ModelsDownload(types.WireStruct, frozen=True):
    """The local model to download; with `use`, it is selected when it is complete."""

    id: str
    use: bool = False


class LocalModelResult(types.WireStruct, frozen=True):
    model: LocalModelShape


class ToolsList(types.WireStruct, frozen=True):
    """The agent whose tools to list, or a session to use the agent of."""

    agent_id: str | None = None
    session_key: str | None = None
    all: bool = False
    """List every tool that an agent could have, without the permissions of an agent."""


class ToolsResult(types.WireStruct, frozen=True):
    tools: tuple[types.ToolShape, ...]


class MatrixRow(types.WireStruct, frozen=True):
    """Permissions of one agent by tool: yes, no or ask."""

    agent_id: str
    role: str
    cells: dict[str, Literal["yes", "no", "ask"]]


class Matrix(types.WireStruct, frozen=True):
    tools: tuple[str, ...]
    rows: tuple[MatrixRow, ...]


class PolicyTool(types.WireStruct, frozen=True):
    """A tool of the matrix. `asks` if it always asks, regardless of permissions; `pure` if it has no side effects."""

    name: str
    source: str
    description: str = ""
    asks: bool = False
    pure: bool = False


class PolicySubject(types.WireStruct, frozen=True):
    """A column of the matrix: everyone (`*`), a role or group, or an agent."""

    id: str
    kind: Literal["everyone", "group", "agent"]
    name: str = ""


class PolicyCell(types.WireStruct, frozen=True):
    """The permission of a subject, the rule behind it, and the subject that it is inherited from, if any."""

    cell: types.Cell
    rule: str
    inherited: str = ""


class CellChange(types.WireStruct, frozen=True):
    """A new permission of a subject for a tool; null removes it, so that it is inherited."""

    tool: Annotated[str, Meta(min_length=1, max_length=200)]
    subject: Annotated[str, Meta(min_length=1, max_length=200)]
    cell: types.Cell | None = None


class PolicyResult(types.EditStamp, frozen=True):
    """The permissions in use. `cells` are the explicit ones and `effective` the resulting ones, by tool and subject.

    `notice` says that a change of the file waits for agreement.
    """

    file: str
    tools: tuple[PolicyTool, ...]
    subjects: tuple[PolicySubject, ...]
    cells: dict[str, dict[str, types.Cell]]
    effective: dict[str, dict[str, PolicyCell]]
    notice: str = ""


class PolicySimulate(types.WireStruct, frozen=True):
    """Changes to try with the calls of the last days."""

    changes: Annotated[tuple[CellChange, ...], Meta(max_length=1000)]
    days: Annotated[int, Meta(ge=1, le=365)] = 7


class SimulatedCall(types.WireStruct, frozen=True):
    """A recorded call that would be decided differently, with the rule that decides."""

    seq: int
    at: int
    tool: str
    agent_id: str
    before: types.Cell
    after: types.Cell
    rule: str


class PolicySimulated(types.WireStruct, frozen=True):
    """Counts of the checked calls that would be allowed, need approval or be denied from now on.

    `wider` are the changes that allow more than now, and `effective` is the matrix with the changes. `complete` is
    false if there were too many calls to check all; `calls` has the latest ones.
    """

    allow: int
    ask: int
    deny: int
    checked: int
    calls: tuple[SimulatedCall, ...]
    wider: tuple[CellChange, ...]
    effective: dict[str, dict[str, PolicyCell]]
    complete: bool = True


class PolicyPut(types.EditParams, frozen=True):
    """Changes to save. Changes that allow more than now need `allowWider`."""

    changes: Annotated[tuple[CellChange, ...], Meta(max_length=1000)]
    allow_wider: bool = False


class PolicyEdited(types.EditResult, frozen=True):
    """The permissions as they are now; null after a dry run. `wider` are the changes that allow more than before."""

    policy: PolicyResult | None = None
    wider: tuple[CellChange, ...] = ()


class AuditList(types.WireStruct, frozen=True):
    """Filters for audit entries, combined with AND. A page can be short although more follow: use its `nextCursor`.

    `user` matches a person's actions, requests and decisions. `from` is included and `to` is not; both are
    in milliseconds since 1970.
    """

    limit: Page = 100
    cursor: str | None = None
    agent_id: str | None = None
    tool: str | None = None
    level: Literal["info", "warn", "error"] | None = None
    run_id: str | None = None
    user: str | None = None
    since: int | None = field(default=None, name="from")
    to: int | None = None


class AuditPage(types.WireStruct, frozen=True):
    entries: tuple[types.AuditShape, ...]
    next_cursor: str | None = None


class AuditVerified(types.WireStruct, frozen=True):
    """Result of the verification: the number of entries, the first `broken` entry, and a `problem` that explains it.

    Entries from `signedFrom` on are signed with a key outside the database. `head` is the entry of the signed head: it
    proves that no entry up to it is missing.
    """

    rows: int
    broken: int | None = None
    problem: str | None = None
    signed_from: int | None = None
    head: int | None = None


class UsageSummary(types.WireStruct, frozen=True):
    """A range of days, both included, and the grouping key; `byDay` returns one sum per day.

    By session, the sessions with the most tokens are returned, up to `limit`. With `sessionKey`, only the usage of one
    session.
    """

    since: Day | None = field(default=None, name="from")
    to: Day | None = None
    group_by: Literal["agent", "model", "session", "day"] = "agent"
    by_day: bool = False
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    session_key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class UsageSum(types.WireStruct, frozen=True):
    """The sum of one group, per day if requested."""

    name: str
    turns: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost_microcents: int
    day: str = ""
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    saved_microcents: int = 0
    """Savings by the vendors' caches; negative if writing to them cost more."""


class UsageResult(types.WireStruct, frozen=True):
    """The sums. `complete` is false if there are more sessions than the limit."""

    rows: tuple[UsageSum, ...]
    complete: bool = True


class UsageTools(types.WireStruct, frozen=True):
    """A range of days, both included, and the most rows of a page, which contains whole days, latest first."""

    since: Day | None = field(default=None, name="from")
    to: Day | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 5_000
    cursor: Day | None = None


class ToolUse(types.WireStruct, frozen=True):
    """The number of calls of one tool on one day, from the audit log."""

    name: str
    day: str
    calls: int
    failed: int
    duration_ms: float


class ToolsUsed(types.WireStruct, frozen=True):
    rows: tuple[ToolUse, ...]
    next_cursor: str | None = None


class ConfigResult(types.WireStruct, frozen=True):
    """The effective settings, without secrets."""

    config: dict[str, Any]


class TokenMade(types.WireStruct, frozen=True):
    """The file that contains the new token; the token itself is not sent."""

    path: str


class DeviceShape(types.WireStruct, frozen=True):
    """A signed-in browser, or an app. `current` is the one that asks. Times are milliseconds since 1970."""

    id: str
    name: str
    created_at: int
    seen_at: int
    expires_at: int
    current: bool


class DevicesResult(types.WireStruct, frozen=True):
    """The signed-in browsers and the apps of the caller, most recently used first."""

    devices: tuple[DeviceShape, ...]


class OneDevice(types.WireStruct, frozen=True):
    """Identifies a signed-in browser or an app."""

    id: str


class TokenShape(types.WireStruct, frozen=True):
    """An access token without its value. The main token has all scopes and can only be replaced."""

    name: str
    user: str
    scopes: tuple[types.Scope, ...]
    sessions: Literal["own", "all"]
    role: str = ""
    main: bool = False


class TokensResult(types.WireStruct, frozen=True):
    tokens: tuple[TokenShape, ...]


class TokensCreate(types.WireStruct, frozen=True):
    """The name and the rights of a new token. It belongs to the user of the same name unless `user` is another one."""

    name: TokenName
    scopes: Annotated[tuple[types.Scope, ...], Meta(min_length=1, max_length=4)]
    sessions: Literal["own", "all"] = "own"
    role: Annotated[str, Meta(max_length=64)] = ""
    user: Annotated[str, Meta(pattern="^[a-z0-9_-]{0,64}$")] = ""
    dry_run: bool = False
    """Dry run: only return the changes."""


class TokenCreated(types.WireStruct, frozen=True):
    """The new token with its value, which is not stored and cannot be shown again; a dry run makes none."""

    token: TokenShape
    secret: str
    diff: str = ""


class TokensRevoke(types.WireStruct, frozen=True):
    """Identifies a token."""

    name: TokenName
    dry_run: bool = False
    """Dry run: only return the changes."""


class UserShape(types.WireStruct, frozen=True):
    """A user. `lastActive` is the time of their last turn, `invitedUntil` the end of an open invitation, both in
    milliseconds since 1970. `invitedScopes` is what its token may do."""

    name: str
    role: str
    status: Literal["active", "invited", "suspended"]
    last_active: int | None = None
    version: str | None = None
    changed_by: str = ""
    changed_at: int | None = None
    invited_until: int | None = None
    invited_scopes: tuple[types.Scope, ...] = ()


class UsersResult(types.WireStruct, frozen=True):
    users: tuple[UserShape, ...]


class UsersPut(types.WireStruct, frozen=True):
    """Create or update a user."""

    name: Name
    role: Annotated[str, Meta(min_length=1, max_length=64)] = "member"
    status: Literal["active", "invited", "suspended"] = "active"
    expected_version: ExpectedVersion = UNSET
    dry_run: bool = False
    """Dry run: only return the changes."""


class UserResult(types.WireStruct, frozen=True):
    """A user as saved, or as a dry run would save it."""

    user: UserShape
    diff: str = ""
    warnings: tuple[str, ...] = ()


class UsersRemove(types.WireStruct, frozen=True):
    """Identifies a user."""

    name: Name
    dry_run: bool = False
    """Dry run: only return the changes."""


class UsersInvite(types.WireStruct, frozen=True):
    """The user to invite, what their token may do, and for how many days the invitation is valid.

    Omitted fields stay as they are for an invited user. For a new one they are `member`, `read` and `write`, `own`
    and 7.
    """

    name: Name
    role: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    scopes: Annotated[tuple[types.Scope, ...], Meta(min_length=1, max_length=4)] | None = None
    sessions: Literal["own", "all"] | None = None
    days: Annotated[int, Meta(ge=1, le=90)] | None = None
    dry_run: bool = False
    """Dry run: only return the changes."""


class UserInvited(types.WireStruct, frozen=True):
    """The invited user, and the code that makes their token once. It is not stored and cannot be shown again.

    `path` is what a browser opens on the gateway. A dry run makes no code.
    """

    user: UserShape
    code: str = ""
    path: str = ""
    diff: str = ""
    warnings: tuple[str, ...] = ()


class PlanShape(types.WireStruct, frozen=True):
    """Quotas of a plan: tokens per month, agents, bytes, users; null means unlimited."""

    name: str
    tokens: int | None = None
    agents: int | None = None
    storage: int | None = None
    seats: int | None = None
    version: str | None = None


class PlansResult(types.WireStruct, frozen=True):
    plans: tuple[PlanShape, ...]


class PlansPut(types.WireStruct, frozen=True):
    """Create or update a plan."""

    name: Name
    tokens: Count | None = None
    agents: Count | None = None
    storage: Count | None = None
    seats: Count | None = None
    expected_version: ExpectedVersion = UNSET
    dry_run: bool = False
    """Dry run: only return the changes."""


class PlanResult(types.WireStruct, frozen=True):
    """A plan as saved, or as a dry run would save it. `warnings` name the limits that are exceeded already."""

    plan: PlanShape
    diff: str = ""
    warnings: tuple[str, ...] = ()


class TenantResult(types.WireStruct, frozen=True):
    """The tenant of this gateway, its plan and its usage."""

    tenant: str
    plan: PlanShape
    tokens: int
    storage: int
    agents: int
    seats: int
    diff: str = ""
    warnings: tuple[str, ...] = ()


class TenantsUpdate(types.WireStruct, frozen=True):
    """Switch the tenant to another plan."""

    plan: Name
    dry_run: bool = False
    """Dry run: only return the changes."""


class TenantsResult(types.WireStruct, frozen=True):
    """The tenants registered in this store."""

    tenants: tuple[str, ...]


class ToolsInvoke(types.WireStruct, frozen=True):
    """The agent, the tool and its arguments. Repeating an idempotency key returns the result of the first call."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    arguments: dict[str, Any] = {}
    agent_id: str | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    traceparent: types.Traceparent | None = None
    tracestate: types.Tracestate | None = None


class McpOAuthShape(types.WireStruct, frozen=True):
    """An OAuth client that was registered beforehand, and the port of its redirect URI."""

    client_id: str
    client_secret: str = ""
    callback_port: int = 0


class McpEntryShape(types.WireStruct, frozen=True):
    """Configuration of an MCP server: its command or URL.

    Values of `env` and `headers` and a client secret that are no `${VARIABLE}` are secrets: they are stored in the
    secret file and shown as `••••`, which keeps the stored value when it is sent back.
    """

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    url: str = ""
    headers: dict[str, str] = {}
    oauth: McpOAuthShape | None = None
    description: str = ""
    network: bool = False
    folders: dict[str, Literal["read", "write"]] = {}
    confirm: bool = True
    disabled: bool = False


McpStatus: TypeAlias = Literal[
    "not-approved", "changed", "disabled", "signing-in", "needs-sign-in", "unreachable", "running", "ready"
]


class McpServerShape(types.WireStruct, frozen=True):
    """An MCP server: whether it is enabled, its approved tools, and the connection error if there is one.

    Only clients with the scope `admin` receive `entry` and its version. `agents` may use its tools. `login_url` is the
    page that a person who is signing in must open now.
    """

    name: str
    state: str
    tools: tuple[str, ...] = ()
    trouble: str = ""
    status: McpStatus = "not-approved"
    changes: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    has_login: bool = False
    login_url: str = ""
    entry: McpEntryShape | None = None
    version: str | None = None
    changed_by: str = ""
    changed_at: int | None = None


class McpServersResult(types.WireStruct, frozen=True):
    """The MCP servers of the workspace. `trouble` says why none of them can be used."""

    servers: tuple[McpServerShape, ...] = ()
    trouble: str = ""


class PairedPerson(types.WireStruct, frozen=True):
    """A person that may use a channel; `since` is in milliseconds since 1970."""

    id: str
    name: str
    username: str = ""
    since: int = 0


class ChannelShape(types.WireStruct, frozen=True):
    """A channel through which people reach the agents. `source` tells where its bot token is set."""

    id: Literal["telegram"]
    source: Literal["", "settings", "stored"] = ""
    running: bool = False
    bot: str = ""
    trouble: str = ""
    paired: tuple[PairedPerson, ...] = ()


class ChannelsResult(types.WireStruct, frozen=True):
    channels: tuple[ChannelShape, ...]


class ChannelsPut(types.WireStruct, frozen=True):
    """The bot token of a channel, which is stored in the secret file; an empty one removes it."""

    id: Literal["telegram"]
    token: Annotated[str, Meta(max_length=200, pattern=r"^\S*$")]
    dry_run: bool = False
    """Dry run: only return the changes."""


class ChannelsTest(types.WireStruct, frozen=True):
    """Test a bot token before it is stored; without one, the token that is in use."""

    id: Literal["telegram"]
    token: Annotated[str, Meta(max_length=200, pattern=r"^\S*$")] | None = None


class ChannelTested(types.WireStruct, frozen=True):
    """The user name of the bot, or why the token does not work."""

    ok: bool
    bot: str = ""
    error: str = ""


class ChannelResult(types.WireStruct, frozen=True):
    """The current state of a channel. `warnings` describe the effects of the change."""

    channel: ChannelShape
    diff: str = ""
    warnings: tuple[str, ...] = ()


class ChannelsPair(types.WireStruct, frozen=True):
    """Pairing code that the bot sent to a person."""

    id: Literal["telegram"]
    code: Annotated[str, Meta(min_length=1, max_length=40)]


class PersonResult(types.WireStruct, frozen=True):
    person: PairedPerson


class ChannelsUnpair(types.WireStruct, frozen=True):
    """The person who may no longer use a channel."""

    id: Literal["telegram"]
    person: Annotated[str, Meta(min_length=1, max_length=40)]
    dry_run: bool = False
    """Dry run: only return the changes."""


McpName = Annotated[str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")]


class McpPut(types.EditParams, frozen=True, kw_only=True):
    """The entry of an MCP server to add or change. Nothing is started."""

    name: McpName
    entry: McpEntryShape


class McpRemove(types.EditParams, frozen=True, kw_only=True):
    """The MCP server to remove, with its approval, its login and its secrets."""

    name: McpName


class McpServerResult(types.EditResult, frozen=True, kw_only=True):
    server: McpServerShape | None = None


class OneMcpServer(types.WireStruct, frozen=True):
    """Identifies an MCP server."""

    name: McpName


class McpInspect(types.WireStruct, frozen=True):
    """Describe what would run. With the digest `program` from that description, start it and list its tools."""

    name: McpName
    program: str | None = None


class McpToolShape(types.WireStruct, frozen=True):
    """A tool as its server describes it, with invisible characters shown, compared with the approved one.

    `problem` tells why it cannot be offered to agents.
    """

    name: str
    description: str
    schema: str
    digest: str
    change: Literal["new", "changed", "same"]
    diff: str = ""
    problem: str = ""


class McpInspection(types.WireStruct, frozen=True):
    """The program of a server: the exact command or URL, and its access rights. `program` identifies all of this.

    `tools` is null until the server was started; `removed` are approved tools that it no longer offers.
    """

    name: str
    command: str
    details: tuple[str, ...]
    program: str
    tools: tuple[McpToolShape, ...] | None = None
    removed: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    """Tools with invisible characters."""


class McpApprovedTool(types.WireStruct, frozen=True):
    """A tool exactly as it was shown."""

    name: str
    digest: str


class McpApprove(types.WireStruct, frozen=True):
    """Approve a server to run a program, and these of its tools. Earlier approvals of it are replaced."""

    name: McpName
    program: str
    tools: Annotated[tuple[McpApprovedTool, ...], Meta(min_length=1, max_length=1000)]


class McpLogin(types.WireStruct, frozen=True):
    """The page on which a person logs in; empty if the server needs no login."""

    url: str


class McpCatalogEntry(types.WireStruct, frozen=True):
    """A well-known MCP server. `needs` lists the fields that a person must fill in."""

    name: str
    title: str
    entry: McpEntryShape
    needs: tuple[str, ...] = ()


class McpCatalog(types.WireStruct, frozen=True):
    servers: tuple[McpCatalogEntry, ...]


class Called(types.WireStruct, frozen=True):
    """The result of a tool call; `unknown` if it may or may not have taken effect."""

    run_id: str
    status: Literal["ok", "error", "unknown"]
    result: Any
    error: str | None = None
