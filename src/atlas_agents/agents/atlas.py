"""Atlas: the entry point of the library. `ask` returns an answer, `send` a stream, `run` a full result."""

import asyncio
import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, cast

import msgspec

from atlas_agents.agents import runner
from atlas_agents.agents.agent import Agent
from atlas_agents.agents.context import DepsFactory
from atlas_agents.agents.history import History
from atlas_agents.agents.hooks import MAX_QUEUE, Interceptor, Listener
from atlas_agents.agents.jobs import Jobs
from atlas_agents.agents.options import Mode, TurnOptions, WhenBusy
from atlas_agents.agents.run import RunResult, T, read_options
from atlas_agents.agents.runtime import RESERVED_TOOLS, AgentRuntime, R
from atlas_agents.agents.sessions import Sessions
from atlas_agents.agents.stream import AtlasStream, stream_method
from atlas_agents.agents.team import Strategy, check_plan, check_strategy
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock, sync_method
from atlas_agents.core.approvals import Answer, Decision, Question
from atlas_agents.core.budgets import Budget, BudgetLike, BudgetStatus, TurnIdentity, read_budgets
from atlas_agents.core.errors import BudgetExceeded, ConfigError
from atlas_agents.core.events import EventName
from atlas_agents.core.messages import (
    Conversation,
    Message,
    MessageLike,
    ToolResult,
    new_ordered_id,
    read_prompt,
    split_messages,
)
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import NO_CHAIN, Chain, Store, UsageRow
from atlas_agents.core.telemetry import OpenTelemetry, Telemetry
from atlas_agents.core.tenancy import AgentInfo, Delegation, TeamServices, Tenancy
from atlas_agents.dispatch import Dispatcher, Inline
from atlas_agents.providers.catalogue import Price
from atlas_agents.providers.failover import ModelHealth, ModelStatus
from atlas_agents.providers.registry import Registry
from atlas_agents.providers.settings import GivenSettings
from atlas_agents.tools.approvals import Approvals, Approve
from atlas_agents.tools.audit import AuditLog
from atlas_agents.tools.client_tools import ClientResult, ClientTool, ClientTools, check_client_tools
from atlas_agents.tools.limits import Limits
from atlas_agents.tools.policy import Actor, Policy, Verdict
from atlas_agents.tools.tool import Tool

_CACHED_CONVERSATIONS = 64


class Atlas:
    """Agents and conversations with them. State is kept in memory, or in a store.

    `session` is the key of a conversation, or a `Conversation` object of your own; the default is a single
    conversation. Turns of one session run one after another.

    Args:
        agents: Agents that can be addressed by their id.
        default_agent: The agent that answers if a turn names none; the first one by default.
        system_prompt: Instructions that precede every agent's own.
        history: Limits on the messages of a conversation that are sent to the model.
        store: Store of sessions, runs and audit rows; in memory if None.
        policy: Permission policy: which agents may call which tools.
        approve: A function that is asked about calls that need approval, or `Approvals`.
        interceptors: Hooks that see or change messages and requests.
        tenant: Owner of all stored rows.
        limits: Limits of tool calls.
        budgets: Limits of tokens, requests, tool calls, dollars and seconds of turns, users or the tenant.
        audit: Audit log; in the store, or in memory, by default.
        retries: Pauses in seconds before a failed tool call is retried.
        registry: Providers by id, for references such as `"openai/gpt-5.6"`.
        prices: Price per model, for the cost in `Usage`.
        clock: Source of time; a `VirtualClock` in tests.
        delegation: Limits of delegation between agents, and of agents that are tools of one another.
        dispatcher: Where runs execute: in this process by default, or on a cluster.
        deps: A function of the turn's context that makes the `deps` of a turn that was sent without them, or that is
            resumed after a crash.
        telemetry: `OpenTelemetry()` to record turns with OpenTelemetry; None records nothing.
    """

    def __init__(
        self,
        agents: Iterable[Agent] = (),
        default_agent: str | Agent | None = None,
        *,
        system_prompt: str = "",
        history: History | None = None,
        store: Store | None = None,
        policy: Policy | None = None,
        approve: Approve | Approvals | None = None,
        interceptors: Sequence[Interceptor] = (),
        tenant: str = "default",
        limits: Limits | None = None,
        budgets: BudgetLike | Sequence[BudgetLike] | None = None,
        audit: AuditLog | None = None,
        retries: Sequence[float] = (1.0, 3.0, 9.0),
        registry: Registry | None = None,
        prices: Mapping[str, Price] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        delegation: Delegation | None = None,
        dispatcher: Dispatcher | None = None,
        deps: DepsFactory | None = None,
        telemetry: OpenTelemetry | None = None,
    ) -> None:
        if deps is not None and not callable(deps):
            raise ConfigError("Atlas(deps=…) takes a function that makes deps; pass a value with ask(…, deps=…)")
        _check_types(policy=policy, history=history, limits=limits, delegation=delegation, registry=registry)
        _check_types(prices=prices, store=store, audit=audit, clock=clock)
        if not _are_seconds(retries):
            raise ConfigError(f"Atlas(retries=…) takes a list of seconds, got {retries!r}")
        if not isinstance(cast(object, tenant), str) or not tenant:
            raise ConfigError(f"Atlas(tenant=…) takes a name, got {tenant!r}: leave it out if there is only one tenant")
        if approve is not None and not (callable(approve) or isinstance(approve, Approvals)):
            raise ConfigError(f"Atlas(approve=…) takes a function or Approvals(…), got {approve!r}")
        self._agents = runner.AgentRegistry(agents, default_agent)
        self._dispatcher = dispatcher or Inline()
        services = TeamServices(store, tenant, self._agent_infos, delegation, clock) if store is not None else None
        self._runtime = AgentRuntime(
            find_agent=self._agents.get,
            shared=self._dispatcher.is_remote,
            system_prompt=system_prompt,
            history=history,
            approve=approve,
            interceptors=interceptors,
            tenant=tenant,
            policy=policy,
            limits=limits,
            budgets=read_budgets(budgets),
            audit=audit,
            store=store,
            team_services=services,
            delegation=delegation,
            retries=retries,
            registry=registry,
            prices=prices,
            clock=clock,
            make_deps=deps,
            telemetry=telemetry,
            wake=self._dispatcher.wake,
        )
        self._governance = self._runtime.governance
        self._strategy: Strategy | None = None
        self._reserved_names: Callable[[], Iterable[str]] | None = None
        self._conversations = runner.ConversationCache(max_size=_CACHED_CONVERSATIONS if store is not None else None)
        self._jobs = Jobs(self, services, self._governance.limiter.ticker) if services is not None else None
        self._runner = runner.TurnRunner(self._runtime, self._agents, self._conversations, self._dispatcher, self._jobs)
        self.sessions = Sessions(store, tenant, self._conversations.remove)

    @property
    def agents(self) -> tuple[Agent, ...]:
        return self._agents.all

    def _agent_infos(self) -> list[AgentInfo]:
        return [AgentInfo(each.id, each.name, each.role, each.description) for each in self.agents]

    def get_agent(self) -> Agent | None:
        """Return the default agent."""
        return self._agents.default

    def set_agent(self, agent: Agent) -> Self:
        """Make this the default agent; it replaces an agent with the same id."""
        self._agents.default = self._agents.add(agent)
        return self

    def set_agents(self, agents: Iterable[Agent]) -> Self:
        """Replace all agents; running turns keep theirs.

        The default agent keeps its id if there is still an agent with it; otherwise it is the first one.
        """
        self._agents.replace_all(agents)
        return self

    def set_agent_by_id(self, agent_id: str) -> Self:
        """Make a registered agent the default agent."""
        self._agents.default = self._agents.find(agent_id)
        return self

    def register_agent(self, agent: Agent) -> Self:
        """Add an agent, or replace the one with the same id; the default agent stays the same."""
        self._agents.add(agent)
        self._agents.default = self._agents.default or agent
        return self

    def route(self, strategy: Strategy | None) -> Self:
        """Choose the agents of turns that name none with a strategy of `atlas_agents.team`; None turns that off."""
        self._strategy = check_strategy(strategy)
        return self

    route_message = route
    """The same as `route`."""

    @property
    def store(self) -> Store | None:
        """The store, or None if state is kept in memory."""
        return self._runtime.store

    @property
    def jobs(self) -> Jobs:
        """Delegated and scheduled tasks; they run within `jobs.running()`."""
        if self._jobs is None:
            raise ConfigError("jobs require a store: Atlas(store=…)")
        return self._jobs

    @property
    def tenancy(self) -> Tenancy:
        """The users and the plan of its tenant."""
        if self._governance.team_services is None:
            raise ConfigError("users and plans require a store: Atlas(store=…)")
        return self._governance.team_services.tenancy

    @property
    def tenant(self) -> str:
        return self._runtime.tenant

    @property
    def limits(self) -> Limits:
        """Limits on tool calls."""
        return self._governance.limiter.limits

    def hide(self, text: str) -> str:
        """Redact known secrets, and text that looks like a secret."""
        return self._governance.redactor.text(text)

    def hide_values(self, value: Any) -> Any:
        """Redact known secrets in plain data, and values that look like a secret by their name or format."""
        return self._governance.redactor.value(value)

    def keep_secret(self, *secrets: Secret) -> None:
        """Redact these secrets from now on in logs, the audit log and everything sent to a model."""
        self._governance.redactor.add_secrets(*[secret.reveal() for secret in secrets])

    @property
    def telemetry(self) -> Telemetry:
        """Internal: the telemetry to which turns report."""
        return self._runtime.telemetry

    @property
    def registry(self) -> Registry:
        """The provider registry."""
        return self._runtime.registry

    def model_status(self) -> list[ModelStatus]:
        """Return the health of the models that this process called in the last 15 minutes."""
        return self._runtime.model_health.status(self._runtime.clock.monotonic())

    @property
    def model_health(self) -> ModelHealth:
        """Internal: the requests to models that this process made recently."""
        return self._runtime.model_health

    def verdict(self, agent: Agent, tool: Tool, user: str = "") -> Verdict:
        """Return whether an agent may call a tool on behalf of a user."""
        return self._governance.verdict(tool, Actor(agent.id, agent.role, user, self._runtime.tenant))

    @property
    def audit(self) -> AuditLog:
        """The audit log, with one row per tool call."""
        return self._governance.audit

    @property
    def policy(self) -> Policy | None:
        """The permission policy. A new one takes effect at once, also for calls that wait for approval."""
        return self._governance.policy

    @policy.setter
    def policy(self, policy: Policy | None) -> None:
        _check_types(policy=policy)
        self._governance.policy = policy

    def share_budgets(self, other: "Atlas") -> None:
        """Internal: count the turns of this Atlas against the budgets of another one."""
        self._governance.budgets = other._governance.budgets

    def share_secrets(self, other: "Atlas") -> None:
        """Internal: redact the secrets of another Atlas, also those that it learns later."""
        self._governance.redactor.share(other._governance.redactor)

    @contextmanager
    def limited_by(
        self, budget: Budget | None, note: Callable[[BudgetExceeded], object]
    ) -> Generator[None, None, None]:
        """Internal: also limit the turns in the block by a budget, and call `note` when any budget is used up."""
        book = self._governance.budgets
        before = book.budgets
        book.budgets = (*before, *([] if budget is None else [budget]))
        book.on_exceeded.append(note)
        try:
            yield
        finally:
            book.budgets = before
            book.on_exceeded.remove(note)

    def derive_runtime(self, create: Callable[..., R], **changes: Any) -> R:
        """Internal: create a runtime with the agents, prompts, hooks, policy and models of this Atlas."""
        return self._runtime.derive(create, **changes)

    def conversation(self, session: str = "default") -> Conversation:
        """Return the conversation of a session, created if there is none.

        With a store, it is filled when a turn starts, and only recent ones stay in memory; use `sessions.history` to
        read a stored session.
        """
        return self._conversations.get(session)

    async def ask(
        self,
        message: MessageLike,
        *,
        session: str | Conversation = "default",
        agent_id: str | None = None,
        output: Any = None,
        output_retries: int | None = None,
        user: str = "",
        model: str = "",
        mode: Mode | None = None,
        when_busy: WhenBusy = "queue",
        idempotency_key: str = "",
        settings: GivenSettings | None = None,
        budget: BudgetLike | Sequence[BudgetLike] | None = None,
        deps: Any = None,
        metadata: Mapping[str, Any] | None = None,
        traceparent: str = "",
        tracestate: str = "",
    ) -> Message:
        """Run one turn and return the answer.

        `output` is a JSON schema or Python type that the answer must match; for the other options see `send`.
        """
        options = read_options(
            output=output,
            output_retries=output_retries,
            model=model,
            mode=mode,
            when_busy=when_busy,
            idempotency_key=idempotency_key,
            settings=settings,
            budget=budget,
            deps=deps,
            metadata=metadata,
            traceparent=traceparent,
            tracestate=tracestate,
        )
        if idempotency_key or when_busy == "interrupt":
            stream = self.start_turn(message, options, session=session, agent_id=agent_id, user=user)
            return await _reply_or_cancel(stream)
        message = read_prompt(message)
        agent_id, options = self._choose_agents(message, agent_id, options)
        run = self._runner.create(session, agent_id, options, user=user)
        return await self._runner.run(run, message)

    def send(
        self,
        message: MessageLike,
        *,
        session: str | Conversation = "default",
        agent_id: str | None = None,
        output: Any = None,
        output_retries: int | None = None,
        user: str = "",
        model: str = "",
        mode: Mode | None = None,
        when_busy: WhenBusy = "queue",
        idempotency_key: str = "",
        asks: bool = True,
        settings: GivenSettings | None = None,
        budget: BudgetLike | Sequence[BudgetLike] | None = None,
        deps: Any = None,
        metadata: Mapping[str, Any] | None = None,
        client_tools: ClientTools | Sequence[ClientTool] | None = None,
        chain: Chain = NO_CHAIN,
        traceparent: str = "",
        tracestate: str = "",
    ) -> AtlasStream:
        """Start one turn and return its stream; `await stream.accepted()` waits until the message is accepted.

        Args:
            message: Text or a message of the user.
            session: Name of a session, or a `Conversation` of your own.
            agent_id: The agent that answers; the default agent if None.
            output: JSON Schema or Python type that the answer must match.
            output_retries: How often an answer that does not match may be corrected; the agent's number if None.
            user: The user for whom the turn runs; a policy can grant permissions to it.
            model: Reference of a model to use in this turn instead of the agent's.
            mode: Mode to use in this turn instead of the agent's.
            when_busy: While another turn of the session runs: `queue` this one, `steer` that one with the message
                after its current tool calls, `reject` the message, or `interrupt` the earlier turns.
            idempotency_key: Repeating a key in a stored session returns the turn that first used it.
            asks: Whether people can be asked; if not, calls that need approval are refused with an error for the model.
            settings: Model settings such as `{"effort": "high"}`, which take precedence over the agent's.
            budget: Limits of this turn such as `Budget(tokens=20_000)`, in addition to the others that apply.
            deps: A value for tools (`ToolContext.deps`), rules, dynamic prompts and hooks. It is not stored or sent
                to a model; a turn that is resumed after a crash gets it from `Atlas(deps=…)`.
            metadata: Values that only this turn has, over those of the session and the agent.
            client_tools: Tools that you run: the turn waits until `post_results` gets the results of their calls, which
                the event `tool:pending` names.
            chain: The delegation that the turn belongs to.
            traceparent: W3C trace context of the caller; by default that of the current span, if there is one.
            tracestate: W3C tracestate that belongs to `traceparent`; an invalid one is dropped.
        """
        options = read_options(
            output=output,
            output_retries=output_retries,
            model=model,
            mode=mode,
            when_busy=when_busy,
            idempotency_key=idempotency_key,
            asks=asks,
            settings=settings,
            budget=budget,
            deps=deps,
            metadata=metadata,
            client_tools=client_tools,
            chain=chain,
            traceparent=traceparent,
            tracestate=tracestate,
        )
        return self.start_turn(message, options, session=session, agent_id=agent_id, user=user)

    def start_turn(
        self,
        message: MessageLike,
        options: TurnOptions,
        *,
        session: str | Conversation = "default",
        agent_id: str | None = None,
        user: str = "",
    ) -> AtlasStream:
        """Start one turn like `send`, with all options in one value."""
        stream = AtlasStream(new_ordered_id())
        message = read_prompt(message)
        if options.client_tools is not msgspec.UNSET:
            self.check_client_tools(options.client_tools)
        agent_id, options = self._choose_agents(message, agent_id, options)
        run = self._runner.create(session, agent_id, options, user=user, stream=stream)
        if options.idempotency_key and run.journal is None:
            raise ConfigError("an idempotency key requires a store, Atlas(store=…), and a session key")
        return self._runner.start(stream, run, message)

    def _choose_agents(
        self, message: Message, agent_id: str | None, options: TurnOptions
    ) -> tuple[str | None, TurnOptions]:
        """Choose the agents of a turn: the named agent, or else those that the routing strategy returns."""
        if agent_id is not None or self._strategy is None:
            return agent_id, options
        plan = check_plan(self._strategy(message, self._agents.all), self._agents.__contains__)
        return plan.agent_id or None, msgspec.structs.replace(options, team=plan)

    async def invoke(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        agent_id: str | None = None,
        user: str = "",
        session: str = "",
        idempotency_key: str = "",
        asks: bool = True,
        traceparent: str = "",
        tracestate: str = "",
    ) -> ToolResult:
        """Call a tool of an agent without its model and return the result, also if the call is refused or fails.

        The call passes the same checks, approvals, limits and audit as every call of that agent. It is stored in a
        session of its own, unless you name one.
        """
        stream = await self.begin_call(
            tool,
            arguments,
            agent_id=agent_id,
            user=user,
            session=session,
            idempotency_key=idempotency_key,
            asks=asks,
            traceparent=traceparent,
            tracestate=tracestate,
        )
        return runner.tool_call_result(await _reply_or_cancel(stream))

    async def begin_call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        agent_id: str | None = None,
        user: str = "",
        session: str = "",
        idempotency_key: str = "",
        asks: bool = True,
        traceparent: str = "",
        tracestate: str = "",
    ) -> AtlasStream:
        """Start a tool call like `invoke` and return its stream, whose reply holds the result."""
        message, stream = runner.tool_call_message(tool, arguments), AtlasStream(new_ordered_id())
        call = runner.tool_call_for(stream.stream_id, tool, arguments)
        options = read_options(
            idempotency_key=idempotency_key, asks=asks, call=call, traceparent=traceparent, tracestate=tracestate
        )
        own = runner.tool_call_session(user, stream.stream_id, idempotency_key)
        target: str | Conversation = session or (own if self._runtime.store is not None else Conversation(id=own))
        run = self._runner.create(target, agent_id, options, user=user, stream=stream)
        if idempotency_key and run.journal is None:
            raise ConfigError("an idempotency key requires a store: Atlas(store=…)")
        if not session and self._runtime.store is not None:
            await self.sessions.put(own, label=tool[:80], archived=True)
        return self._runner.start(stream, run, message)

    def stream(self, run_id: str) -> AtlasStream | None:
        """Return the stream of an unfinished turn that was accepted in, or runs in, this process."""
        return self._runner.stream(run_id)

    async def follow(self, run_id: str) -> AtlasStream | None:
        """Return a stream of an unfinished turn from its first event, whichever process runs it; None if there is none.

        Cancelling the stream cancels the turn.
        """
        return await self._runner.follow(run_id)

    async def cancel(self, run_id: str) -> bool:
        """Cancel a turn of a stored session, whichever process runs it; False if there is nothing to cancel."""
        return await self._dispatcher.cancel(run_id)

    async def answer(self, approval_id: str, answer: Answer | Decision) -> Question:
        """Answer a pending approval; the answer is durable when this returns.

        Raises NotFound if there is no such approval, Conflict if it is too late.
        """
        decided = answer if isinstance(answer, Answer) else Answer(answer)
        question = await self._runtime.answer(approval_id, decided)
        if self._runtime.store is not None:
            await self._dispatcher.wake(approval_id)
        return question

    def can_approve(self, question: Question, by: str) -> bool:
        """Return whether an approval by this person would count: with the two-person rule, not of their own calls."""
        approvals = self._runtime.governance.approvals
        return approvals.effective_answer(question, Answer("once", by=by)).decision == "once"

    def check_client_tools(self, offer: ClientTools) -> None:
        """Raise BadTool for tools that a client cannot offer, such as one with the name of a tool of any agent."""
        check_client_tools(offer, self._tool_names())

    def reserve_tool_names(self, names: Callable[[], Iterable[str]]) -> None:
        """Register a function that returns further reserved names, which client tools must not have."""
        self._reserved_names = names

    def _tool_names(self) -> list[str]:
        tools = [tool for agent in self.agents for tool in agent.tools]
        names = [name for tool in tools for name in (tool.name, tool.wire_name)]
        return [*names, *RESERVED_TOOLS, *(self._reserved_names() if self._reserved_names is not None else ())]

    async def post_results(
        self, results: Sequence[ClientResult], *, user: str = "", offer: ClientTools | None = None
    ) -> list[Question]:
        """Post the results of tool calls that the client ran; they are durable when this returns, and the turn resumes
        once all calls of its last reply have one.

        Posting the same result again has no effect. With `offer`, these client tools replace those of the turn.
        Returns the calls, whose `run_id` names the turn. Raises NotFound for an unknown call and for one of another
        user, and Conflict if the call has another result already, or it is too late.
        """
        if offer is not None:
            self.check_client_tools(offer)
        return await self._runtime.post_results(results, user, offer)

    async def find_client_calls(self, ids: Sequence[str], *, user: str = "") -> list[Question]:
        """Return stored tool calls of the client by their ids, whether or not they have a result.

        Raises NotFound if one is unknown or belongs to another user.
        """
        return await self._runtime.find_client_calls(ids, user)

    async def cancel_client_calls(self, session: str) -> None:
        """End the wait of a session's turn for results of its client, as a new message does."""
        await self._runtime.cancel_client_calls(session)

    async def pending_client_calls(self, session: str) -> list[Question]:
        """Return the tool calls of a session that wait for results of its client, oldest first."""
        return await self._runtime.pending_client_calls(session)

    async def pending(self) -> list[Question]:
        """Return pending approvals, oldest first."""
        return await self._runtime.pending_approvals()

    async def usage(self, since: str = "", until: str = "9999") -> list[UsageRow]:
        """Return tokens and cost by day, session, agent and model, from day `since` up to but excluding `until`."""
        if self._runtime.store is None:
            raise ConfigError("usage requires a store: Atlas(store=…)")
        return await self._runtime.store.usage(self._runtime.tenant, since=since, until=until)

    async def budget_status(self, *, user: str = "", session: str = "") -> list[BudgetStatus]:
        """Return the used and remaining budgets of the tenant, all agents, a user and, if given, a session."""
        book = self._governance.budgets
        plan = (await self.tenancy.plan()).tokens if self._governance.team_services is not None else None
        shared = [Budget(tokens=plan, scope="tenant", per="month")] if plan else []
        shared += [each for each in book.budgets if each.scope != "agent"]
        found = await book.status(TurnIdentity("", session, "", user), shared)
        for agent in self.agents:
            own = [*[each for each in book.budgets if each.scope == "agent"], *agent.settings.budget]
            found += await book.status(TurnIdentity("", session, agent.id, user), own)
        return list(dict.fromkeys(found))

    def on_budget_exceeded(self, callback: Callable[[BudgetExceeded], object]) -> None:
        """Call a function with the error whenever a turn runs out of a budget."""
        self._governance.budgets.on_exceeded.append(callback)

    async def run(
        self,
        messages: MessageLike | Sequence[MessageLike],
        *,
        session: str | Conversation | None = None,
        agent_id: str | None = None,
        output: type[T] | object | None = None,
        output_retries: int | None = None,
        user: str = "",
        model: str = "",
        mode: Mode | None = None,
        max_rounds: int | None = None,
        asks: bool = True,
        settings: GivenSettings | None = None,
        budget: BudgetLike | Sequence[BudgetLike] | None = None,
        deps: Any = None,
        metadata: Mapping[str, Any] | None = None,
        traceparent: str = "",
        tracestate: str = "",
    ) -> RunResult[T]:
        """Run one turn and return everything it produced; `result.output` has the type that `output=…` asks for.

        Without a session nothing is stored, and `messages` may be a whole history. With one, the turn belongs to it
        like those of `ask`; on a cluster, the steps are then those of another process and not in the result. For the
        other options see `send`. If the turn fails, the error's `result` is partial: it has the steps, the usage and
        the messages so far.
        """
        past, last = split_messages(messages)
        if session is not None and (past or last is None):
            raise ConfigError("run takes either session=… and one message of the user, or a whole history")
        options = read_options(
            output=output,
            output_retries=output_retries,
            model=model,
            mode=mode,
            max_rounds=max_rounds,
            asks=asks,
            settings=settings,
            budget=budget,
            deps=deps,
            metadata=metadata,
            traceparent=traceparent,
            tracestate=tracestate,
        )
        if last is not None:
            agent_id, options = self._choose_agents(last, agent_id, options)
        run = self._runner.create(Conversation(past) if session is None else session, agent_id, options, user=user)
        return await run.collect(self._runner.run(run, last))

    @sync_method(run)
    def run_sync() -> None:
        """Run `run` without an event loop, in a script or a thread, and wait for its result."""

    @sync_method(ask)
    def ask_sync() -> None:
        """Run `ask` without an event loop, in a script or a thread, and wait for its result."""

    @stream_method(send)
    def stream_sync() -> None:
        """Start a turn like `send` without an event loop, and return an iterator over its events."""

    async def recover(self) -> list[AtlasStream]:
        """Resume every turn that a crash interrupted, or that was queued behind one; fail those whose agent is gone.

        Call it once at the start; it raises StoreInUse while another process runs turns on the same SQLite file. Side
        effects that are recorded are not repeated; where the outcome of one is unknown, its result says so. A cluster
        does this by itself, so there it returns no turns.
        """
        return await self._runner.recover()

    def on_resume(self, follow: runner.FollowResumed) -> None:
        """Register a function that follows every turn that is resumed here: it is called with the run's row before the
        turn resumes, and returns a function that is called with the stream."""
        self._runner.on_resume(follow)

    @property
    def quarantined(self) -> tuple[str, ...]:
        """Runs that were interrupted by repeated crashes: the one that is resumed alone, and those that wait for it."""
        return self._runtime.quarantine.runs

    def on(
        self,
        name: EventName,
        listener: Callable[[Any], Any],
        *,
        background: bool = False,
        max_queue: int = MAX_QUEUE,
    ) -> Listener:
        """Call a function, sync or async, for each event of that name; call the result to unsubscribe.

        An event that takes the function longer than a second is skipped, with those that wait behind it; `skipped` of
        the result counts them.

        Args:
            name: Name of the event, such as `"tool:result"`.
            listener: The function, which receives the event.
            background: Whether the function may take as long as it needs. Turns do not wait for it; `close` does, for
                up to 5 seconds.
            max_queue: Maximum number of waiting events of a function in the background; beyond it the oldest is
                skipped.
        """
        return self._runtime.subscribers.on(name, listener, background=background, max_queue=max_queue)

    def off(self, name: EventName, listener: Callable[[Any], Any]) -> None:
        """Unsubscribe a listener that `on` added."""
        self._runtime.subscribers.off(name, listener)

    async def close(self, grace: float = 0.0) -> None:
        """Wait up to `grace` seconds for running turns, stop the others, and close connections and processes.

        With a store, stopped turns stay open and resume at the next start; without one they are cancelled.
        """
        if self._jobs is not None:
            await self._jobs.close()
        await self._runner.stop(grace)
        await self._runtime.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


_WANTED: dict[str, tuple[type | str, str]] = {
    "policy": (Policy, "a Policy, such as Policy.load('policy.toml')"),
    "history": (History, "History(…)"),
    "limits": (Limits, "Limits(…)"),
    "delegation": (Delegation, "Delegation(…)"),
    "registry": (Registry, "a Registry"),
    "prices": (Mapping, "a mapping of models to Price(…)"),
    "store": ("commit", "an open store, such as SqliteStore('atlas.db')"),
    "audit": ("append", "an audit log; the default is that of the store"),
    "clock": ("monotonic", "a clock; the default is that of the system"),
}
"""The type of an argument, or a method of its port, and how to describe it."""


def _check_types(**given: object) -> None:
    """Raise ConfigError for an argument of another type; None stands for the default."""
    for name, value in given.items():
        wanted, description = _WANTED[name]
        fits = hasattr(value, wanted) if isinstance(wanted, str) else isinstance(value, wanted)
        if value is not None and not fits:
            raise ConfigError(f"Atlas({name}=…) takes {description}, got {value!r}")


def _are_seconds(value: object) -> bool:
    """Return whether a value is a list of pauses. A number of retries alone would not say how long to wait."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return False
    return all([isinstance(each, int | float) and 0 <= each < math.inf for each in cast(Sequence[object], value)])


async def _reply_or_cancel(stream: AtlasStream) -> Message:
    """Wait for the reply; cancelling the wait cancels the turn."""
    try:
        return await stream.reply()
    except asyncio.CancelledError:
        stream.cancel()
        raise
