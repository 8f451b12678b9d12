"""The library's front door: `ask` for an answer, `send` for a stream, `run` for the whole result."""

import asyncio
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, cast, get_args

import msgspec

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.conversation import Conversation
from atlas_agents.core.errors import AtlasError, Cancelled, ConfigError, Conflict
from atlas_agents.core.events import EventName
from atlas_agents.core.ids import new_id
from atlas_agents.core.jobs import NOBODY, Chain
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, ToolResult
from atlas_agents.core.office import Colleague, Delegation
from atlas_agents.core.questions import Answer, Decision, Question
from atlas_agents.core.secret import Secret
from atlas_agents.core.store import OPEN, AddJournal, ClaimRun, RunRow, SetRun, Store, UsageRow
from atlas_agents.core.tenancy import Tenancy
from atlas_agents.dispatch.inline import Inline
from atlas_agents.dispatch.port import Dispatcher
from atlas_agents.engine.agent import Agent
from atlas_agents.engine.direct import call_of, request_of, result_of, session_of
from atlas_agents.engine.here import Here
from atlas_agents.engine.history import History
from atlas_agents.engine.house import House
from atlas_agents.engine.intake import as_message, mode_of, nobody_hears, split, terms_of
from atlas_agents.engine.interceptors import Interceptor
from atlas_agents.engine.jobs import Jobs
from atlas_agents.engine.lineup import Lineup
from atlas_agents.engine.loop import run_turn, take_in
from atlas_agents.engine.result import RunResult
from atlas_agents.engine.roster import Roster
from atlas_agents.engine.run import Accepted, Known, Run, Terms, WhenBusy, Wishes
from atlas_agents.engine.sessions import Sessions
from atlas_agents.engine.settings import Mode
from atlas_agents.engine.shelf import Shelf
from atlas_agents.engine.stream import AtlasStream
from atlas_agents.engine.team import Strategy, known_lineup
from atlas_agents.providers.prices import Price
from atlas_agents.providers.registry import Registry
from atlas_agents.tools.approvals import Approvals, Approve
from atlas_agents.tools.audit import AuditLog
from atlas_agents.tools.errand import errand_of
from atlas_agents.tools.journal import Journal, in_step
from atlas_agents.tools.limits import Limits
from atlas_agents.tools.permissions import Actor, Policy, Verdict
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
        self._live: dict[str, AtlasStream] = {}
        self._far: dict[str, AtlasStream] = {}
        """Of turns that were taken in here and are left to whoever is free."""
        self._running: set[asyncio.Task[None]] = set()
        self._dispatcher.serve(Here(self._house, self._live, self._take_on, lambda: self._jobs))
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        self.sessions = Sessions(store, tenant, self._shelf.drop)
        office, limiter = self._house.governance.office, self._house.governance.limiter
        self._jobs = Jobs(self, office, limiter.beat) if office is not None else None
        if office is not None:
            office.agents = lambda: [Colleague(each.id, each.name, each.role, each.description) for each in self.agents]

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
        if self._house.governance.office is None:
            raise ConfigError("this Atlas keeps no users: give it a store, Atlas(store=…)")
        return self._house.governance.office.tenancy

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
        run = self._open(session, agent_id, output=output, user=user, terms=terms)
        return await self._turn(run, message)

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
        chain: Chain = NOBODY,
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
        run = self._open(session, agent_id, output=output, stream=stream, user=user, terms=terms, wishes=wishes)
        if idempotency_key and run.desk.journal is None:
            raise ConfigError("an idempotency key needs a store, Atlas(store=…), and a session by name")
        before = [other for other in self._live.values() if other.session == run.conversation.id]
        self._start(stream, run, message)
        if when_busy == "interrupt" and not self._is_far(run):
            stream.interrupt(before)
        return stream

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
        run = self._open(place, agent_id, stream=stream, user=user, terms=terms)
        if idempotency_key and run.desk.journal is None:
            raise ConfigError("an idempotency key needs a store, Atlas(store=…)")
        if not session and self._house.store is not None:
            await self.sessions.put(own, label=tool[:80], archived=True)
        return self._start(stream, run, message)

    def stream(self, run_id: str) -> AtlasStream | None:
        """The stream of a turn that is under way, or waits for its turn, and was taken in or is run in this process."""
        return self._far.get(run_id) or self._live.get(run_id)

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
        run = self._open(Conversation(past), agent_id, output=output, max_rounds=max_rounds, user=user)
        reply = await self._turn(run, last)
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
        ids = await self._dispatcher.recover()
        return [stream for id in ids if (stream := self._live.get(id))]

    async def _take_on(self, row: RunRow) -> AtlasStream | None:
        """Go on with a turn that was taken in, here or elsewhere, before. None if it is under way here already, or its
        agent is gone: then it has failed."""
        store = cast(Store, self._house.store)
        to_stop = row.stop or (self._jobs is not None and await self._jobs.is_over(row))
        if row.id in self._live:
            return None
        if row.agent_id not in self._roster:
            lost, epoch = f"there is no agent {row.agent_id!r} any more", row.epoch + 1
            ended = AddJournal(row.id, epoch, "ended", "", encode({"status": "failed", "error": lost}))
            await store.commit(row.tenant, [ClaimRun(row.id), ended, SetRun(row.id, epoch, "failed", lost)])
            return None
        stream, errand = AtlasStream(row.id), errand_of(row)
        output, terms = msgspec.json.decode(errand.output), terms_of(errand, row)
        run = self._open(
            row.session, row.agent_id, output=output, stream=stream, user=row.user, terms=terms, wishes=terms.wishes
        )
        self._start(stream, run, None)
        if to_stop:
            stream.cancel()
        return stream

    async def _take_on_orphans(self, session: str) -> None:
        """The first time that this process has to do with a session: what was left open there goes first."""
        store, tenant = cast(Store, self._house.store), self._house.tenant
        for row in await store.runs(tenant, session, open_only=True):
            await self._take_on(row)
        await asyncio.sleep(0)  # they take their places in the line

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
        if grace and self._running:
            await asyncio.wait(self._running, timeout=grace)
        for run in self._runs:
            if run.desk.journal is not None:
                run.desk.journal.leave()
        running = list(self._running)
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
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

    def _start(self, stream: AtlasStream, run: Run, message: Message | None) -> AtlasStream:
        streams = self._far if self._is_far(run) else self._live
        task = stream.start(run, self._turn(run, message, stream))
        self._running.add(task)
        streams[run.id] = stream
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: streams.pop(run.id, None))
        return stream

    def _is_far(self, run: Run) -> bool:
        """It is taken in here, and then left to whoever is free."""
        return self._dispatcher.apart and run.desk.journal is not None and not run.goes_on

    async def _turn(self, run: Run, message: Message | None, stream: AtlasStream | None = None) -> Message:
        try:
            if self._is_far(run):
                return await self._leave_to_others(run, message, stream)
            if run.desk.journal is not None and not run.goes_on and not in_step(run.conversation):
                async with run.line.door:
                    await self._take_on_orphans(run.conversation.id)
            return await run_turn(run, message, mode_of(run))
        except Known as known:
            return await self._again(known.row, cast(AtlasStream, stream))
        finally:
            await self._house.listeners.catch_up()

    async def _leave_to_others(self, run: Run, message: Message | None, stream: AtlasStream | None) -> Message:
        """Take a message in, have whoever is free run its turn, and give what came of it. To give up waiting here stops
        the turn, unless it is this process that ends."""
        await take_in(run, message)
        row = cast(RunRow, cast(Journal, run.desk.journal).row)
        try:
            if run.terms.when_busy == "interrupt":
                await self._interrupt(row)
            return await self._outcome(await self._dispatcher.submit(row, stream.push if stream else nobody_hears))
        except asyncio.CancelledError:
            if not run.left:
                await asyncio.shield(self._dispatcher.cancel(run.id))
            raise

    async def _interrupt(self, row: RunRow) -> None:
        """Stop what was taken in before."""
        for other in await cast(Store, self._house.store).runs(row.tenant, row.session, open_only=True):
            if other.id == row.id:
                return
            await self._dispatcher.cancel(other.id)

    async def _again(self, row: RunRow, stream: AtlasStream) -> Message:
        """The answer of a turn that was accepted before."""
        live = self.stream(row.id)
        stream.known_as(Accepted(row.id, "in_flight" if row.status in OPEN else "done"))
        if live is not None:
            return await stream.echo(live)
        if row.status in OPEN and self._dispatcher.apart:
            row = await self._dispatcher.submit(row, stream.push)
        if row.status in OPEN:
            raise Conflict(f"run {row.id!r} is under way in another process")
        return await self._outcome(row)

    async def _outcome(self, row: RunRow) -> Message:
        """The answer of a turn that has ended, or what it came to instead."""
        if row.status == "cancelled":
            raise Cancelled("the turn was cancelled")
        rows = await self.sessions.messages(row.session)
        mine = [Message.from_json(each.body) for each in rows if each.run_id == row.id]
        speaker = "tool" if errand_of(row).call else "assistant"
        replies = [message for message in mine if message.role == speaker]
        if row.status == "failed" or not replies:
            raise AtlasError(row.error or "the turn failed")
        return replies[-1]

    def _open(
        self,
        session: str | Conversation,
        agent_id: str | None,
        *,
        output: Any = None,
        stream: AtlasStream | None = None,
        max_rounds: int | None = None,
        user: str = "",
        terms: Terms | None = None,
        wishes: Wishes | None = None,
    ) -> Run:
        agent = self._roster.chosen(agent_id)
        run = self._house.open_run(
            agent,
            wishes.within(agent.settings) if wishes else agent.settings,
            agent.context,
            self.conversation(session) if isinstance(session, str) else session,
            sink=stream.push if stream else None,
            id=stream.stream_id if stream else None,
            output=output,
            max_rounds=max_rounds,
            user=user,
            kept=isinstance(session, str),
            terms=terms,
        )
        self._runs.add(run)
        return run
