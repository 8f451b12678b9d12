"""What stands around a run: providers, workers, listeners and limits, and how a run is opened among them."""

import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.conversation import Conversation
from atlas_agents.core.errors import ConfigError, NotStored
from atlas_agents.core.events import Event, MessageKept
from atlas_agents.core.ids import new_id
from atlas_agents.core.messages import Message
from atlas_agents.core.office import Delegation, Office
from atlas_agents.core.questions import Answer, Question
from atlas_agents.core.store import RunRow, Store
from atlas_agents.engine.context import Context
from atlas_agents.engine.history import History
from atlas_agents.engine.interceptors import Interceptor, Interceptors
from atlas_agents.engine.lineup import HAND_OFF, MOST_HAND_OFFS, hand_off_tool
from atlas_agents.engine.listeners import Listeners
from atlas_agents.engine.order import Line, line_of
from atlas_agents.engine.output import Output
from atlas_agents.engine.plan import plan_tool
from atlas_agents.engine.run import Run, Terms
from atlas_agents.engine.settings import Settings
from atlas_agents.providers.base import keys_of
from atlas_agents.providers.failover import Failover, Route
from atlas_agents.providers.prices import Price, Prices
from atlas_agents.providers.react import React
from atlas_agents.providers.registry import Model, Registry
from atlas_agents.providers.scripted import Scripted
from atlas_agents.tools.approvals import Approvals, Approve
from atlas_agents.tools.audit import AuditLog, MemoryAudit
from atlas_agents.tools.desk import Desk, Governance
from atlas_agents.tools.journal import Journal
from atlas_agents.tools.limits import Limiter, Limits
from atlas_agents.tools.permissions import Actor, Policy
from atlas_agents.tools.redact import Redactor
from atlas_agents.tools.store_approvals import answer_kept, hand_kept, pending_kept
from atlas_agents.tools.store_audit import StoreAudit, StoreCounter
from atlas_agents.tools.tool import Tool
from atlas_agents.tools.workers import Workers

_LAST_WORDS = 1.0
_PLAIN = Terms()


class House:
    """Shared by all turns of an Atlas, or of an agent that stands alone."""

    def __init__(
        self,
        *,
        system_prompt: str = "",
        history: History | None = None,
        approve: Approve | Approvals | None = None,
        interceptors: Sequence[Interceptor] = (),
        tenant: str = "default",
        policy: Policy | None = None,
        limits: Limits | None = None,
        audit: AuditLog | None = None,
        store: Store | None = None,
        retries: Sequence[float] = (1.0, 3.0, 9.0),
        registry: Registry | None = None,
        prices: Mapping[str, Price] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        delegation: Delegation | None = None,
    ) -> None:
        self.system_prompt = system_prompt
        self.history = history or History()
        self.interceptors = Interceptors(interceptors)
        self.tenant = tenant
        self.clock = clock
        self.store = store
        self.prices = Prices(prices)
        if store is not None and audit is None:
            audit = StoreAudit(store)
        self.governance = Governance(
            clock=clock,
            workers=Workers(),
            approvals=approve if isinstance(approve, Approvals) else Approvals(approve),
            limiter=Limiter(limits or Limits(), clock, StoreCounter(store) if store else None),
            audit=MemoryAudit() if audit is None else audit,
            redactor=Redactor(),
            policy=policy,
            retries=tuple(retries),
            office=Office(store, tenant, delegation, clock) if store is not None else None,
        )
        self.listeners = Listeners(self.governance.redactor.trace)
        self._registry = registry
        self.find_agent: Callable[[str], Any] = _nobody
        """Who else there is."""
        self.shared = False
        """Other processes run runs of the same store."""
        self._pools: weakref.WeakKeyDictionary[Any, dict[bool, Failover]] = weakref.WeakKeyDictionary()

    def open_run(
        self,
        agent: Any,
        settings: Settings,
        context: Context,
        conversation: Conversation,
        *,
        line: Line | None = None,
        prelude: Sequence[Message] | None = None,
        sink: Callable[[Event], None] | None = None,
        id: str | None = None,
        output: Any = None,
        max_rounds: int | None = None,
        user: str = "",
        kept: bool = False,
        terms: Terms | None = None,
    ) -> Run:
        """A run, ready to be turned; what cannot work (no model, no key) is said now."""
        if max_rounds is not None and max_rounds < 1:
            raise ConfigError(f"max_rounds must be at least 1, not {max_rounds}")
        run_id, terms = id or new_id(), terms or _PLAIN
        if terms.mode is not None:
            settings = msgspec.structs.replace(settings, mode=terms.mode)
        emit = self._emit(sink)
        desk = Desk(
            self.governance,
            run_id=run_id,
            agent=agent,
            actor=Actor(settings.id, settings.role, user, self.tenant),
            tools=context.tool_map()
            if terms.call
            else self._tools(context, settings, terms.team.hands_to or settings.hands_off_to),
            conversation=conversation,
            metadata=context.metadata,
            emit=emit,
            journal=self._journal(run_id, conversation, emit, terms.row) if kept else None,
            asks=terms.asks,
            chain=terms.chain,
        )
        run = Run(
            id=run_id,
            settings=settings,
            context=context,
            conversation=conversation,
            line=line or line_of(conversation),
            prelude=context.messages if prelude is None else prelude,
            provider=Scripted() if terms.call else self._pool(agent, settings, terms.model).for_turn(self.clock),
            desk=desk,
            emit=emit,
            interceptors=self.interceptors,
            history=self.history,
            system_prompt=self.system_prompt,
            output=Output(output) if output is not None else None,
            max_rounds=max_rounds or settings.max_rounds,
            prices=self.prices,
            terms=terms,
        )
        run.let_speak = partial(self._let_speak, run)
        return run

    def _let_speak(self, run: Run, agent_id: str) -> None:
        """Another agent goes on with a run: its prompt, its model, its tools, its role."""
        agent = self.find_agent(agent_id)
        if agent is None or agent_id == run.settings.id:
            return
        settings, context = agent.settings, agent.context
        run.settings, run.context, run.prelude = settings, context, context.messages
        run.provider = self._pool(agent, settings).for_turn(self.clock)
        others = settings.hands_off_to if run.hand_overs + 1 < MOST_HAND_OFFS else ()
        actor = Actor(settings.id, settings.role, run.desk.actor.user, self.tenant)
        run.desk.take_over(agent, actor, self._tools(context, settings, others))

    def _tools(self, context: Context, settings: Settings, others: Sequence[str]) -> Mapping[str, Tool]:
        """The agent's own, and those that its mode and its colleagues bring."""
        tools = context.tool_map()
        if settings.mode == "plan":
            tools = {**tools, plan_tool().wire_name: plan_tool()}
        found = [agent.settings for each in others if each != settings.id and (agent := self.find_agent(each))]
        return {**tools, HAND_OFF: hand_off_tool(found)} if found else tools

    def _journal(
        self, run_id: str, conversation: Conversation, emit: Callable[[Event], None], row: RunRow | None
    ) -> Journal | None:
        if self.store is None:
            return None

        def kept(message: Message) -> None:
            emit(MessageKept(run_id, message))

        return Journal(
            self.store,
            self.tenant,
            run_id,
            conversation.id,
            row=row,
            kept=kept,
            clock=self.clock,
            shared=self.shared,
        )

    async def answer(self, approval_id: str, answer: Answer) -> Question:
        """Keep an answer, then hand it to whoever waits for it."""
        approvals = self.governance.approvals
        if self.store is None:
            question = next((each for each in approvals.pending if each.id == approval_id), None)
            if question is None or not approvals.give(approval_id, answer):
                raise NotStored(f"there is no open question {approval_id!r}")
            return question
        return await answer_kept(self.store, self.tenant, approvals, approval_id, answer, self.clock)

    async def answered(self, approval_id: str) -> None:
        """Hand an answer that is kept to whoever waits for it here."""
        if self.store is not None:
            await hand_kept(self.store, self.tenant, self.governance.approvals, approval_id)

    async def pending(self) -> list[Question]:
        if self.store is None:
            return self.governance.approvals.pending
        return await pending_kept(self.store, self.tenant, self.clock)

    async def close(self) -> None:
        """Give back connections and processes; used again, it opens them again."""
        await self.listeners.catch_up()
        await self.governance.catch_up(_LAST_WORDS)
        await self.governance.workers.close()
        providers = [
            route.provider for pools in self._pools.values() for pool in pools.values() for route in pool.routes
        ]
        for provider in providers:
            close: Callable[[], Awaitable[None]] | None = getattr(provider, "close", None)
            if close is not None:
                await close()

    def _emit(self, sink: Callable[[Event], None] | None) -> Callable[[Event], None]:
        listeners = self.listeners
        if sink is None:
            return listeners.tell

        def emit(event: Event) -> None:
            sink(event)
            listeners.tell(event)

        return emit

    def _pool(self, agent: Any, settings: Settings, model: str = "") -> Failover:
        """The models of an agent, or the one that speaks in their place for a turn."""
        if model:
            return Failover([self._route(model, settings)], settings.retry)
        in_text = settings.mode == "react"
        pools = self._pools.setdefault(agent, {})
        pool = pools.get(in_text)
        if pool is None:
            models = settings.models or (self._default_model(settings.id),)
            pool = Failover([self._route(model, settings) for model in models], settings.retry)
            pools[in_text] = pool
            for route in pool.routes:
                for key in keys_of(route.provider):
                    self.governance.redactor.learn(key.reveal())
        return pool

    def _route(self, model: Model, settings: Settings) -> Route:
        """The way to a model; to one that has no tools of its own, or is not to use them, in text."""
        route = self.registry.route(model)
        if settings.mode == "react" or not route.provider.capabilities.tools:
            return Route(React(route.provider), route.model)
        return route

    @property
    def registry(self) -> Registry:
        """Reads the environment when it is first needed, not before."""
        if self._registry is None:
            self._registry = Registry()
        return self._registry

    def _default_model(self, agent_id: str) -> str:
        model = self.registry.default_model
        if model is None:
            raise ConfigError(f"agent {agent_id!r} names no model: give it one with model=… or set ATLAS_MODEL")
        return model


def _nobody(agent_id: str) -> None:
    return None
