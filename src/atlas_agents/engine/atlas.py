"""The library's front door: `ask` for an answer, `send` for a stream, `run` for the whole result."""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, get_args

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.approvals import Answer, Decision, Question
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.events import EventName
from atlas_agents.core.messages import Conversation, Message, ToolResult, new_id
from atlas_agents.core.paths import Secret
from atlas_agents.core.store import NO_CHAIN, Chain, Store, UsageRow
from atlas_agents.core.tenancy import AgentInfo, Delegation, Tenancy
from atlas_agents.dispatch.base import Dispatcher, Inline
from atlas_agents.engine.agent import Agent
from atlas_agents.engine.direct import call_of, request_of, result_of, session_of
from atlas_agents.engine.history import History
from atlas_agents.engine.house import House
from atlas_agents.engine.intake import as_message, split
from atlas_agents.engine.interceptors import Interceptor
from atlas_agents.engine.jobs import Jobs
from atlas_agents.engine.lineup import Lineup
from atlas_agents.engine.result import RunResult
from atlas_agents.engine.roster import Roster
from atlas_agents.engine.run import Terms, WhenBusy, Wishes
from atlas_agents.engine.sessions import Sessions
from atlas_agents.engine.settings import Mode
from atlas_agents.engine.shelf import Shelf
from atlas_agents.engine.stream import AtlasStream
from atlas_agents.engine.team import Strategy, known_lineup
from atlas_agents.engine.turns import Turns
from atlas_agents.providers.prices import Price
from atlas_agents.providers.registry import Registry
from atlas_agents.tools.approvals import Approvals, Approve
from atlas_agents.tools.audit import AuditLog
from atlas_agents.tools.limits import Limits
from atlas_agents.tools.policy import Actor, Policy, Verdict
from atlas_agents.tools.tool import Tool

_WARM = 64


class Atlas:
    """Agents, and conversations with them. State lives in memory, or in the store that it is given.

    `session` names a conversation that is kept here, or is a `Conversation` of your own; without one there is a
    single conversation. Turns of one session wait for each other.
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
        audit: AuditLog | None = None,
        retries: Sequence[float] = (1.0, 3.0, 9.0),
        registry: Registry | None = None,
        prices: Mapping[str, Price] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        delegation: Delegation | None = None,
        dispatcher: Dispatcher | None = None,
    ) -> None:
        self._roster = Roster(agents, default_agent)
        self._house = House(
            system_prompt=system_prompt,
            history=history,
            approve=approve,
            interceptors=interceptors,
            tenant=tenant,
            policy=policy,
            limits=limits,
            audit=audit,
            store=store,
            retries=retries,
            registry=registry,
            prices=prices,
            clock=clock,
            delegation=delegation,
        )
        self._house.find_agent = self._roster.get
        self._dispatcher = dispatcher or Inline()
        self._house.shared = self._dispatcher.apart
        self._strategy: Strategy | None = None
        self._shelf = Shelf(most=_WARM if store is not None else None)
        self._turns = Turns(self._house, self._roster, self._shelf, self._dispatcher)
        self.sessions = Sessions(store, tenant, self._shelf.drop)
        office, limiter = self._house.governance.team_services, self._house.governance.limiter
        self._jobs = self._turns.jobs = Jobs(self, office, limiter.beat) if office is not None else None
        if office is not None:
            office.agents = lambda: [AgentInfo(each.id, each.name, each.role, each.description) for each in self.agents]

    @property
    def agents(self) -> tuple[Agent, ...]:
        return self._roster.all

    def get_agent(self) -> Agent | None:
        """The agent that answers when none is named."""
        return self._roster.current

    def set_agent(self, agent: Agent) -> Self:
        """Let this agent answer from now on; a new one of a known id takes the old one's place."""
        self._roster.current = self._roster.adopt(agent)
        return self

    def set_agents(self, agents: Iterable[Agent]) -> Self:
        """Let these be the agents from now on; turns under way keep theirs. The one that answers when none is named
        stays the one of that id, if there still is one, else it is the first."""
        self._roster.replace(agents)
        return self

    def set_agent_by_id(self, agent_id: str) -> Self:
        self._roster.current = self._roster.find(agent_id)
        return self

    def register_agent(self, agent: Agent) -> Self:
        """Have one more agent, or another one of a known id; who answers when none is named stays the same."""
        self._roster.adopt(agent)
        self._roster.current = self._roster.current or agent
        return self

    def route(self, strategy: Strategy | None) -> Self:
        """Let a strategy of `atlas_agents.team` say who takes a turn for which no agent is named; None ends that."""
        self._strategy = strategy
        return self

    @property
    def store(self) -> Store | None:
        """Where its state is kept, if not in memory."""
        return self._house.store

    @property
    def jobs(self) -> Jobs:
        """The work that its agents hand to each other, or that is due at a time; it is done within `jobs.at_work()`."""
        if self._jobs is None:
            raise ConfigError("this Atlas keeps no jobs: give it a store, Atlas(store=…)")
        return self._jobs

    @property
    def tenancy(self) -> Tenancy:
        """The users of its tenant, and its plan."""
        if self._house.governance.team_services is None:
            raise ConfigError("this Atlas keeps no users: give it a store, Atlas(store=…)")
        return self._house.governance.team_services.tenancy

    @property
    def tenant(self) -> str:
        return self._house.tenant

    @property
    def limits(self) -> Limits:
        """How much its agents' tools may do."""
        return self._house.governance.limiter.limits

    def hide(self, text: str) -> str:
        """The same text without the secrets that this Atlas knows of, and without what looks like one."""
        return self._house.governance.redactor.text(text)

    def keep_secret(self, *secrets: Secret) -> None:
        """Hide these from now on, wherever something is logged, audited or told to a model."""
        self._house.governance.redactor.learn(*[secret.reveal() for secret in secrets])

    @property
    def registry(self) -> Registry:
        """The providers that there are here."""
        return self._house.registry

    def verdict(self, agent: Agent, tool: Tool, user: str = "") -> Verdict:
        """May this agent call this tool for this user?"""
        return self._house.governance.verdict(tool, Actor(agent.id, agent.role, user, self._house.tenant))

    @property
    def audit(self) -> AuditLog:
        """One line for every tool call of this Atlas."""
        return self._house.governance.audit

    @property
    def policy(self) -> Policy | None:
        """Who may call what. Assigning another one counts at once, also for calls that wait for an answer."""
        return self._house.governance.policy

    @policy.setter
    def policy(self, policy: Policy | None) -> None:
        self._house.governance.policy = policy

    def conversation(self, session: str = "default") -> Conversation:
        """The conversation of a session, begun if there is none yet. With a store it is filled when a turn begins, and
        only the latest are kept in memory; `sessions.history` reads what is kept."""
        return self._shelf.take(session)

    async def ask(
        self,
        message: str | Message,
        *,
        session: str | Conversation = "default",
        agent_id: str | None = None,
        output: Any = None,
        user: str = "",
        model: str = "",
        mode: Mode | None = None,
        when_busy: WhenBusy = "queue",
        idempotency_key: str = "",
    ) -> Message:
        """Take one turn and give back the answer. `output` is the JSON schema or Python type it must fit; the others
        are as in `send`."""
        if idempotency_key or when_busy == "interrupt":
            return await self._ask_once(
                self.send(
                    message,
                    session=session,
                    agent_id=agent_id,
                    output=output,
                    user=user,
                    model=model,
                    mode=mode,
                    when_busy=when_busy,
                    idempotency_key=idempotency_key,
                )
            )
        message = as_message(message)
        agent_id, team = self._lined_up(message, agent_id)
        terms = Terms(when_busy, model=model, mode=mode, team=team)
        run = self._turns.open(session, agent_id, output=output, user=user, terms=terms)
        return await self._turns.take(run, message)

    def _lined_up(self, message: Message, agent_id: str | None) -> tuple[str | None, Lineup]:
        """Who takes the turn: the agent that is named, else whom the strategy says."""
        if agent_id is not None or self._strategy is None:
            return agent_id, Lineup()
        team = known_lineup(self._strategy(message, self._roster.all), self._roster.__contains__)
        return team.agent_id or None, team

    def send(
        self,
        message: str | Message,
        *,
        session: str | Conversation = "default",
        agent_id: str | None = None,
        output: Any = None,
        user: str = "",
        model: str = "",
        mode: Mode | None = None,
        when_busy: WhenBusy = "queue",
        idempotency_key: str = "",
        asks: bool = True,
        wishes: Wishes | None = None,
        chain: Chain = NO_CHAIN,
    ) -> AtlasStream:
        """Start one turn and give back its stream; `await stream.accepted()` tells when the message is taken in.

        `model` is the ref of one that speaks in this turn in place of the agent's, `mode` how it is taken.
        `when_busy` says what to do while a turn of the session is under way: wait in its queue, reject this one, or
        interrupt those that were sent before. The same `idempotency_key` again in a session that is kept gives the turn
        that it named first. With `asks=False` nobody is there to be asked: a call that needs a yes is refused, and the
        model is told why. `wishes` are what the caller would like of the model, where the agent leaves room.
        `chain` says for whom it is, where an agent handed it on.
        """
        if when_busy not in get_args(WhenBusy):
            raise ConfigError(f"when_busy is one of {', '.join(get_args(WhenBusy))}, not {when_busy!r}")
        stream = AtlasStream(new_id())
        message = as_message(message)
        agent_id, team = self._lined_up(message, agent_id)
        terms = Terms(when_busy, idempotency_key, model, mode, team, asks=asks, chain=chain, wishes=wishes)
        run = self._turns.open(session, agent_id, output=output, stream=stream, user=user, terms=terms)
        if idempotency_key and run.desk.journal is None:
            raise ConfigError("an idempotency key needs a store, Atlas(store=…), and a session by name")
        return self._turns.start(stream, run, message)

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
    ) -> ToolResult:
        """Have an agent's tool called without its model, and give back what came of it; a call that is refused or fails
        is a result, too. It is permitted, checked, confirmed, limited and written down like every call of that agent.

        It is kept in a session of its own, unless you name one.
        """
        stream = await self.begin_call(
            tool,
            arguments,
            agent_id=agent_id,
            user=user,
            session=session,
            idempotency_key=idempotency_key,
            asks=asks,
        )
        return result_of(await self._ask_once(stream))

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
    ) -> AtlasStream:
        """The same as a stream, whose reply holds the result."""
        message, stream = request_of(tool, arguments), AtlasStream(new_id())
        terms = Terms(idempotency_key=idempotency_key, asks=asks, call=call_of(stream.stream_id, tool, arguments))
        own = session_of(user, stream.stream_id, idempotency_key)
        place: str | Conversation = session or (own if self._house.store is not None else Conversation(id=own))
        run = self._turns.open(place, agent_id, stream=stream, user=user, terms=terms)
        if idempotency_key and run.desk.journal is None:
            raise ConfigError("an idempotency key needs a store, Atlas(store=…)")
        if not session and self._house.store is not None:
            await self.sessions.put(own, label=tool[:80], archived=True)
        return self._turns.start(stream, run, message)

    def stream(self, run_id: str) -> AtlasStream | None:
        """The stream of a turn that is under way, or waits for its turn, and was taken in or is run in this process."""
        return self._turns.stream(run_id)

    async def follow(self, run_id: str) -> AtlasStream | None:
        """Hear a turn that is under way, from its first word on, wherever it was taken in and is run; None if there is
        no such turn. To cancel what this gives stops the turn."""
        return await self._turns.follow(run_id)

    async def cancel(self, run_id: str) -> bool:
        """Have a turn of a session that is kept stopped, wherever it is run; False if there is nothing to stop."""
        return await self._dispatcher.cancel(run_id)

    async def answer(self, approval_id: str, answer: Answer | Decision) -> Question:
        """Answer a question that waits; kept when this returns. NotStored if there is none, Conflict if too late."""
        given = answer if isinstance(answer, Answer) else Answer(answer)
        question = await self._house.answer(approval_id, given)
        if self._house.store is not None:
            await self._dispatcher.wake(approval_id)
        return question

    async def pending(self) -> list[Question]:
        """The questions that wait for an answer, the oldest first."""
        return await self._house.pending()

    async def usage(self, since: str = "", until: str = "9999") -> list[UsageRow]:
        """Tokens and cost by day, session, agent and model, for days from `since` up to, and without, `until`."""
        if self._house.store is None:
            raise ConfigError("this Atlas keeps no sums: give it a store, Atlas(store=…)")
        return await self._house.store.usage(self._house.tenant, since=since, until=until)

    async def run(
        self,
        messages: str | Message | Sequence[Message],
        *,
        max_rounds: int | None = None,
        agent_id: str | None = None,
        output: Any = None,
        user: str = "",
    ) -> RunResult:
        """Take one turn on these messages, of which nothing is kept, and give back all that came of it."""
        past, last = split(messages)
        run = self._turns.open(Conversation(past), agent_id, output=output, max_rounds=max_rounds, user=user)
        reply = await self._turns.take(run, last)
        return RunResult(
            success=not run.rounds_spent,
            answer=reply.text,
            error="Max iterations reached" if run.rounds_spent else None,
            steps=tuple(run.steps),
            usage=run.usage,
            message=reply,
            intermediate=tuple(each for each in run.added if each is not reply and each is not run.question),
            output=run.value,
            plan=run.plan,
        )

    async def recover(self) -> list[AtlasStream]:
        """Go on with every turn that a sudden end cut short, or that waited behind one; where its agent is gone, end it
        as failed. Call it once at the start: nobody else may be at work on these turns.

        Side effects that are known to have happened do not happen again; where nobody can tell, the model is told so.
        """
        return await self._turns.recover()

    def on(self, name: EventName, listener: Callable[[Any], Any]) -> Callable[[], None]:
        """Have a function, sync or async, called for each event of that name; the result takes it off again."""
        return self._house.listeners.on(name, listener)

    def off(self, name: EventName, listener: Callable[[Any], Any]) -> None:
        self._house.listeners.off(name, listener)

    async def close(self, grace: float = 0.0) -> None:
        """Give turns under way so many seconds to end, stop the others, and give back connections and processes.

        With a store, turns that were stopped stay open, and go on after the next start; without one they are cancelled.
        """
        if self._jobs is not None:
            await self._jobs.close()
        await self._turns.stop(grace)
        await self._house.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask_once(self, stream: AtlasStream) -> Message:
        try:
            return await stream.reply()
        except asyncio.CancelledError:
            stream.cancel()
            raise
