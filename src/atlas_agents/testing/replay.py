"""Replay: run a finished turn again, offline, from its journal, and compare its behaviour with the record.

The turn goes through the same agent loop and the same checks of tool calls as a turn that is resumed after a crash.
Replies, results of tools, approvals and decisions of hooks come from the record; no model is called and no tool is run.
"""

import asyncio
import re
import sys
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator, Iterable, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from multiprocessing import util
from pathlib import Path
from threading import get_ident
from typing import Any, TypeAlias, cast, get_args

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.atlas import Atlas
from atlas_agents.agents.history import SentRequest
from atlas_agents.agents.loop import run_turn
from atlas_agents.agents.options import AgentSettings
from atlas_agents.agents.run import Run, decode_options
from atlas_agents.agents.runtime import AgentRuntime, choose_turn_function
from atlas_agents.core.aio import Alarm
from atlas_agents.core.approvals import Answer, Question
from atlas_agents.core.errors import AtlasError, ConfigError, Declined, ProviderError, ProviderFault, to_failure
from atlas_agents.core.events import FailedAttempt, Usage
from atlas_agents.core.messages import Conversation, Message, Text, ToolCall, ToolResult
from atlas_agents.core.paths import write_file
from atlas_agents.core.plugins import import_target
from atlas_agents.core.store import RunRow, Store, Write
from atlas_agents.providers.base import (
    BaseProvider,
    Capabilities,
    Chunk,
    DoneChunk,
    Request,
    TextChunk,
    ThinkingChunk,
)
from atlas_agents.providers.failover import REFUSAL, ContextLimit, Failover, RetryPolicy, Route, TurnProvider
from atlas_agents.providers.registry import Model
from atlas_agents.testing.comparison import ReplayResult, RunComparison
from atlas_agents.testing.run_record import ReplayError, RunRecord, redact_record
from atlas_agents.tools.approvals import Approvals, ApprovalStore
from atlas_agents.tools.audit import AuditEntry
from atlas_agents.tools.journal import Journal, JournaledApprovals

Agents: TypeAlias = Atlas | Agent | Iterable[Agent]
_BLOCKED = frozenset(
    (
        *("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"),
        *("socket.gethostbyaddr", "socket.getnameinfo", "multiprocessing.spawn", "_winapi.CreateProcess"),
        *("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty", "os.spawn"),
    )
)
_replaying: ContextVar[bool] = ContextVar("atlas_replaying", default=False)


class ReplayBlocked(AtlasError):
    """Code tried to open a connection, to look up a host name or to start a process during a replay."""


async def replay(
    run: str | Path | RunRecord,
    atlas: Agents | None = None,
    *,
    store: Store | None = None,
    tenant: str = "",
    deps: Any = None,
) -> ReplayResult:
    """Replay a finished run with the agents, prompts, tools and policy of `atlas`, and compare it with the record.

    Nothing is written to the store, no model is called, no tool is run, and no MCP server is connected. Opening a
    connection, looking up a host name and starting a process raise `ReplayBlocked`, in the code of the turn and in all
    other threads of this process while the replay runs. This finds mistakes; it is not a sandbox: files, connections
    that are open already, and extension modules that bypass Python's audit events are not covered.

    Args:
        run: Id of a run in the store, the path of a saved run, or a `RunRecord`.
        atlas: An `Atlas`, an agent or several agents.
        store: The store that has the run; that of the Atlas by default.
        tenant: Owner of the run; that of the Atlas by default.
        deps: Passed to prompts, rules and hooks, if the turn was sent with `deps`.
    """
    if atlas is None:
        raise ConfigError("replay needs the agents of the run: pass an Atlas, an agent or a list of agents")
    atlas = read_agents(atlas)
    record = await read_run(run, store or atlas.store, tenant or atlas.tenant)
    find_run_agent(atlas, record)
    comparison = RunComparison(record)
    with sealed():
        return await _replay(record, atlas, comparison, deps)


def read_agents(given: Agents) -> Atlas:
    """Return an Atlas of the given agents."""
    if isinstance(given, Atlas):
        return given
    return Atlas([given] if isinstance(given, Agent) else given)


async def read_run(run: str | Path | RunRecord, store: Store | None, tenant: str) -> RunRecord:
    """Return the record of a run, from its file or its store."""
    if isinstance(run, RunRecord):
        return run
    if isinstance(run, Path):
        return RunRecord.load(run)
    if store is None:
        raise ConfigError("replay needs the store of the run: pass store=…, or an Atlas with a store")
    return await RunRecord.read(store, run, tenant)


def find_run_agent(atlas: Atlas, record: RunRecord) -> Agent:
    """Return the agent of a run; raises ReplayError if there is none."""
    found = next((agent for agent in atlas.agents if agent.id == record.agent_id), None)
    if found is None:
        known = ", ".join(sorted(agent.id for agent in atlas.agents)) or "none"
        raise ReplayError(f"run {record.id!r} is of the agent {record.agent_id!r}, which is not given (given: {known})")
    return found


async def _replay(record: RunRecord, atlas: Atlas, comparison: "RunComparison", deps: Any) -> ReplayResult:
    clock, store = ReplayClock(record.created_at / 1000), open_scratch_store()
    row = await record.seed(store)
    runtime = atlas.derive_runtime(
        partial(ReplayRuntime, comparison),
        budgets=(),
        tenant=record.tenant,
        store=store,
        clock=clock,
        approve=RecordedGrants(record),
        create_journal=partial(ReplayJournal, comparison),
    )
    comparison.redact = runtime.governance.redactor.remove_known
    run = create_copied_run(runtime, record, row, deps)
    message: Message | None = None
    failure: BaseException | None = None
    task = asyncio.ensure_future(run_turn(run, None, choose_turn_function(run)))
    try:
        message = await asyncio.shield(task)
    except asyncio.CancelledError as cancelled:
        if not task.cancelled():
            task.cancel()
            raise
        failure = cancelled
    except Exception as raised:  # noqa: BLE001 - how the turn ended is compared with the record
        failure = raised
    finally:
        await runtime.close()
    status = "done" if message is not None else "cancelled" if task.cancelled() else "failed"
    comparison.end(status, failure)
    return comparison.result(status, message, run.output_value, failure)


def open_scratch_store() -> Store:
    """Return an empty store in memory; its library is imported when it is first needed."""
    from atlas_agents.storage.sqlite import MemoryStore

    return MemoryStore()


def create_copied_run(runtime: AgentRuntime, record: RunRecord, row: RunRow, deps: Any = None, **options: Any) -> Run:
    """Create a run from a record that was copied to the store of a runtime."""
    given = decode_options(row)
    if deps is not None:
        options["deps"] = deps
    agent = runtime.find_agent(record.agent_id)
    return runtime.create_run(
        agent,
        agent.context,
        Conversation(id=record.session),
        options=msgspec.structs.replace(given, **options),
        user=record.user,
        id=record.id,
        durable=True,
        row=row,
    )


@contextmanager
def sealed() -> Generator[None]:
    """Refuse connections and new processes within this context, and in all threads but those that run a replay.

    Other tasks of a thread that runs a replay are not affected.
    """
    _install_guard()
    token, thread = _replaying.set(True), get_ident()
    _replay_threads.append(thread)
    try:
        yield
    finally:
        _replay_threads.remove(thread)
        _replaying.reset(token)


_guards: list[bool] = []
_replay_threads: list[int] = []


def _install_guard() -> None:
    if _guards:  # an audit hook cannot be removed
        return
    _guards.append(True)
    sys.addaudithook(_refuse_effects)
    start: Callable[..., Any] | None = getattr(util, "spawnv_passfds", None)
    if start is not None:  # it starts processes without an audit event

        @wraps(start)
        def audited(*arguments: Any) -> Any:
            sys.audit("multiprocessing.spawn", *arguments)
            return start(*arguments)

        util.spawnv_passfds = audited  # pyrefly: ignore[bad-assignment] - it takes and returns the same


def _refuse_effects(event: str, arguments: Any, blocked: frozenset[str] = _BLOCKED) -> None:
    """Refuse an event while a replay runs. `blocked` is an argument because globals are None when the process exits."""
    if event not in blocked:
        return
    if _replaying.get() or (_replay_threads and get_ident() not in _replay_threads):
        what = "a replay or a crash test, which neither use the network nor start processes"
        raise ReplayBlocked(f"{event} was called during {what}")


class _NoAlarm:
    def cancel(self) -> None:
        """Do nothing: the alarm never rings."""


class ReplayClock:
    """Virtual clock of a replay: it has the recorded times, and waiting takes no time. Deadlines never pass."""

    def __init__(self, start: float) -> None:
        self._start = self._now = start

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now - self._start

    def move_to(self, time: float) -> None:
        self._now = max(self._now, time)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Alarm:
        return _NoAlarm()

    async def sleep(self, seconds: float) -> None:
        self._now += seconds
        await asyncio.sleep(0)


class ReplayJournal(Journal):
    """Journal of a replay. Replies and results come from the record, and calls are checked again but never run."""

    def __init__(self, comparison: RunComparison, *given: Any, clock: ReplayClock, **options: Any) -> None:
        super().__init__(*given, clock=clock, **options)
        self._comparison, self._replay_clock = comparison, clock

    def is_settled(self, call: ToolCall, *, repeatable: bool) -> bool:
        """Return False, so that the current policy checks every call."""
        return False

    def has_intent(self, call: ToolCall) -> bool:
        """Return True, so that hooks are not called: their decisions are in the record."""
        return True

    def next_reply(self) -> Message | None:
        reply = super().next_reply()
        if reply is not None:
            self._comparison.round += 1
            self._replay_clock.move_to(self._comparison.replies[self._comparison.round - 1].at / 1000)
        return reply

    def _create_approvals(self) -> "RecordedApprovals":
        return RecordedApprovals(
            *(self._store, self._tenant, self._run_id, self._session),
            *(self._write_status_step, self._committer, self._clock),
            recorded=self._comparison,
        )

    async def check_request(self, provider: Any, build: Callable[[int, str], Awaitable[Any]]) -> None:
        expected = self._comparison.expected_request()
        if expected is not None and expected.metadata is not None and self._metadata is not None:
            self._metadata.restore(expected.metadata)
        sent: SentRequest | None = await (build(expected.limit, expected.cleared) if expected else build(0, ""))
        self._comparison.request(sent)
        if sent is not None and expected is not None and isinstance(provider, RecordedTurn):
            await provider.repeat(sent.request, expected.failed, self._comparison.answering_model)

    def outcome_of(self, decision: Any) -> ToolResult | None:
        return self._comparison.decision(decision)

    async def record_intent(self, call: ToolCall, *counts: Any) -> None:
        """Raise an error: a tool would run after an intent."""
        raise ReplayBlocked(f"a replay does not run the tool {call.name!r}")

    async def record_outcome(
        self, call: ToolCall, result: ToolResult, entry: AuditEntry, usage: Usage, *more: Write
    ) -> None:
        self._comparison.refusal(call, result)


class RecordedApprovals(JournaledApprovals, kw_only=True):
    """Approval store of a replay: every question has the answer that was recorded for the same call."""

    recorded: RunComparison

    async def save_question(self, question: Question) -> tuple[Question, Answer | None]:
        """Return the recorded answer; without one, the turn was cancelled while it waited, or none was needed."""
        asked = [step.decode(Question) for step in self.recorded.record.of_kind("asked")]
        found = next((each for each in asked if (each.call_id, each.form) == (question.call_id, None)), None)
        self.recorded.question(question, found)
        if found is None:
            raise Declined(f"{question.tool} requires approval, and no one can be asked")
        answers = {step.key: step.decode(Answer) for step in self.recorded.record.of_kind("answered")}
        if found.id not in answers:
            await cancel_turn()
        return question, answers[found.id]

    async def save_answer(self, question: Question, answer: Answer, grants: str, *, new: bool) -> Answer:
        return answer

    async def find_grants(self, binding: str) -> list[tuple[Question, Answer]]:
        return []


class RecordedGrants(Approvals):
    """Approvals of a replay: the standing approvals at the time of the record."""

    def __init__(self, record: RunRecord) -> None:
        super().__init__(wait=True)
        self._record = record

    async def find_grant(self, question: Question, store: ApprovalStore | None = None) -> str | None:
        asked = {step.decode(Question).call_id for step in self._record.of_kind("asked")}
        meta = self._record.verdicts.get(question.call_id, {})
        return str(meta["approved_by"]) if "approved_by" in meta and question.call_id not in asked else None

    async def save_question(self, question: Question, store: ApprovalStore | None) -> tuple[Question, Answer | None]:
        """Save a question; raises Declined if no person could be asked when the turn was recorded."""
        meta = self._record.verdicts.get(question.call_id, {})
        if meta.get("declined") == f"{question.tool} requires approval, and no one can be asked":
            raise Declined(meta["declined"])
        return await super().save_question(question, store)


async def cancel_turn() -> None:
    """Cancel the calling turn, as in the record."""
    task = asyncio.current_task()
    if task is not None:
        task.cancel()
    await asyncio.sleep(0)


class ReplayRuntime(AgentRuntime):
    """Runtime of a replay: its models return only recorded replies."""

    def __init__(self, comparison: RunComparison, **options: Any) -> None:
        super().__init__(**options)
        self._comparison = comparison

    def failover_for(self, agent: Any, settings: AgentSettings, model: Model = "") -> Failover:
        """Return the agent's models, for their limits and capabilities; a missing key does not matter."""
        models = (model,) if model else settings.models or (self.registry.default_model or "unknown/unknown",)
        return RecordedModels([self._offline_route(each) for each in models], settings.retry, self._comparison)

    def _offline_route(self, model: Model) -> Route:
        try:
            return self.registry.route(model)
        except ConfigError:
            provider, _, name = str(model).partition("/")
            return Route(_UnknownProvider(provider), name or None)


class _UnknownProvider(BaseProvider):
    """Placeholder for a provider that is not configured here."""

    def __init__(self, id: str) -> None:
        self.id = id

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        raise ReplayBlocked("a replay calls no model")


class _OtherAttempt(Exception):
    """Raised if a model is asked that was not asked at this point in the record."""


class _RecordedModel(BaseProvider):
    """A model in a replay: each request fails as recorded, or is answered without content."""

    def __init__(self, route: Route, pending: deque[FailedAttempt]) -> None:
        self.inner, self.id = route.provider, route.provider.id
        self.model: str | None = getattr(route.provider, "model", None)
        self._label, self._pending = route.label, pending

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if not self._pending or self._pending[0].model != self._label:
            raise _OtherAttempt(self._label)
        recorded = self._pending.popleft()
        if recorded.kind not in (_ANSWERED, REFUSAL):
            kind = cast(ProviderFault, recorded.kind)
            raise ProviderError(recorded.message, kind, retry_after=recorded.retry_after)
        yield DoneChunk(Usage(), stop_reason="refusal" if recorded.kind == REFUSAL else "stop")


_ANSWERED = ""
"""Kind of a successful attempt."""


class RecordedModels(Failover):
    """The models of an agent in a replay, which are asked in the recorded order."""

    def __init__(self, routes: Sequence[Route], policy: RetryPolicy | None, comparison: RunComparison) -> None:
        self._comparison = comparison
        self.pending = deque[FailedAttempt]()
        """Recorded attempts that have not been repeated yet."""
        super().__init__([Route(_RecordedModel(route, self.pending), route.model) for route in routes], policy)
        # what other turns have learned of the models' context windows does not matter
        self.limits = tuple(
            [ContextLimit(route.model or getattr(route.provider, "model", "") or "") for route in routes]
        )

    def pick(self, tried: Collection[int], now: float, tokens: int = 0) -> int | None:
        wanted = self.pending[0].model if self.pending else None
        untried = [index for index in range(len(self.routes)) if index not in tried]
        return next((index for index in untried if wanted in (None, self.routes[index].label)), None)

    def for_turn(self, clock: Any = None) -> TurnProvider:
        return RecordedTurn(self, clock, self._comparison)


class RecordedTurn(TurnProvider):
    """The models of one turn in a replay. After the last recorded reply, the turn ends as it did."""

    def __init__(self, pool: RecordedModels, clock: Any, comparison: RunComparison) -> None:
        super().__init__(pool, clock)
        self._models, self._comparison = pool, comparison

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        end = self._comparison.record.end
        for part in end.partial:
            yield TextChunk(part.text) if isinstance(part, Text) else ThinkingChunk(part.text, part.signature)
        if end.status == "cancelled":
            await cancel_turn()
        if end.status == "failed" and self._comparison.round == len(self._comparison.replies):
            if end.kind in get_args(ProviderFault):
                await self.repeat(request, end.failed)
            kind = "" if end.kind == "context_length" else end.kind  # the request is not shortened and sent again
            raise to_failure(kind, end.error or "the turn failed")
        self._comparison.extra_request()
        raise ReplayError("the record has no reply of the model at this point")

    async def repeat(self, request: Request, failed: Sequence[FailedAttempt], answered: str = "") -> None:
        """Repeat the failed attempts of a request with the current retry policy, and compare the outcome."""
        known = {route.label for route in self._models.routes}
        if not failed or not known.issuperset([*[each.model for each in failed], *filter(None, [answered])]):
            self._comparison.skip_attempts(failed)
            return
        pending = self._models.pending
        pending.extend([*failed, *([FailedAttempt(answered, _ANSWERED, "")] if answered else [])])
        problem = ""
        while pending and not problem:
            try:
                async with aclosing(super().stream(request)) as chunks:
                    async for _ in chunks:
                        pass
                problem = "the refusal is the answer" if pending else ""
            except ProviderError as error:
                # a request that is too long is shortened, and sent again
                problem = str(error) if pending and error.kind != "context_length" else ""
            except _OtherAttempt as other:
                problem = f"{other} is asked next"
        pending.clear()
        if problem:
            self._comparison.attempts(failed, problem)


def load_agents(target: str) -> Atlas:
    """Import the agents that `module:name` refers to: an Atlas, an agent, a list of agents, or a function of these.

    The module must be importable: installed, or in a folder of `PYTHONPATH`. Otherwise name its file, as in
    `path/to/file.py:name`.
    """
    named = import_target(target)
    found: Any = named() if callable(named) and not isinstance(named, Agent | Atlas) else named
    if isinstance(found, (Atlas, Agent, list, tuple)):
        return read_agents(cast(Agents, found))
    raise ConfigError(f"agents {target!r}: expected an Atlas, an agent or a list of agents, got {found!r}")


class AgentSource(msgspec.Struct, frozen=True):
    """Source code with which a saved test builds the agents: an import line and an expression."""

    expression: str
    import_line: str = "from atlas_agents.testing import load_agents, replay"


async def save_case(
    record: RunRecord, atlas: Agents, path: Path, source: AgentSource, *, force: bool = False
) -> ReplayResult:
    """Write a recorded run without its secrets as a pytest case: the test at `path`, and its data beside it.

    The test expects the current behaviour of the turn. Returns the replay of the recorded run; raises ReplayError if
    the turn already differs from the record.
    """
    atlas, data = read_agents(atlas), path.with_suffix(".json")
    if path.suffix != ".py" or not path.name.startswith("test_"):
        raise ReplayError(f"invalid file {str(path)!r}: expected a name such as tests/test_refund.py")
    for each in (path, data):
        with _writing(each):
            exists = each.exists()
        if exists and not force:
            raise ReplayError(f"{each} exists already: choose another name, or pass --force to replace it")
    before = await replay(record, atlas)
    if changed := [each for each in before.differences if each.kind != "request"]:
        raise ReplayError(f"the run cannot be saved, because it differs already in {changed[0]}")
    clean = redact_record(record, atlas.hide_values)
    now = await replay(clean, atlas)
    saved = redact_record(clean.with_requests(now.requests, now.texts), atlas.hide_values)
    if (left := (await replay(saved, atlas)).difference) is not None:
        raise ReplayError(f"the run cannot be saved, because without its secrets it differs in {left}")
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(data, saved.to_json())
        write_file(path, _CASE.format(source=source, name=_test_name(path)).encode())
    return before


@contextmanager
def _writing(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise ReplayError(f"cannot write {path}: {error.strerror or error}; choose another folder") from error


def _test_name(path: Path) -> str:
    return re.sub(r"\W", "_", path.stem)


_CASE = '''\
"""Replay of a recorded run: fails if prompts, tools, policy or code change what it does.

Written by `atlas replay --save`. The recorded run is in the file of the same name that ends with `.json`.
"""

import asyncio
from pathlib import Path

{source.import_line}

RECORD = Path(__file__).with_suffix(".json")


def {name}() -> None:
    asyncio.run(replay(RECORD, {source.expression})).check()
'''
