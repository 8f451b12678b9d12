"""Agent runtime: the services that all runs of an Atlas share, and how a run is created from them."""

import logging
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from atlas_agents.agents.context import Context, DepsFactory, TurnContext
from atlas_agents.agents.history import History, RequestRecorder
from atlas_agents.agents.hooks import Interceptor, Interceptors, Subscribers, read_interceptors
from atlas_agents.agents.loop import TurnFunction, run_chain, run_rounds, run_with_output
from atlas_agents.agents.options import DEFAULT_OPTIONS, WHEN_BUSY, AgentSettings, TurnOptions
from atlas_agents.agents.output import Output
from atlas_agents.agents.plan import MAKE_PLAN, plan_tool, run_plan
from atlas_agents.agents.run import HAND_OFF, Run, SessionLock, UsageMeter, decode_options, session_lock
from atlas_agents.agents.stream import EventLog
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.approvals import Answer, Question
from atlas_agents.core.budgets import (
    Budget,
    BudgetBook,
    MemoryBudgets,
    SharedLimits,
    TokenPlan,
    TurnBudget,
    TurnIdentity,
    inherit_limits,
    outer_turn,
)
from atlas_agents.core.errors import ConfigError, NotFound, StoreError
from atlas_agents.core.events import Event, MessageStored, StateChanged
from atlas_agents.core.messages import Conversation, Message, ToolCall, new_ordered_id
from atlas_agents.core.metadata import Metadata
from atlas_agents.core.paths import Environment
from atlas_agents.core.store import BudgetLimit, Chain, RunRow, Store
from atlas_agents.core.telemetry import (
    AGENT_ID,
    AGENT_NAME,
    CONVERSATION,
    TENANT,
    OpenTelemetry,
    Telemetry,
    TurnTrace,
)
from atlas_agents.core.tenancy import DEFAULT_DELEGATION, Delegation, TeamServices
from atlas_agents.providers.base import Price, Prices, Provider, collect_keys
from atlas_agents.providers.failover import Failover, ModelHealth, Route
from atlas_agents.providers.react import React
from atlas_agents.providers.registry import Model, Registry, register_built_in
from atlas_agents.providers.testing import Scripted
from atlas_agents.tools.approvals import (
    Approvals,
    Approve,
    answer_stored_question,
    deliver_stored_answer,
    stored_pending_questions,
)
from atlas_agents.tools.audit import AuditLog, MemoryAudit, StoreAudit, StoreCounter
from atlas_agents.tools.client_tools import (
    ClientCalls,
    ClientResult,
    ClientTools,
    cancel_calls_in_memory,
    cancel_stored_calls,
    encode_client_answer,
    find_client_calls,
    post_client_results,
    stored_client_calls,
    unknown_call,
)
from atlas_agents.tools.context import SessionMetadata
from atlas_agents.tools.governance import Governance, ToolScope
from atlas_agents.tools.journal import Journal, Quarantine
from atlas_agents.tools.limits import Limiter, Limits
from atlas_agents.tools.policy import Actor, Policy
from atlas_agents.tools.redact import Redactor, find_secrets
from atlas_agents.tools.tool import Tool
from atlas_agents.tools.worker_pool import Workers

if TYPE_CHECKING:
    from atlas_agents.tools.registry import ToolSearch

logger = logging.getLogger(__name__)
R = TypeVar("R", bound="AgentRuntime")
MAX_HANDOFFS = 8
"""After this many hand-offs in one turn, the current agent has to answer."""
RESERVED_TOOLS = (HAND_OFF, MAKE_PLAN, "search_tools")
"""Names of tools that the runtime adds."""
_CLOSE_TIMEOUT = 1.0
_CANCEL_DELAYS = (0.05, 0.1, 0.2, 0.5, 1.0)
_MAX_ROOTS = 256


def _local_provider(environment: Environment) -> Provider:
    """Create the provider of local models, imported when one is first used."""
    from atlas_agents.local.provider import local_provider

    return local_provider(environment)


register_built_in("local", _local_provider)


class AgentRuntime:
    """Providers, governance, subscribers and store, shared by all turns of an Atlas or of a standalone agent.

    `find_agent` looks up the agents that a turn may be handed off to. `shared` is True if other processes run turns of
    the same store.
    """

    def __init__(
        self,
        *,
        find_agent: Callable[[str], Any],
        shared: bool = False,
        system_prompt: str = "",
        history: History | None = None,
        approve: Approve | Approvals | None = None,
        interceptors: Sequence[Interceptor] = (),
        tenant: str = "default",
        policy: Policy | None = None,
        limits: Limits | None = None,
        budgets: tuple[Budget, ...] = (),
        audit: AuditLog | None = None,
        store: Store | None = None,
        team_services: TeamServices | None = None,
        delegation: Delegation | None = None,
        retries: Sequence[float] = (1.0, 3.0, 9.0),
        registry: Registry | None = None,
        prices: Mapping[str, Price] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        make_deps: DepsFactory | None = None,
        telemetry: OpenTelemetry | None = None,
        wake: Callable[[str], Awaitable[None]] | None = None,
        create_journal: Callable[..., Journal] = Journal,
        redactor: Redactor | None = None,
    ) -> None:
        self._wake, self._new_journal = wake, create_journal
        self.find_agent = find_agent
        self.shared = shared
        self.system_prompt = system_prompt
        self.history = history or History()
        self.tenant = tenant
        self.clock = clock
        self.store = store
        self.quarantine = Quarantine()
        self.prices = Prices(prices)
        if store is not None and audit is None:
            audit = StoreAudit(store)
        redactor = redactor or Redactor()
        self.telemetry = Telemetry(telemetry, clock=clock, redact=redactor.head, find_secrets=find_secrets)
        self.governance = Governance(
            clock=clock,
            telemetry=self.telemetry,
            workers=Workers(),
            approvals=approve if isinstance(approve, Approvals) else Approvals(approve),
            limiter=Limiter(limits or Limits(), clock, StoreCounter(store) if store else None),
            audit=MemoryAudit() if audit is None else audit,
            redactor=redactor,
            budgets=BudgetBook(budgets, store or MemoryBudgets(), tenant, clock),
            policy=policy,
            retries=tuple(retries),
            team_services=team_services,
            delegation=delegation or DEFAULT_DELEGATION,
        )
        self._given_interceptors = read_interceptors(interceptors)
        self._interceptors = Interceptors(self._given_interceptors, self.governance.redactor.trace)
        self._interceptors_by_agent: weakref.WeakKeyDictionary[Any, Interceptors] = weakref.WeakKeyDictionary()
        self.subscribers = Subscribers(self.governance.redactor.trace)
        self._registry = registry
        self.request_recorder = RequestRecorder(clock, self.governance.redactor.remove_known)
        self.make_deps = make_deps
        self._root_limits: dict[str, Sequence[BudgetLimit]] = {}
        self.model_health = ModelHealth()
        self._pools: weakref.WeakKeyDictionary[Any, dict[bool, Failover]] = weakref.WeakKeyDictionary()

    def derive(self, create: Callable[..., R], **changes: Any) -> R:
        """Create a runtime with the same agents, prompts, hooks, policy, limits, budgets and models, and these changes.

        Counters of limits and budgets start at zero, unless the changes have the same store.
        """
        options: dict[str, Any] = {
            "find_agent": self.find_agent,
            "system_prompt": self.system_prompt,
            "history": self.history,
            "interceptors": self._given_interceptors,
            "tenant": self.tenant,
            "policy": self.governance.policy,
            "limits": self.governance.limiter.limits,
            "budgets": self.governance.budgets.budgets,
            "delegation": self.governance.delegation,
            "registry": self.registry,
            "make_deps": self.make_deps,
            "redactor": self.governance.redactor,
        }
        return create(**{**options, **changes})

    def create_run(
        self,
        agent: Any,
        context: Context,
        conversation: Conversation,
        *,
        options: TurnOptions = DEFAULT_OPTIONS,
        user: str = "",
        lock: SessionLock | None = None,
        inherited_messages: Sequence[Message] | None = None,
        log: EventLog | None = None,
        id: str | None = None,
        durable: bool = False,
        row: RunRow | None = None,
        own_metadata: bool = True,
        delegation: Delegation | None = None,
    ) -> Run:
        """Create a run without starting it; raises at once if the model or its key is missing.

        `row` is that of an earlier accepted run to resume. With `durable`, the run is journaled if there is a store.
        Metadata set by tools and rules belongs to the session, or without `own_metadata` to the context. `delegation`
        are the limits of the turn that asked for this one, in place of the runtime's own.
        """
        if not isinstance(cast(object, user), str):
            raise ConfigError(f"invalid user {user!r}: expected a name, or '' for no user")
        run_id = id or new_ordered_id()
        if row is None and (found := self.telemetry.incoming(options.traceparent or "")):
            options = msgspec.structs.replace(options, traceparent=found)
        inherited = context.messages if inherited_messages is None else inherited_messages
        metadata = context.metadata
        if own_metadata:
            stored, turn = durable and self.store is not None, options.metadata or {}
            metadata = SessionMetadata(metadata, conversation.metadata, stored=stored, turn=turn)
        settings = self._settings_of(agent, options)
        emit, meter = self._emitter(log), UsageMeter(self.prices)
        actor = Actor(settings.id, settings.role, user, self.tenant)
        tools, search, client = self._tools_of_turn(context.tool_map(), settings, options, actor)
        context = TurnContext(
            context, conversation, metadata=metadata, user=user, agent_id=agent.id, run_id=run_id, deps=options.deps
        )
        interceptors = self._interceptors_of(agent)
        scope = ToolScope(
            self.governance,
            run_id=run_id,
            agent=agent,
            actor=actor,
            tools=tools,
            search=search,
            client=client,
            conversation=conversation,
            metadata=metadata,
            deps=options.deps,
            emit=emit,
            count_usage=meter.add,
            budgets=self,
            own_budgets=options.budget or (),
            trace=self._create_trace(run_id, settings, conversation, options, row),
            journal=self._create_journal(run_id, conversation, emit, row, metadata) if durable else None,
            asks=options.asks,
            chain=options.chain,
            delegation=delegation,
            inherited=inherited,
            hooks=interceptors.tool_hooks,
            context=context,
        )
        return Run(
            id=run_id,
            settings=settings,
            context=context,
            conversation=conversation,
            lock=lock or session_lock(conversation),
            inherited_messages=inherited,
            provider=self._provider_of_turn(agent, settings, options),
            scope=scope,
            emit=emit,
            interceptors=interceptors,
            output=Output(options.output) if options.output is not None else None,
            meter=meter,
            options=options,
            services=self,
            resumed=row is not None,
        )

    def _tools_of_turn(
        self, own: Mapping[str, Tool], settings: AgentSettings, options: TurnOptions, actor: Actor
    ) -> "tuple[Mapping[str, Tool], ToolSearch | None, ClientCalls | None]":
        """Return the tools of a turn, with their search if there are many, and those of them that the caller runs."""
        tools, search = own, None
        others = options.team.hands_to or settings.hands_off_to
        if not options.call and (others or settings.tool_search is not None or settings.mode == "plan"):
            tools, search = self._collect_tools(own, settings, others, actor)
        if options.client_tools is msgspec.UNSET:
            return tools, search, None
        client = ClientCalls(options.client_tools)
        return client.add_to(tools), search, client

    def _provider_of_turn(self, agent: Any, settings: AgentSettings, options: TurnOptions) -> Provider:
        if options.call:
            return Scripted()
        return self.failover_for(agent, settings, options.model).for_turn(self.clock)

    def _create_trace(
        self, run_id: str, settings: AgentSettings, conversation: Conversation, options: TurnOptions, row: RunRow | None
    ) -> TurnTrace:
        attributes: dict[str, Any] | None = None
        if self.telemetry.otel is not None:
            attributes = {
                AGENT_ID: settings.id,
                AGENT_NAME: settings.name or settings.id,
                CONVERSATION: conversation.id,
                TENANT: self.tenant,
            }
        return TurnTrace(
            self.telemetry,
            run_id,
            parent=options.traceparent or "",
            root=options.chain.root,
            at=row.created_at / 1000 if row is not None else None,
            attributes=attributes,
        )

    def _interceptors_of(self, agent: Any) -> Interceptors:
        """Return the interceptors of the Atlas, followed by the agent's own."""
        if not agent.interceptors:
            return self._interceptors
        found = self._interceptors_by_agent.get(agent)
        if found is None:
            both = (*self._given_interceptors, *agent.interceptors)
            found = self._interceptors_by_agent[agent] = Interceptors(both, self.governance.redactor.trace)
        return found

    def _settings_of(self, agent: Any, options: TurnOptions) -> AgentSettings:
        """Return the agent's settings with those of the turn. The headers may hold keys, so they are redacted."""
        settings = _settings_for(agent.settings, options)
        if headers := settings.model_settings.extra_headers:
            self.governance.redactor.add_secrets(*headers.values())
        return settings

    def open_budget(self, scope: ToolScope, *, forced: bool = False) -> TurnBudget | None:
        """Return the budgets of a turn; None if nothing limits it, unless `forced`."""
        book, own = self.governance.budgets, scope.agent.settings.budget + scope.own_budgets
        if not (forced or book.budgets or own or outer_turn.get()):
            return None
        turn = TurnIdentity(scope.run_id, scope.conversation.id, scope.actor.agent_id, scope.actor.user)
        return book.open_turn(turn, own, commit=scope.journal.commit if scope.journal is not None else None)

    async def load_limits(self, journal: Journal | None, chain: Chain) -> SharedLimits:
        """Return the token plan of the tenant, and the limits of the turn that started a delegation."""
        services, inherited = self.governance.team_services, ()
        if services is None:
            return None, ()
        read = services.tenancy.plan
        plan = await (read() if journal is None else journal.read_with_retry(read))
        if chain.root:
            read_root = partial(self._limits_of_root, chain.root)
            inherited = await (read_root() if journal is None else journal.read_with_retry(read_root))
        return TokenPlan(plan.name, plan.tokens) if plan.tokens is not None else None, inherited

    async def _limits_of_root(self, root: str) -> Sequence[BudgetLimit]:
        """Return the limits of the turn that started a delegation: usage of all delegated turns counts against them."""
        if root not in self._root_limits:
            if len(self._root_limits) > _MAX_ROOTS:
                self._root_limits.clear()
            self._root_limits[root] = await self._read_root(root)
        return self._root_limits[root]

    async def _read_root(self, root: str) -> Sequence[BudgetLimit]:
        row = await self.store.run(self.tenant, root) if self.store is not None else None
        if row is None:
            return ()
        agent, options = self.find_agent(row.agent_id), decode_options(row)
        found = (*(agent.settings.budget if agent is not None else ()), *(options.budget or ()))
        return inherit_limits(root, (*self.governance.budgets.budgets, *found))

    def switch_agent(self, run: Run, agent_id: str) -> None:
        """Continue a run with the prompt, model, tools and role of another agent."""
        agent = self.find_agent(agent_id)
        if agent is None or agent_id == run.settings.id:
            return
        settings, context = _with_model_settings(agent.settings, run.options), agent.context
        if run.scope.budget is not None:
            run.scope.budget.switch_agent(agent_id, run.settings.budget, settings.budget)
        run.settings, run.inherited_messages = settings, context.messages
        run.context = run.context.switch_agent(context, agent_id)
        run.provider = self.failover_for(agent, settings).for_turn(self.clock)
        others = settings.hands_off_to if run.handoffs + 1 < MAX_HANDOFFS else ()
        actor = Actor(settings.id, settings.role, run.scope.actor.user, self.tenant)
        tools, search = self._collect_tools(context.tool_map(), settings, others, actor)
        if run.scope.client is not None:
            tools = run.scope.client.add_to(tools)
        run.interceptors = self._interceptors_of(agent)
        run.scope.switch_agent(agent, actor, tools, run.context, search, run.interceptors.tool_hooks)

    def _collect_tools(
        self, own: Mapping[str, Tool], settings: AgentSettings, others: Sequence[str], actor: Actor
    ) -> "tuple[Mapping[str, Tool], ToolSearch | None]":
        """Return the agent's own tools, and those that its mode, its hand-off targets and tool search add."""
        tools = own
        search: ToolSearch | None = None
        if settings.tool_search is not None and len(own) > settings.tool_search:
            search = self._create_search(own, settings, settings.tool_search, actor)
            tools = {**tools, search.tool.wire_name: search.tool}
        if settings.mode == "plan":
            tools = {**tools, plan_tool().wire_name: plan_tool()}
        found = [agent.settings for each in others if each != settings.id and (agent := self.find_agent(each))]
        return {**tools, HAND_OFF: hand_off_tool(found)} if found else tools, search

    def _create_search(
        self, tools: Mapping[str, Tool], settings: AgentSettings, above: int, actor: Actor
    ) -> "ToolSearch":
        from atlas_agents.tools.registry import SEARCH_TOOLS, ToolSearch  # only for agents with many tools

        if SEARCH_TOOLS in tools:
            raise ConfigError(
                f"agent {settings.id!r} has a tool named {SEARCH_TOOLS!r}, which tool_search adds: rename it, or set "
                "tool_search=None"
            )
        verdict = self.governance.verdict
        return ToolSearch(above, tools, lambda: [tool for tool in tools.values() if verdict(tool, actor).cell != "no"])

    def _create_journal(
        self,
        run_id: str,
        conversation: Conversation,
        emit: Callable[[Event], None],
        row: RunRow | None,
        metadata: Metadata,
    ) -> Journal | None:
        if self.store is None:
            return None

        def on_stored(message: Message) -> None:
            emit(MessageStored(run_id, message))

        def on_state(state: Any) -> None:
            emit(StateChanged(run_id, state))

        return self._new_journal(
            self.store,
            self.tenant,
            run_id,
            conversation.id,
            row=row,
            on_stored=on_stored,
            on_state=on_state,
            clock=self.clock,
            shared=self.shared,
            quarantine=self.quarantine,
            metadata=metadata if isinstance(metadata, SessionMetadata) else None,
        )

    async def answer(self, approval_id: str, answer: Answer) -> Question:
        """Persist an answer, then deliver it to the waiting run, if that is in this process."""
        approvals = self.governance.approvals
        if self.store is None:
            question = next((each for each in approvals.pending if each.id == approval_id), None)
            if question is None or not approvals.deliver(approval_id, answer):
                raise NotFound(f"not found: open approval {approval_id!r}")
            return question
        return await answer_stored_question(self.store, self.tenant, approvals, approval_id, answer, self.clock)

    async def deliver_answer(self, approval_id: str) -> None:
        """Deliver a stored answer to the run that waits for it in this process."""
        if self.store is not None:
            await deliver_stored_answer(self.store, self.tenant, self.governance.approvals, approval_id)

    async def post_results(
        self, results: Sequence[ClientResult], user: str, offer: ClientTools | None
    ) -> list[Question]:
        """Persist results of client tools, then deliver them to the waiting run, wherever it is."""
        posted = {each.call_id: encode_client_answer(each, user, offer) for each in results}
        approvals = self.governance.approvals
        if self.store is not None:
            questions = await post_client_results(self.store, self.tenant, approvals, posted, self.clock)
            for id in posted:
                await self._wake_run(id)
            return questions
        waiting = {question.id: question for question in approvals.waiting if question.kind == "client_tool"}
        for id in posted:
            if id not in waiting or waiting[id].asked_by != user:
                raise unknown_call(id)
        for id, answer in posted.items():
            approvals.deliver(id, answer)
        return [waiting[id] for id in posted]

    async def find_client_calls(self, ids: Sequence[str], user: str) -> list[Question]:
        """Return stored calls of client tools by their ids; raises NotFound if one is unknown or of another user."""
        if self.store is None:
            raise unknown_call(ids[0])
        return await find_client_calls(self.store, self.tenant, ids, user)

    async def cancel_client_calls(self, session: str) -> None:
        """End the wait of a session's turn for results of its client, because a new message was sent.

        The message is already accepted, so this retries for a short time if the store is unavailable.
        """
        approvals, sent_at = self.governance.approvals, self.clock.time()
        if self.store is None:
            cancel_calls_in_memory(approvals, session)
            return
        for pause in (*_CANCEL_DELAYS, None):
            try:
                for id in await cancel_stored_calls(self.store, self.tenant, approvals, session, sent_at):
                    await self._wake_run(id)
                return
            except StoreError as error:
                if pause is None:
                    logger.warning("tool calls of a client not cancelled: session=%s error=%s", session, error)
                    return
                await self.clock.sleep(pause)

    async def _wake_run(self, question_id: str) -> None:
        if self._wake is not None:
            await self._wake(question_id)

    async def pending_client_calls(self, session: str) -> list[Question]:
        """Return the calls of a session that wait for results of its client, oldest first."""
        if self.store is not None:
            return await stored_client_calls(self.store, self.tenant, session)
        waiting = self.governance.approvals.waiting
        return [each for each in waiting if each.kind == "client_tool" and each.session == session]

    async def pending_approvals(self) -> list[Question]:
        if self.store is None:
            return self.governance.approvals.pending
        return await stored_pending_questions(self.store, self.tenant, self.governance.approvals, self.clock)

    async def close(self) -> None:
        """Close connections and worker processes; they are opened again when needed."""
        await self.subscribers.close()
        await self.governance.drain(_CLOSE_TIMEOUT)
        await self.governance.workers.close()
        providers = [
            route.provider for pools in self._pools.values() for pool in pools.values() for route in pool.routes
        ]
        for provider in providers:
            close: Callable[[], Awaitable[None]] | None = getattr(provider, "close", None)
            if close is not None:
                await close()

    def _emitter(self, log: EventLog | None) -> Callable[[Event], None]:
        if log is None:
            return self.subscribers.publish
        log.publish = self.subscribers.publish
        return log.emit

    def failover_for(self, agent: Any, settings: AgentSettings, model: Model = "") -> Failover:
        """Return the models of an agent, or the single model that replaces them for one turn."""
        if model:
            route = self._route(model, settings)
            self._keep_keys(route)
            return Failover([route], settings.retry, health=self.model_health)
        as_text = settings.mode == "react"
        pools = self._pools.get(agent)
        if pools is None:
            pools = self._pools[agent] = {}
        pool = pools.get(as_text)
        if pool is None:
            models = settings.models or (self._default_model(settings.id),)
            routes = [self._route(model, settings) for model in models]
            pool = Failover(routes, settings.retry, health=self.model_health)
            pools[as_text] = pool
            for route in pool.routes:
                self._keep_keys(route)
        return pool

    async def ask_beside(self, run: Run, provider: Provider, prompt: str, system: str) -> str:
        """Ask a model a question outside the conversation; the usage counts as usage of the turn."""
        from atlas_agents.agents.compaction import ask_beside  # rarely needed

        return await ask_beside(run, provider, prompt, system)

    def _keep_keys(self, route: Route) -> None:
        """Register the keys of a provider for redaction."""
        self.governance.redactor.add_secrets(*[key.reveal() for key in collect_keys(route.provider)])

    def _route(self, model: Model, settings: AgentSettings) -> Route:
        """Resolve a model; a model without native tool calls, or in ReAct mode, gets its tools as text."""
        route = self.registry.route(model)
        if settings.mode == "react" or not route.provider.capabilities.tools:
            return Route(React(route.provider), route.model)
        return route

    @property
    def registry(self) -> Registry:
        """The provider registry; it reads the environment on first use."""
        if self._registry is None:
            self._registry = Registry()
        return self._registry

    def _default_model(self, agent_id: str) -> str:
        model = self.registry.default_model
        if model is None:
            raise ConfigError(f"agent {agent_id!r} has no model: pass model=… or set ATLAS_MODEL")
        return model


def choose_turn_function(run: Run) -> TurnFunction:
    """Choose how the turn runs from its options and its agent's mode."""
    if run.options.call:
        return run_tool_call
    execute: TurnFunction = run_plan if run.settings.mode == "plan" else run_rounds
    if run.options.team.then:
        execute = partial(run_chain, execute=execute)
    return partial(run_with_output, execute=execute) if run.output else execute


async def run_tool_call(run: Run) -> Message:
    """Run a turn that is one tool call without a model; its result is the reply."""
    call = cast(ToolCall, run.options.call)
    run.add_own(Message("assistant", (call,)))
    await run.run_tool_calls((call,))
    return run.added[-1]


def _settings_for(settings: AgentSettings, options: TurnOptions) -> AgentSettings:
    """Check the options of a turn and return the agent's settings with them applied."""
    if options.when_busy not in WHEN_BUSY:
        raise ConfigError(f"unknown when_busy {options.when_busy!r}, expected one of {', '.join(WHEN_BUSY)}")
    if options.requested is not None or options.settings is not msgspec.UNSET:
        settings = _with_model_settings(settings, options)
    if options.mode:
        settings = msgspec.structs.replace(settings, mode=options.mode)
    if options.max_rounds is not msgspec.UNSET:
        if options.max_rounds < 1:
            raise ConfigError(f"max_rounds must be at least 1, got {options.max_rounds}")
        settings = msgspec.structs.replace(settings, max_rounds=options.max_rounds)
    if options.output_retries is not msgspec.UNSET and options.output_retries < 0:
        raise ConfigError(f"output_retries must not be negative, got {options.output_retries}")
    return settings


def _with_model_settings(settings: AgentSettings, options: TurnOptions) -> AgentSettings:
    """Return the agent's settings with the model settings of a turn."""
    changed = settings.model_settings
    if options.requested is not None:
        changed = changed.fill(options.requested)
    if options.settings is not msgspec.UNSET:
        changed = changed.merge(options.settings)
    return settings if changed is settings.model_settings else msgspec.structs.replace(settings, model_settings=changed)


def hand_off_tool(targets: Sequence[AgentSettings]) -> Tool:
    """Create the tool with which an agent hands the conversation off to one of these agents."""
    lines = "\n".join(f"- {each.id}: {each.description or each.name}" for each in targets)
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "agent": {"type": "string", "enum": [each.id for each in targets]},
            "note": {"type": "string", "maxLength": 2000, "description": "What the other agent should know."},
        },
        "required": ["agent"],
        "additionalProperties": False,
    }
    split = "For a request with parts for several agents, call it once for each: you then join their answers."
    several = f" {split}" if len(targets) > 1 else ""
    description = f"Hand the conversation off to another agent, which answers instead of you.{several}\n{lines}"
    return Tool(HAND_OFF, _hand_off, description=description, parameters=schema, effect="pure")


async def _hand_off(agent: str, note: str = "") -> dict[str, str]:
    return {"handed_to": agent, "note": note} if note else {"handed_to": agent}
