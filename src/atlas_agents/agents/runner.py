"""Turn runner: starts, resumes, follows and stops the turns of an Atlas."""

import asyncio
import hashlib
import logging
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import chain, repeat
from typing import Any, TypeAlias, cast

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.jobs import Jobs
from atlas_agents.agents.loop import accept_message, report_failure, run_turn
from atlas_agents.agents.options import TurnOptions
from atlas_agents.agents.run import Accepted, DuplicateRun, Run, Steered, decode_options
from atlas_agents.agents.runtime import AgentRuntime, choose_turn_function
from atlas_agents.agents.stream import AtlasStream, events_since
from atlas_agents.core.aio import BackgroundTasks, retry_while_lost
from atlas_agents.core.errors import (
    BadArguments,
    BudgetExceeded,
    Cancelled,
    ConfigError,
    Conflict,
    NotFound,
    StoreError,
    UnknownAgent,
    UnreadableRow,
    to_failure,
)
from atlas_agents.core.events import Event, MessageReceived, MessageSteered, StreamEnd
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Conversation, Message, Text, ToolCall, ToolResult, user
from atlas_agents.core.store import OPEN, AddJournal, ClaimRun, ReleaseBudgets, RunRow, SetRun, StopRun, Store
from atlas_agents.core.text import wire_name
from atlas_agents.dispatch import Dispatcher, OnEvent
from atlas_agents.tools.journal import EndRecord, is_loaded, read_answering_run, read_end_record, read_first_messages

logger = logging.getLogger(__name__)
_PAGE = 50
_MAX_CACHED_TOKENS = 8_000_000
"""Maximum size of all conversations in the cache: about 32 MB of text."""
_CALL_SESSIONS = "calls/"
ResumeRun: TypeAlias = Callable[[RunRow], Awaitable[AtlasStream | None]]
FollowResumed: TypeAlias = Callable[[RunRow], Awaitable[Callable[[AtlasStream], object]]]
"""Called with a run before it is resumed; returns a function that gets its stream before the first event."""
_RESUME_DELAYS = (1.0, 2.0, 5.0, 10.0)
_DRAIN_CHECK = 0.2
_CANCEL_TIMEOUT = 5.0
"""Seconds to wait for the end of a remote turn that was cancelled here."""


class AgentRegistry:
    """The agents of an Atlas by id, and the default agent: the first one until another is set."""

    def __init__(self, agents: Iterable[Agent], default: str | Agent | None = None) -> None:
        self._by_id = _index_by_id(agents)
        self.default: Agent | None = next(iter(self._by_id.values()), None)
        if default is not None:
            self.default = self.find(default) if isinstance(default, str) else self.add(default)

    @property
    def all(self) -> tuple[Agent, ...]:
        return tuple(self._by_id.values())

    def __contains__(self, agent_id: str) -> bool:
        return agent_id in self._by_id

    def get(self, agent_id: str) -> Agent | None:
        return self._by_id.get(agent_id)

    def find(self, agent_id: str) -> Agent:
        """Return an agent; raises UnknownAgent, which lists the known ones."""
        agent = self._by_id.get(agent_id)
        if agent is None:
            known = ", ".join(sorted(self._by_id)) or "none"
            raise UnknownAgent(f"not found: agent {agent_id!r} (known agents: {known})")
        return agent

    def resolve(self, agent_id: str | None) -> Agent:
        """Return the named agent, or the default agent for None."""
        agent = self.default if agent_id is None else self.find(agent_id)
        if agent is None:
            raise ConfigError("this Atlas has no agents: use Atlas(agents=[…]) or set_agent(…)")
        return agent

    def add(self, agent: Agent) -> Agent:
        """Add an agent, or replace the one with the same id."""
        self._by_id[agent.id] = agent
        return agent

    def replace_all(self, agents: Iterable[Agent]) -> None:
        """Replace all agents. The default agent keeps its id if there is still an agent with it."""
        found = _index_by_id(agents)
        default = self.default.id if self.default else ""
        self._by_id = found
        self.default = found.get(default) or next(iter(found.values()), None)


def _index_by_id(agents: Iterable[Agent]) -> dict[str, Agent]:
    found: dict[str, Agent] = {}
    if not isinstance(cast(object, agents), Iterable):
        raise ConfigError(f"Atlas(agents=…) takes a list of agents, got {agents!r}")
    for each in agents:
        if not isinstance(cast(object, each), Agent):
            raise ConfigError(f"Atlas(agents=…) takes a list of agents, got {each!r} in it")
        if each.id in found:
            raise ConfigError(f"duplicate agent id {each.id!r}: agent ids must be unique in an Atlas")
        found[each.id] = each
    return found


class ConversationCache:
    """LRU cache of conversations, limited by number and by size; with `max_size=None` it keeps all of them.

    A conversation that is still referenced stays the same object even after it was evicted.
    """

    def __init__(self, max_size: int | None, max_tokens: int = _MAX_CACHED_TOKENS) -> None:
        self._max_size = max_size
        self._max_tokens = max_tokens
        self._recent: OrderedDict[str, Conversation] = OrderedDict()
        self._alive: weakref.WeakValueDictionary[str, Conversation] = weakref.WeakValueDictionary()
        self._tokens: dict[str, int] = {}
        self._total = 0

    def get(self, session: str) -> Conversation:
        """Return the conversation of a session, created if there is none."""
        found = self._recent.get(session)
        if self._max_size is None:  # none is evicted
            if found is None:
                found = self._recent[session] = Conversation(id=session)
            return found
        found = found or self._alive.get(session)
        if found is None:
            found = self._alive[session] = Conversation(id=session)
        self._recent[session] = found
        self._recent.move_to_end(session)
        if len(self._recent) > self._max_size:
            self._evict(next(iter(self._recent)))
        return found

    def measure(self, conversation: Conversation) -> None:
        """Update the size of a conversation after a turn; evict the oldest ones if the cache is too large."""
        session = conversation.id
        if self._max_size is None or session not in self._recent:
            return
        tokens = conversation.index.tokens
        self._total += tokens - self._tokens.get(session, 0)
        self._tokens[session] = tokens
        while self._total > self._max_tokens:
            self._evict(next(iter(self._recent)))

    def remove(self, session: str) -> None:
        """Forget a deleted session."""
        self._evict(session)
        self._alive.pop(session, None)

    def _evict(self, session: str) -> None:
        self._recent.pop(session, None)
        self._total -= self._tokens.pop(session, 0)


class LocalExecutor:
    """Run executor: operations of the dispatcher in this process. `live` has the turns that run here."""

    def __init__(
        self, runtime: AgentRuntime, live: Mapping[str, AtlasStream], resume_run: ResumeRun, jobs: Jobs | None
    ) -> None:
        self._runtime = runtime
        self._live = live
        self._resume_run = resume_run
        self._jobs = jobs

    @property
    def tenant(self) -> str:
        return self._runtime.tenant

    async def orphaned_runs(self) -> list[RunRow]:
        return await self._runtime.store.orphaned_runs() if self._runtime.store is not None else []

    async def run_row(self, run_id: str) -> RunRow | None:
        return await self._runtime.store.run(self.tenant, run_id) if self._runtime.store is not None else None

    async def resume_run(self, row: RunRow) -> AtlasStream | None:
        return await self._resume_run(row)

    def running_turn(self, run_id: str) -> AtlasStream | None:
        return self._live.get(run_id)

    async def request_stop(self, run_id: str) -> bool:
        if self._runtime.store is None:
            return False
        try:
            await self._runtime.store.commit(self.tenant, [StopRun(run_id)])
        except (Conflict, NotFound):
            return False
        return True

    async def deliver_answer(self, approval_id: str) -> None:
        await self._runtime.deliver_answer(approval_id)

    async def refresh_job(self, job_id: str) -> None:
        if self._jobs is not None:
            await self._jobs.refresh(job_id)

    async def start_jobs(self) -> None:
        if self._jobs is not None:
            self._jobs.start()

    async def stop_jobs(self) -> None:
        if self._jobs is not None:
            await self._jobs.close()

    async def recheck(self) -> None:
        for run_id, stream in list(self._live.items()):
            row = await self.run_row(run_id)
            if row is not None and row.stop:
                stream.cancel()
        for question in self._runtime.governance.approvals.pending:
            await self.deliver_answer(question.id)
        if self._jobs is not None:
            self._jobs.wake()


class TurnRunner:
    """Runs turns in this process, or leaves accepted turns to other processes, as the dispatcher decides."""

    def __init__(
        self,
        runtime: AgentRuntime,
        agents: AgentRegistry,
        conversations: ConversationCache,
        dispatcher: Dispatcher,
        jobs: Jobs | None,
    ) -> None:
        self._runtime = runtime
        self._agents = agents
        self._conversations = conversations
        self._dispatcher = dispatcher
        self._jobs = jobs
        self._live: dict[str, AtlasStream] = {}
        self._remote: dict[str, AtlasStream] = {}
        """Streams of turns that were accepted here and run in any process."""
        self._tasks = BackgroundTasks("turns")
        self._unrecorded = BackgroundTasks("turns to resume")
        self._runs: weakref.WeakSet[Run] = weakref.WeakSet()
        """Runs with a journal, from which they are detached when the process shuts down."""
        self._stopping = False
        self._follow_resumed: FollowResumed | None = None
        dispatcher.serve(LocalExecutor(runtime, self._live, self.resume_run, jobs))

    @property
    def _store(self) -> Store:
        return cast(Store, self._runtime.store)

    def create(
        self,
        session: str | Conversation,
        agent_id: str | None,
        options: TurnOptions,
        *,
        user: str = "",
        stream: AtlasStream | None = None,
        row: RunRow | None = None,
    ) -> Run:
        """Create a turn, which has no effect until it is run or started. `row` is that of a run to resume."""
        is_key = isinstance(session, str)
        if not is_key and not isinstance(cast(object, session), Conversation):
            raise ConfigError(f"invalid session {session!r}: expected a key such as 'ana', or a Conversation")
        agent = self._agents.resolve(agent_id)
        if options.deps is not None and self._dispatcher.is_remote and is_key:
            raise ConfigError(
                "deps=… cannot be sent to the processes of a cluster: pass Atlas(deps=…) a function that makes them"
            )
        run = self._runtime.create_run(
            agent,
            agent.context,
            self._conversations.get(session) if isinstance(session, str) else session,
            options=options,
            user=user,
            log=stream.log if stream else None,
            id=stream.stream_id if stream else None,
            durable=is_key,
            row=row,
        )
        if run.journal is not None:
            self._runs.add(run)
        return run

    def start(self, stream: AtlasStream, run: Run, message: Message | None) -> AtlasStream:
        """Run a turn in its own task, with its events in the stream. With `interrupt` it cancels earlier turns."""
        remote = self._is_remote(run)
        streams = self._remote if remote else self._live
        task = stream.start(run, self.run(run, message, stream))
        if run.options.when_busy == "interrupt" and not remote:
            stream.interrupt([other for other in self._live.values() if other.session == run.conversation.id])
        self._tasks.adopt(task, partial(self._on_ended, streams, run, stream))
        streams[run.id] = stream
        return stream

    def _on_ended(self, streams: dict[str, AtlasStream], run: Run, stream: AtlasStream) -> None:
        """Forget a turn that has ended, or resume it if its end could not be recorded.

        No other process would resume it, and its session would be stuck.
        """
        streams.pop(run.id, None)
        if run.detached and not run.fenced and not self._stopping and not self._dispatcher.is_remote:
            self._unrecorded.spawn(self._resume_later(run.id, cancel=isinstance(stream.failure, Cancelled)))

    async def _resume_later(self, run_id: str, *, cancel: bool) -> None:
        """Resume a turn as soon as the store is available; one that was cancelled ends there."""
        for delay in chain(_RESUME_DELAYS, repeat(_RESUME_DELAYS[-1])):
            await self._runtime.clock.sleep(delay)
            try:
                row = await self._store.run(self._runtime.tenant, run_id)
                stream = await self.resume_run(row) if row is not None and row.status in OPEN else None
            except StoreError as error:
                logger.warning("turn not resumed yet: run=%s error=%s", run_id, error)
                continue
            if stream is not None and cancel:
                stream.cancel()
            return

    def on_resume(self, follow: FollowResumed) -> None:
        """Register a function that follows every turn that is resumed in this process, whatever resumes it."""
        self._follow_resumed = follow

    def stream(self, run_id: str) -> AtlasStream | None:
        return self._remote.get(run_id) or self._live.get(run_id)

    async def follow(self, run_id: str) -> AtlasStream | None:
        """Return the stream of an unfinished turn, whichever process accepted it and runs it; None if there is none."""
        stream = self.stream(run_id)
        if stream is not None or not self._dispatcher.is_remote:
            return stream
        row = await self._store.run(self._runtime.tenant, run_id)
        if row is None or row.status not in OPEN:
            return None
        stream = AtlasStream(run_id)
        self._tasks.adopt(stream.attach(self._follow_remote(row, stream.push)))
        return stream

    async def _follow_remote(self, row: RunRow, on_event: OnEvent, *, interrupts: bool = False) -> Message:
        """Return the answer of a remote turn. Cancelling the wait cancels the turn, unless this process shuts down, and
        gives it a moment to emit how it ended.

        A turn that a steering message entered is not cancelled with it. `interrupts`: the earlier turns of the session
        are cancelled first.
        """
        following = asyncio.ensure_future(self._submit(row, on_event, interrupts))
        try:
            ended = await asyncio.shield(following)
        except asyncio.CancelledError:
            if not self._stopping:
                await asyncio.shield(self._dispatcher.cancel(row.id))
                await asyncio.wait([asyncio.gather(following, return_exceptions=True)], timeout=_CANCEL_TIMEOUT)
            raise
        finally:
            following.cancel()
        answering = await retry_while_lost(partial(read_answering_run, self._store, ended), self._runtime.clock)
        if answering.id != row.id:
            on_event = events_since(read_first_messages(ended)[-1].id, on_event)
            ended = await self._dispatcher.submit(answering, on_event)
        return await self._read_answer(ended)

    async def _submit(self, row: RunRow, on_event: OnEvent, interrupts: bool) -> RunRow:
        if interrupts:
            await retry_while_lost(partial(self._cancel_earlier, row), self._runtime.clock)
        return await self._dispatcher.submit(row, on_event)

    async def run(self, run: Run, message: Message | None, stream: AtlasStream | None = None) -> Message:
        """Run a turn here or remotely, and return its answer."""
        try:
            if self._is_remote(run):
                return await self._run_remotely(run, message, stream)
            if run.journal is not None and not run.resumed and not is_loaded(run.conversation):
                await self._load_session(run)
            return await run_turn(run, message, choose_turn_function(run))
        except Steered as steered:
            return await self._follow_entered(run, steered, stream)
        except DuplicateRun as duplicate:
            return await self._answer_duplicate(duplicate.row, run, cast(AtlasStream, stream))
        finally:
            if run.journal is not None:
                run.journal.leave_quarantine()
                self._conversations.measure(run.conversation)
            if self._runtime.subscribers.has_listeners:
                await self._runtime.subscribers.drain()

    async def recover(self) -> list[AtlasStream]:
        """Resume the unfinished turns that no process owns."""
        ids = await self._dispatcher.recover()
        return [stream for id in ids if (stream := self._live.get(id))]

    async def resume_run(self, row: RunRow) -> AtlasStream | None:
        """Resume an accepted turn. None if it already runs here, or if it was failed because it cannot be resumed."""
        try:
            options = decode_options(row)
        except UnreadableRow as error:
            logger.error("turn failed: run=%s session=%s error=%s", row.id, row.session, error)
            await self._fail(row, str(error), "UnreadableRow")
            return None
        cancelled = row.stop or (self._jobs is not None and await self._jobs.is_obsolete(row))
        follow = await self._follow_resumed(row) if self._follow_resumed is not None else None
        if row.id in self._live:
            return None
        if row.agent_id not in self._agents:
            await self._fail(row, f"agent {row.agent_id!r} no longer exists")
            return None
        stream = AtlasStream(row.id)
        run = self.create(row.session, row.agent_id, options, user=row.user, stream=stream, row=row)
        self.start(stream, run, None)
        if follow is not None:
            follow(stream)
        if cancelled:
            stream.cancel()
        return stream

    async def stop(self, grace: float) -> None:
        """Wait up to `grace` seconds for running turns, then stop the others, which resume in another process."""
        end = asyncio.get_running_loop().time() + grace
        while (left := end - asyncio.get_running_loop().time()) > 0 and self._has_active_turns():
            await self._tasks.wait(min(left, _DRAIN_CHECK))
        self._stopping = True
        await self._unrecorded.close()
        for run in self._runs:
            if run.journal is not None:
                run.journal.detach()
        await self._tasks.close()

    def _has_active_turns(self) -> bool:
        """Return whether a turn runs here, apart from turns that wait for their client, which may take days."""
        waiting = {each.run_id for each in self._runtime.governance.approvals.waiting if each.kind == "client_tool"}
        return len(self._tasks) > len(waiting.intersection(self._live))

    def _is_remote(self, run: Run) -> bool:
        """Return whether the turn is only accepted here, and may run in any process."""
        return self._dispatcher.is_remote and run.journal is not None and not run.resumed

    async def _fail(self, row: RunRow, error: str, kind: str = "") -> None:
        epoch = row.epoch + 1
        ended = AddJournal(row.id, epoch, "ended", "", encode(EndRecord("failed", error, kind=kind)))
        failed = SetRun(row.id, epoch, "failed", error)
        await self._store.commit(row.tenant, [ClaimRun(row.id), ended, failed, ReleaseBudgets(row.id, ended=True)])

    async def _load_session(self, run: Run) -> None:
        """Prepare a session for its first new turn in this process; a failure ends that turn."""
        try:
            async with run.lock.accept:
                await self._resume_session(run.conversation.id)
        except (asyncio.CancelledError, Exception) as failure:
            report_failure(run, failure)
            raise

    async def _resume_session(self, session: str) -> None:
        """Resume unfinished turns of a session before its first new turn in this process."""
        rows = await self._store.runs(self._runtime.tenant, session, open_only=True)
        if any(row.id not in self._live for row in rows):
            await self._store.orphaned_runs()  # raises StoreInUse if they may belong to another process
        for row in rows:
            await self.resume_run(row)
        await asyncio.sleep(0)  # lets them queue for the session lock first

    async def _run_remotely(self, run: Run, message: Message | None, stream: AtlasStream | None) -> Message:
        """Accept a message, have any process run its turn, and return the answer."""
        try:
            await accept_message(run, message)
        except DuplicateRun:
            raise
        except (asyncio.CancelledError, Exception) as failure:
            report_failure(run, failure)
            raise
        row = cast(RunRow, run.journal.row if run.journal is not None else None)
        on_event = stream.push if stream else _ignore_event
        reply = await self._follow_remote(row, on_event, interrupts=run.options.when_busy == "interrupt")
        run.read_output(reply)
        return reply

    async def _cancel_earlier(self, row: RunRow) -> None:
        """Cancel the turns of the session that were accepted before this one."""
        for other in await self._store.runs(row.tenant, row.session, open_only=True):
            if other.id == row.id:
                return
            await self._dispatcher.cancel(other.id)

    async def _follow_entered(self, run: Run, steered: Steered, stream: AtlasStream | None) -> Message:
        """Return the answer of the turn that the message of `run` entered, with its events from there on."""
        entered, live = steered.run, self._live.get(steered.run.id)
        run.emit(MessageSteered(run.id, entered.id))
        if live is not None and stream is not None:
            return await stream.mirror(live, steered.message_id, cancels=False)
        reply = await asyncio.shield(cast("asyncio.Future[Message]", entered.outcome))
        if stream is not None:
            stream.push(StreamEnd(entered.id, entered.usage))
            stream.push(MessageReceived(entered.id, reply))
        return reply

    async def _answer_duplicate(self, row: RunRow, run: Run, stream: AtlasStream) -> Message:
        """Return the answer of the earlier turn with the same idempotency key; `run` is the one that was not needed."""
        sent, row = row.id, await read_answering_run(self._store, row)
        live = self.stream(sent) or self.stream(row.id)
        stream.resolve_duplicate(Accepted(sent, "in_flight" if row.status in OPEN else "done"))
        if live is not None:
            return await stream.mirror(live, cancels=row.id == sent)
        if row.status in OPEN and self._dispatcher.is_remote:
            return await self._follow_remote(row, stream.push)
        if row.status in OPEN:
            raise Conflict(f"run {row.id!r} is running in another process")
        if (ended := await read_end_record(self._store, row)) is not None:
            run.meter.total = ended.usage
        reply = await self._read_answer(row)
        run.read_output(reply)
        return reply

    async def _read_answer(self, row: RunRow) -> Message:
        """Return the answer of a turn that has ended, or raise its error."""
        if row.status == "cancelled":
            raise Cancelled("the turn was cancelled")
        clock = self._runtime.clock
        reply = await retry_while_lost(partial(self._last_reply, row), clock) if row.status != "failed" else None
        if reply is None:
            ended = await retry_while_lost(partial(read_end_record, self._store, row), clock)
            failure = to_failure(ended.kind if ended else "", row.error or "the turn failed")
            if ended is not None and isinstance(failure, BudgetExceeded):
                failure.partial = "".join([part.text for part in ended.partial if isinstance(part, Text)])
            raise failure
        return reply

    async def _last_reply(self, row: RunRow) -> Message | None:
        """Find the last reply of a turn, reading the session from its end."""
        role, before = "tool" if decode_options(row).call else "assistant", None
        while rows := await self._store.messages(row.tenant, row.session, before=before, limit=_PAGE, last=True):
            for message in (each.message for each in reversed(rows) if each.run_id == row.id):
                if message.role == role:
                    return message
            before = rows[0].seq
        return None


def _ignore_event(event: Event) -> None:
    """Do nothing: the caller only waits for the answer."""


def tool_call_for(run_id: str, tool: str, arguments: dict[str, Any]) -> ToolCall:
    """Build the call as a model would make it. `tool` is the tool's own name, or the name that models use."""
    return ToolCall(f"call_{run_id}", wire_name(tool), arguments)


def tool_call_message(tool: str, arguments: dict[str, Any]) -> Message:
    """Build the user message that represents a tool call in its session."""
    try:
        text = encode(arguments).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise BadArguments(f"The arguments of {tool} are not plain JSON: {error}") from error
    return user(f"{tool} {text}")


def tool_call_session(user: str, run_id: str, idempotency_key: str) -> str:
    """Return the session of a tool call: one per call, so that calls do not wait for each other, or one per key."""
    key = hashlib.sha256(encode([user, idempotency_key])).hexdigest()[:32] if idempotency_key else run_id
    return f"{_CALL_SESSIONS}{key}"


def tool_call_result(reply: Message) -> ToolResult:
    """Return the result of a tool call from the reply of its turn."""
    return next(part for part in reply.parts if isinstance(part, ToolResult))
