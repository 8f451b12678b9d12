"""Governance shared by all runs of an Atlas, and the scope in which the tool calls of one run execute."""

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from atlas_agents.core.aio import BackgroundTasks, Clock
from atlas_agents.core.budgets import Budget, BudgetBook, SharedLimits, TurnBudget
from atlas_agents.core.events import Event, ToolAnswered, ToolCalled, Usage
from atlas_agents.core.messages import Conversation, Message, ToolCall, ToolResult
from atlas_agents.core.metadata import Metadata
from atlas_agents.core.store import NO_CHAIN, Chain
from atlas_agents.core.telemetry import Telemetry, TurnTrace
from atlas_agents.core.tenancy import DEFAULT_DELEGATION, Delegation, TeamServices
from atlas_agents.tools.approvals import Approvals, ApprovalStore
from atlas_agents.tools.audit import AuditLog
from atlas_agents.tools.journal import HookAction, HookRecord, Journal
from atlas_agents.tools.limits import Limiter, RepeatDetector, Slots
from atlas_agents.tools.policy import Actor, Policy, Verdict, WhenTainted
from atlas_agents.tools.redact import Redactor
from atlas_agents.tools.tool import Tool
from atlas_agents.tools.worker_pool import Workers

if TYPE_CHECKING:
    from atlas_agents.tools.client_tools import ClientCalls
    from atlas_agents.tools.registry import ToolSearch


class Governance(msgspec.Struct, kw_only=True, eq=False):
    """The policy, approvals, limits and audit log that apply to every tool call of an Atlas.

    All runs share one instance. The policy may be replaced while runs are in progress.
    """

    clock: Clock
    workers: Workers
    approvals: Approvals
    limiter: Limiter
    audit: AuditLog
    redactor: Redactor
    budgets: BudgetBook
    telemetry: Telemetry
    policy: Policy | None = None
    retries: tuple[float, ...] = (1.0, 3.0, 9.0)
    team_services: TeamServices | None = None
    delegation: Delegation = DEFAULT_DELEGATION
    _tasks: BackgroundTasks = msgspec.field(default_factory=partial(BackgroundTasks, "governance"))

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in a background task that outlives the turn it belongs to."""
        self._tasks.spawn(work)

    async def drain(self, seconds: float) -> None:
        """Wait up to `seconds` for the background tasks of the current event loop."""
        await self._tasks.wait(seconds)

    @property
    def policy_version(self) -> str:
        """Version of the policy; an approval given under one version is not valid under another."""
        return self.policy.version if self.policy else ""

    def verdict(self, tool: Tool, actor: Actor) -> Verdict:
        """Decide whether an actor may call a tool.

        Without a policy, giving a tool to an agent is the grant, unless the tool names permissions.
        """
        if self.policy is not None:
            return self.policy.verdict(tool.name, actor, needs=tool.permissions, acts=_acts(tool))
        if tool.permissions:
            return Verdict("no", f"it requires {', '.join(tool.permissions)}, and no policy grants that")
        return _GRANTED

    def select_permitted(self, tools: Iterable[Tool], actor: Actor) -> list[Tool]:
        """Return the tools that an actor may call, or may ask to call."""
        if self.policy is None:
            return [tool for tool in tools if not tool.permissions]
        return [tool for tool in tools if self.verdict(tool, actor).cell != "no"]

    def when_tainted(self, tool: Tool, actor: Actor, *, sends: bool) -> WhenTainted:
        """Return the handling of a call once the session contains untrusted content: the policy decides, else the tool.

        `sends` is True if this call sends data out.
        """
        default: WhenTainted = "ask" if sends else "allow"
        policy, acts = self.policy, sends or _acts(tool)
        found = policy.when_tainted(tool.name, actor, needs=tool.permissions, acts=acts) if policy is not None else None
        return found or tool.when_tainted or default


def _acts(tool: Tool) -> bool:
    """Return whether a tool has side effects here. Client tools have none: a caller that runs one consents to it."""
    return tool.effect != "pure" and not tool.of_client


_GRANTED = Verdict("yes", "the tool was given to the agent")


class ToolHooks(Protocol):
    """Port for the hooks around tool calls; they neither raise nor exceed their time limits."""

    async def before_call(self, call: ToolCall, context: Any) -> HookRecord | None:
        """Return the decision of the hooks about a permitted call; None if they did nothing."""
        ...

    async def after_call(
        self, call: ToolCall, result: ToolResult, context: Any
    ) -> tuple[ToolResult, tuple[HookAction, ...]]:
        """Return the result as changed by the hooks, and a record of their actions."""
        ...


class BudgetServices(Protocol):
    """Port for the budgets of a turn, and the limits that it shares with others."""

    def open_budget(self, scope: "ToolScope", *, forced: bool = False) -> TurnBudget | None:
        """Return the budgets of a turn; None if nothing limits it, unless `forced`."""
        ...

    async def load_limits(self, journal: Journal | None, chain: Chain) -> SharedLimits:
        """Return the token plan of the tenant, and the limits of the turn that started a delegation."""
        ...


class ToolScope:
    """The tools of one run, the actor that calls them, and the governance, journal and limits that apply.

    `conversation` is also the session by which limits and approvals are counted. With `asks=False` a call that needs
    an approval is refused unless it already has one. `inherited` are messages of the agent's context.
    """

    __slots__ = (
        *("_budgets", "_inherited", "_slots", "_visible", "_visible_under", "own_budgets"),
        *(
            "actor",
            "agent",
            "asks",
            "budget",
            "chain",
            "conversation",
            "count_usage",
            "delegation",
            "durations",
            "emit",
            "governance",
            "journal",
        ),
        *(
            "client",
            "context",
            "deps",
            "has_chosen",
            "hooks",
            "metadata",
            "repeats",
            "run_id",
            "search",
            "tools",
            "trace",
        ),
    )

    def __init__(
        self,
        governance: Governance,
        *,
        run_id: str,
        agent: Any,
        actor: Actor,
        tools: Mapping[str, Tool],
        conversation: Conversation,
        metadata: Metadata,
        emit: Callable[[Event], None],
        count_usage: Callable[[str, Usage], Usage],
        budgets: "BudgetServices",
        trace: TurnTrace,
        own_budgets: tuple[Budget, ...] = (),
        journal: Journal | None = None,
        asks: bool = True,
        chain: Chain = NO_CHAIN,
        delegation: Delegation | None = None,
        inherited: Sequence[Message] = (),
        deps: Any = None,
        hooks: ToolHooks | None = None,
        context: Any = None,
        search: "ToolSearch | None" = None,
        client: "ClientCalls | None" = None,
    ) -> None:
        self.journal, self.search, self.client = journal, search, client
        """`client` are the tools of the turn that its caller runs; None if there are none."""
        self.hooks, self.context = hooks, context
        """The hooks around tool calls, None if there are none; and the context of the turn, which they receive."""
        self.deps = deps
        """Value that the caller passed for tools, rules and prompts; neither sent to a model nor stored."""
        self.budget: TurnBudget | None = None
        """The budgets of the turn, once it is open; None if nothing limits it."""
        self._budgets, self.own_budgets = budgets, own_budgets
        """`own_budgets` were set for this turn only."""
        self._inherited = inherited
        self.asks, self.chain, self.trace = asks, chain, trace
        self.delegation = delegation or governance.delegation
        self.governance, self.run_id = governance, run_id
        self.agent, self.actor = agent, actor
        self.tools = tools
        self.conversation = conversation
        self.metadata = metadata
        self.emit = emit
        self.count_usage = count_usage
        """Adds the tokens of a model that a tool called to the turn, and returns them with their cost."""
        self.repeats: RepeatDetector | None = governance.limiter.repeat_detector()
        self._slots: Slots | None = None
        self.durations: dict[str, int] = {}
        """Milliseconds that each call took, by call id."""
        self.has_chosen = not any([tool.choices for tool in tools.values()])
        """Whether the toolset choices were made for the current agent, or there are none."""
        self._visible: list[Tool] | None = None
        self._visible_under: Policy | None = None

    def open_budget(self, *, forced: bool = False) -> TurnBudget | None:
        """Return the budgets that were set for the turn; None if there are none, unless `forced`."""
        if self.budget is None and (budget := self._budgets.open_budget(self, forced=forced)) is not None:
            self.budget = budget
            if self.journal is not None:
                self.journal.budget = budget
        return self.budget

    @property
    def may_be_limited(self) -> bool:
        """Whether a budget, a plan of the tenant or the turn that started a delegation may limit the turn."""
        return self.budget is not None or self.governance.team_services is not None

    async def refresh_budget(self) -> TurnBudget | None:
        """Return the budgets of the turn with the current plan of the tenant; None if nothing limits it."""
        plan, inherited = await self._budgets.load_limits(self.journal, self.chain)
        if self.budget is not None or plan is not None or inherited:
            budget = self.open_budget(forced=True)
            if budget is not None:
                budget.set_shared(plan, inherited)
        return self.budget

    @property
    def slots(self) -> Slots:
        """The slots for concurrent calls of the session."""
        if self._slots is None:
            self._slots = self.governance.limiter.session_slots(self.conversation.id)
        return self._slots

    @property
    def approval_store(self) -> ApprovalStore | None:
        """Store for approvals of this run; None for a run without a journal."""
        return self.journal.approvals if self.journal is not None else None

    def switch_agent(
        self,
        agent: Any,
        actor: Actor,
        tools: Mapping[str, Tool],
        context: Any,
        search: "ToolSearch | None",
        hooks: ToolHooks | None,
    ) -> None:
        """Execute further calls as another agent, with its role, its tools, its context and its hooks."""
        self.hooks = hooks
        self.agent, self.actor, self.tools, self.context, self.search = agent, actor, tools, context, search
        self._visible, self.has_chosen = None, not any([tool.choices for tool in tools.values()])

    def set_chosen_tools(self, tools: Mapping[str, Tool]) -> None:
        """Keep only these tools, which the toolset choices include in this turn."""
        self.has_chosen = True
        if len(tools) < len(self.tools):
            self.tools, self._visible = tools, None
            if self.search is not None:
                self.search.restrict(tools)
                self.tools = {**tools, self.search.tool.wire_name: self.search.tool}

    def set_tools(self, tools: Mapping[str, Tool]) -> None:
        """Replace the tools of the turn, after its caller has offered others."""
        self.tools, self._visible = tools, None

    def offered_tools(self, forced: str = "") -> list[Tool]:
        """Return the tools that the model is shown: all that it may call, or with tool search those that it found.

        `forced` is the name of a tool that it must call.
        """
        visible = self.visible_tools()
        if self.search is None:
            return visible
        return self.search.select(visible, self.conversation.messages, self.metadata, forced)

    def visible_tools(self) -> list[Tool]:
        """Return the tools that this agent may call; the model is not shown the others. Cached per policy."""
        policy = self.governance.policy
        if self._visible is None or self._visible_under is not policy:
            self._visible = self.governance.select_permitted(self.tools.values(), self.actor)
            self._visible_under = policy
        return self._visible

    def untrusted_sources(self) -> tuple[str, ...]:
        """Return the sources of untrusted content in the whole session, oldest first.

        Content that no longer fits into the context window counts as well, because later replies may repeat it.
        """
        sources = self.conversation.index.untrusted
        if not self._inherited:
            return tuple(sources)
        inherited = [source for message in self._inherited for source in message.untrusted]
        return tuple(dict.fromkeys([*inherited, *sources]))

    def runs_at_once(self, call: ToolCall) -> bool:
        """Return whether only the policy decides about calls: no hook, person, client or budget is involved."""
        if self.hooks is not None or self.client is not None or self.budget is not None or self.untrusted_sources():
            return False
        tool = self.find_tool(call)
        if tool is None:
            return False
        try:
            tool = tool.for_user(self.actor.user)
        except Exception:  # noqa: BLE001 - from a user's own function; the call is refused when it is checked
            return False
        return not tool.confirm and self.governance.verdict(tool, self.actor).cell == "yes"

    def emit_of_call(self, event: ToolCalled | ToolAnswered) -> None:
        """Emit an event of a call, once the reply that has the call is stored."""
        if self.journal is None:
            self.emit(event)
        else:
            self.journal.when_reply_stored(partial(self.emit, event))

    def find_tool(self, call: ToolCall) -> Tool | None:
        """Return the tool that a call executes, here or in the client of the turn; None if there is none."""
        tool = self.tools.get(call.name)
        return tool if tool is None or self.client is None else self.client.place(tool, call, self.actor.user)

    def display_name(self, call: ToolCall) -> str:
        """Return the tool's own name for the wire name that the model used."""
        tool = self.tools.get(call.name)
        return tool.name if tool else call.name


class Approved(msgspec.Struct, frozen=True):
    """A tool call that passed every check, with its converted arguments.

    `binding` is the hash that a person approved, if one was asked. `by_command_rule` is True if a command rule of the
    policy made asking unnecessary. `tainted` is the reason why untrusted content in the session makes asking necessary.
    `hooks` is the decision of the hooks.
    """

    call: ToolCall
    tool: Tool
    values: dict[str, Any]
    verdict: Verdict
    edited: bool = False
    binding: str = ""
    approved_by: str = ""
    by_command_rule: bool = False
    tainted: str = ""
    hooks: HookRecord | None = None
