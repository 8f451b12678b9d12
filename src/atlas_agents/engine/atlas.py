"""The library's front door: `ask` for an answer, `send` for a stream, `run` for the whole result."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self, cast

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.conversation import Conversation
from atlas_agents.core.errors import ConfigError, UnknownAgent
from atlas_agents.core.events import EventName
from atlas_agents.core.ids import new_id
from atlas_agents.core.messages import Message, user
from atlas_agents.core.store import ClaimRun, SetRun, Store
from atlas_agents.engine.agent import Agent
from atlas_agents.engine.history import History
from atlas_agents.engine.house import House
from atlas_agents.engine.interceptors import Interceptor
from atlas_agents.engine.loop import rounds, run_turn, shaped
from atlas_agents.engine.result import RunResult
from atlas_agents.engine.run import Run
from atlas_agents.engine.stream import AtlasStream
from atlas_agents.providers.registry import Registry
from atlas_agents.tools.approvals import Approvals, Approve
from atlas_agents.tools.audit import AuditLog
from atlas_agents.tools.limits import Limits
from atlas_agents.tools.permissions import Policy


class Atlas:
    """Agents, and conversations with them. State lives in memory.

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
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._agents: dict[str, Agent] = {}
        for each in agents:
            if each.id in self._agents:
                raise ConfigError(f"two agents have the id {each.id!r}")
            self._agents[each.id] = each
        self._current: Agent | None = next(iter(self._agents.values()), None)
        if default_agent is not None:
            self._current = self._find(default_agent) if isinstance(default_agent, str) else self._adopt(default_agent)
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
            clock=clock,
        )
        self._sessions: dict[str, Conversation] = {}
        self._running: set[asyncio.Task[None]] = set()

    @property
    def agents(self) -> tuple[Agent, ...]:
        return tuple(self._agents.values())

    def get_agent(self) -> Agent | None:
        """The agent that answers when none is named."""
        return self._current

    def set_agent(self, agent: Agent) -> Self:
        """Let this agent answer from now on; a new one of a known id takes the old one's place."""
        self._current = self._adopt(agent)
        return self

    def set_agent_by_id(self, agent_id: str) -> Self:
        self._current = self._find(agent_id)
        return self

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
        """The conversation of a session, begun if there is none yet."""
        found = self._sessions.get(session)
        if found is None:
            found = self._sessions[session] = Conversation(id=session)
        return found

    async def ask(
        self,
        message: str | Message,
        *,
        session: str | Conversation = "default",
        agent_id: str | None = None,
        output: Any = None,
        user: str = "",
    ) -> Message:
        """Take one turn and give back the answer. `output` is the JSON schema or Python type it must fit."""
        run = self._open(session, agent_id, output=output, user=user)
        return await self._turn(run, _as_message(message))

    def send(
        self,
        message: str | Message,
        *,
        session: str | Conversation = "default",
        agent_id: str | None = None,
        output: Any = None,
        user: str = "",
    ) -> AtlasStream:
        """Start one turn and give back its stream."""
        stream = AtlasStream(new_id())
        run = self._open(session, agent_id, output=output, stream=stream, user=user)
        return self._start(stream, run, _as_message(message))

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
        past, last = _split(messages)
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
        )

    async def recover(self) -> list[AtlasStream]:
        """Go on with every turn that a sudden end cut short; one whose agent is gone is ended as failed.

        Side effects that are known to have happened do not happen again; where nobody can tell, the model is told so.
        """
        store = self._house.store
        if store is None:
            return []
        streams: list[AtlasStream] = []
        for row in await store.open_runs():
            if row.tenant != self._house.tenant:
                continue
            if row.agent_id not in self._agents:
                (epoch,) = await store.commit(row.tenant, [ClaimRun(row.id)])
                lost = f"there is no agent {row.agent_id!r} any more"
                await store.commit(row.tenant, [SetRun(row.id, epoch, "failed", lost)])
                continue
            stream = AtlasStream(row.id)
            run = self._open(row.session, row.agent_id, stream=stream, user=row.user)
            streams.append(self._start(stream, run, None))
        return streams

    def on(self, name: EventName, listener: Callable[[Any], Any]) -> Callable[[], None]:
        """Have a function, sync or async, called for each event of that name; the result takes it off again."""
        return self._house.listeners.on(name, listener)

    def off(self, name: EventName, listener: Callable[[Any], Any]) -> None:
        self._house.listeners.off(name, listener)

    async def close(self) -> None:
        """Cancel what still runs and give back connections and processes."""
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

    def _start(self, stream: AtlasStream, run: Run, message: Message | None) -> AtlasStream:
        task = stream.start(run, self._turn(run, message))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return stream

    async def _turn(self, run: Run, message: Message | None) -> Message:
        try:
            return await run_turn(run, message, shaped if run.output else rounds)
        finally:
            await self._house.listeners.catch_up()

    def _open(
        self,
        session: str | Conversation,
        agent_id: str | None,
        *,
        output: Any = None,
        stream: AtlasStream | None = None,
        max_rounds: int | None = None,
        user: str = "",
    ) -> Run:
        agent = self._current if agent_id is None else self._find(agent_id)
        if agent is None:
            raise ConfigError("this Atlas has no agent: Atlas(agents=[…]) or set_agent(…)")
        return self._house.open_run(
            agent,
            agent.settings,
            agent.context,
            self.conversation(session) if isinstance(session, str) else session,
            sink=stream.push if stream else None,
            id=stream.stream_id if stream else None,
            output=output,
            max_rounds=max_rounds,
            user=user,
            kept=isinstance(session, str),
        )

    def _find(self, agent_id: str) -> Agent:
        agent = self._agents.get(agent_id)
        if agent is None:
            known = ", ".join(sorted(self._agents)) or "none"
            raise UnknownAgent(f"there is no agent {agent_id!r}; there are: {known}")
        return agent

    def _adopt(self, agent: Agent) -> Agent:
        self._agents[agent.id] = agent
        return agent


def _as_message(message: str | Message) -> Message:
    if isinstance(message, Message):
        return message
    if not isinstance(cast(object, message), str):
        raise ConfigError(f"a message is a text or a Message, not {message!r}")
    return user(message)


def _split(messages: str | Message | Sequence[Message]) -> tuple[Sequence[Message], Message | None]:
    """(what was said before, the new message); with nothing new from the user the model just goes on."""
    if isinstance(messages, str | Message):
        return (), _as_message(messages)
    if not messages:
        raise ConfigError("run needs at least one message")
    return (messages[:-1], messages[-1]) if messages[-1].role == "user" else (messages, None)
