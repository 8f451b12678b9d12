"""Fault simulator: runs an agent with seeded faults and crashes at every journal point, and counts its effects.

A case is one conversation with planned faults. After a simulated crash, a new Atlas resumes from the same store. The
stored turns are then compared with the effects in the ledger, and with the same conversation without faults.
"""

import asyncio
import logging
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.atlas import Atlas
from atlas_agents.core.aio import Clock
from atlas_agents.core.errors import AtlasError, ConfigError
from atlas_agents.core.messages import Message, ToolCall, ToolResult
from atlas_agents.core.store import OPEN, OPEN_JOB, AddJournal, JobRow, Store
from atlas_agents.providers.registry import Model
from atlas_agents.testing.faults import (
    FAULT_KINDS,
    Deadlock,
    Effect,
    FaultKind,
    FaultyTools,
    PlannedFault,
    SimulatedRegistry,
    Simulation,
    draw_faults,
    faulty_store,
    memory_store,
    open_sqlite_file,
)
from atlas_agents.tools.journal import read_first_messages

T = TypeVar("T")
StoreChoice: TypeAlias = Callable[[Clock], Store] | Literal["memory", "sqlite"]
"""Store of a simulation."""
Build: TypeAlias = Callable[[Simulation], Agent | Sequence[Agent]]
"""Builds the agents of a simulated process; called again after each crash."""
FindingKind: TypeAlias = Literal["lost", "repeated", "unknown", "check"]
_SESSION = "simulation"
_TENANT = "default"
_MAX_PROCESSES = 8
_NOTHING_DONE = ("declined", "limit", "not_found", "not_permitted", "bad_arguments")
"""Error kinds that guarantee that a call had no effect."""
_FAR = 1 << 60
_DELEGATE = "delegate_task"
_MAX_JOB_PAUSE = 20_000.0
"""Virtual seconds; a task that takes longer than the pauses up to this one counts as lost."""
_SHOWN_POINTS = 12
_SHOWN_FAILURES = 5


class Finding(msgspec.Struct, frozen=True):
    """Finding of a case about one effect.

    Attributes:
        kind: `lost`, `repeated`, `unknown`, or `check` if your own check failed.
        subject: The effect, tool, message or step that it concerns.
        detail: Description of the finding.
    """

    kind: FindingKind
    subject: str
    detail: str


class CaseResult(msgspec.Struct, frozen=True):
    """The result of one case.

    Attributes:
        case: Name of the case, with which it can be replayed: `seed=7` or `crash@12`.
        faults: The faults that were planned.
        findings: Findings of the case.
        effects: The effects that happened.
        trace: The points that the case passed, and the faults that happened.
        processes: Number of simulated processes.
        failed_turns: Number of turns that ended with an error, which these faults may cause.
    """

    case: str
    faults: tuple[PlannedFault, ...]
    findings: tuple[Finding, ...]
    effects: tuple[Effect, ...]
    trace: tuple[str, ...]
    processes: int = 1
    failed_turns: int = 0

    @property
    def failures(self) -> tuple[Finding, ...]:
        """Findings that are defects: everything but an outcome that is known to be unknown."""
        return tuple([finding for finding in self.findings if finding.kind != "unknown"])


class SimulationReport(msgspec.Struct, frozen=True):
    """The results of all cases.

    Attributes:
        cases: The result of each case.
        points: Number of points that the conversation passes without faults.
    """

    cases: tuple[CaseResult, ...]
    points: int

    @property
    def failures(self) -> tuple[CaseResult, ...]:
        """The cases with lost or repeated effects, or whose check failed."""
        return tuple([case for case in self.cases if case.failures])

    @property
    def ok(self) -> bool:
        """Whether nothing was lost or repeated."""
        return not self.failures

    def count(self, kind: FindingKind) -> int:
        """Return the number of findings of a kind."""
        return sum(finding.kind == kind for case in self.cases for finding in case.findings)

    def by_subject(self) -> dict[str, dict[str, int]]:
        """Return, for each effect, how often it happened and was lost, repeated or unknown."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for case in self.cases:
            for effect in case.effects:
                counts[effect.name]["happened"] += 1
            for finding in case.findings:
                counts[finding.subject][finding.kind] += 1
        kinds = ("happened", "lost", "repeated", "unknown", "check")
        return {name: {kind: counts[name][kind] for kind in kinds} for name in sorted(counts)}

    def raise_if_failed(self, *, allow_unknown: bool = True) -> None:
        """Raise AssertionError with the failed cases and how to replay them.

        Args:
            allow_unknown: Whether calls may end with the outcome `unknown`, as unsafe ones do after a crash.
        """
        failed = [case for case in self.cases if case.failures or (case.findings and not allow_unknown)]
        if failed:
            shown = "\n\n".join([_format_case(case) for case in failed[:_SHOWN_FAILURES]])
            more = f"\n\n… and {len(failed) - _SHOWN_FAILURES} more" if len(failed) > _SHOWN_FAILURES else ""
            raise AssertionError(f"{len(failed)} of {len(self.cases)} simulated cases failed\n\n{shown}{more}")


def _format_case(case: CaseResult) -> str:
    faults = ", ".join([str(fault) for fault in case.faults])
    lines = [f"{case.case} ({faults}); replay it with only={case.case!r}"]
    lines += [f"  {finding.kind}: {finding.subject}: {finding.detail}" for finding in case.findings]
    last = [index for index, line in enumerate(case.trace) if " -> " in line]
    start = max(0, (last[-1] if last else len(case.trace)) - _SHOWN_POINTS)
    return "\n".join([*lines, "  trace:", *[f"    {line}" for line in case.trace[start : start + 2 * _SHOWN_POINTS]]])


class Scenario(msgspec.Struct, frozen=True):
    """Scenario: the conversation and options that all cases of a simulation share."""

    build: Build
    messages: tuple[str, ...]
    model: Model | None
    check: Callable[[Simulation], object] | None
    store: StoreChoice
    options: dict[str, Any]


class FaultSimulator:
    """Simulates conversations with an agent under faults, in virtual time and without a network.

    Args:
        seed: First seed of the drawn faults; the same seed gives the same faults and the same schedule.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def run(
        self,
        build: Build | Agent,
        messages: str | Sequence[str],
        *,
        model: Model | None = None,
        seeds: int = 20,
        crash_everywhere: bool = True,
        faults: Sequence[FaultKind] = FAULT_KINDS,
        check: Callable[[Simulation], object] | None = None,
        only: str = "",
        store: StoreChoice = "memory",
        **atlas: Any,
    ) -> SimulationReport:
        """Run a conversation without faults, with a crash at each point, and with the faults of each seed.

        Call it in a sync test: it runs event loops of its own.

        Args:
            build: Function that builds the agents of a process, called again after each crash; or an agent.
            messages: Messages of the user, sent one after another.
            model: Model that replaces those of the agents that are not scripted; no vendor's model is ever called.
            seeds: Number of seeds, each with up to four faults.
            crash_everywhere: Whether to crash once at each point.
            faults: The kinds of faults that are drawn.
            check: Function that is called after each case and raises AssertionError if something is wrong.
            only: Name of a single case to replay, such as `seed=7` or `crash@12`.
            store: `memory`; `sqlite` for a temporary file, which each process opens anew; or a function of a clock that
                creates a store.
            atlas: Further options of the `Atlas`, such as a policy.
        """
        if unknown := [kind for kind in faults if kind not in FAULT_KINDS]:
            raise ConfigError(f"unknown fault {unknown[0]!r}: expected some of {', '.join(FAULT_KINDS)}")
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            raise ConfigError("a simulation runs its own event loops: call it in a sync test (def, not async def)")
        texts = (messages,) if isinstance(messages, str) else tuple(messages)
        builder = _use_agent(build) if isinstance(build, Agent) else build
        if store not in ("memory", "sqlite") and not callable(store):
            raise ConfigError(f"unknown store {store!r}: expected 'memory', 'sqlite', or a function of a clock")
        scenario = Scenario(builder, texts, model, check, store, atlas)
        with _without_logs():
            return self._run(scenario, seeds if not only else 0, crash_everywhere and not only, faults, only)

    def _run(
        self, scenario: Scenario, seeds: int, crash_everywhere: bool, faults: Sequence[FaultKind], only: str
    ) -> SimulationReport:
        first = _Case("without faults", (), scenario, None)
        first.run()
        plain = _Case("without faults", (), scenario, None, first.simulation.ledger.recording_tools)
        result = plain.run()
        if plain.errors or result.findings:
            problems = [*plain.errors, *[f"{each.kind}: {each.subject}: {each.detail}" for each in result.findings]]
            raise ConfigError(f"the conversation fails without any fault: {'; '.join(problems)}")
        points, recording = plain.simulation.points, plain.simulation.ledger.recording_tools
        names = [only] if only else []
        names += [f"crash@{point}" for point in range(1, points + 1)] if crash_everywhere else []
        names += [f"seed={seed}" for seed in range(self.seed, self.seed + seeds)]
        plans = [(name, _read_case(name, points, faults)) for name in names]
        return SimulationReport(
            (result, *[_Case(name, plan, scenario, plain, recording).run() for name, plan in plans]), points
        )


@contextmanager
def _without_logs() -> Generator[None]:
    """Silence the package's log: faults and crashes fill it with errors that are expected."""
    log = logging.getLogger("atlas_agents")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(level)


def _use_agent(agent: Agent) -> Build:
    return lambda _: agent


def _read_case(name: str, points: int, kinds: Sequence[FaultKind]) -> tuple[PlannedFault, ...]:
    what, separator, number = name.partition("=" if name.startswith("seed") else "@")
    if what not in ("seed", "crash") or not separator or not number.lstrip("-").isdigit():
        raise ConfigError(f"unknown case {name!r}: expected a name from a report, such as 'seed=7' or 'crash@12'")
    if what == "seed":
        return draw_faults(int(number), points, kinds)
    if not 1 <= int(number) <= points:
        raise ConfigError(f"unknown case {name!r}: the conversation has the points crash@1 to crash@{points}")
    return (PlannedFault("crash", int(number)),)


Place: TypeAlias = tuple[int, ...]
"""A tool call: the number of its turn, of the reply in it, and of the call in that. In a delegated task, these follow
the position of the call that delegated it."""


class _StoredCall(msgspec.Struct, frozen=True):
    place: Place
    run_id: str
    call: ToolCall
    result: ToolResult | None


class _Case:
    """One case: runs processes until one ends without a crash, then compares the store with the ledger."""

    def __init__(
        self,
        name: str,
        plan: tuple[PlannedFault, ...],
        scenario: Scenario,
        plain: "_Case | None",
        recording_tools: Collection[str] = (),
    ) -> None:
        self._name = name
        self._plan = plan
        self._scenario = scenario
        self._plain = plain
        self.simulation = Simulation(plan, scenario.store if callable(scenario.store) else memory_store)
        self._file: Path | None = None
        self.simulation.ledger.recording_tools |= {*recording_tools}
        self.errors: list[str] = []
        """Errors with which turns ended."""
        self.calls: dict[Place, Counter[str]] = {}
        """Effects of each tool call by name."""
        self._acknowledged: dict[int, str] = {}
        """Runs of the messages that were accepted."""
        self._lost_steps: dict[AddJournal, Finding] = {}
        self._stuck = ""

    def run(self) -> CaseResult:
        state = random.getstate()
        random.seed(self._name)
        try:
            with (
                TemporaryDirectory(prefix="atlas-crash-")
                if self._scenario.store == "sqlite"
                else nullcontext() as folder
            ):
                self._file = Path(folder) / "atlas.db" if folder is not None else None
                processes = self._run_processes()
                findings = tuple(asyncio.run(self._with_store(self._find)))
        finally:
            random.setstate(state)
        simulation = self.simulation
        return CaseResult(
            case=self._name,
            faults=self._plan,
            findings=findings,
            effects=simulation.ledger.effects,
            trace=tuple(simulation.trace),
            processes=processes,
            failed_turns=len(self.errors),
        )

    def _run_processes(self) -> int:
        for number in range(1, _MAX_PROCESSES + 1):
            try:
                if not self.simulation.run_process(partial(self._with_store, self._live)):
                    return number
            except Deadlock as error:
                self._stuck = str(error)
                return number
            asyncio.run(self._with_store(self._check_journal))
            self.simulation.trace.append("new process")
        return _MAX_PROCESSES

    async def _with_store(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a function with the store of the case; a SQLite file is opened for it, as by each process."""
        if self._file is None:
            return await work()
        async with open_sqlite_file(self._file, self.simulation.clock) as self.simulation.store:
            return await work()

    async def _live(self) -> None:
        """Run one process: resume open turns, then send the messages that have no answer yet."""
        scenario, simulation = self._scenario, self.simulation
        built = scenario.build(simulation)
        agents = [built] if isinstance(built, Agent) else list(built)
        tools = FaultyTools(simulation)
        options: dict[str, Any] = {"approve": _approve, **scenario.options}
        atlas = Atlas(
            [tools.wrap(agent) for agent in agents],
            store=faulty_store(simulation),
            clock=simulation.clock,
            registry=SimulatedRegistry(simulation, agents, scenario.model),
            tenant=_TENANT,
            **options,
        )
        async with atlas:
            recovered = await atlas.recover()
            simulation.start_jobs = atlas.jobs.start
            if await simulation.store.pending_jobs(_TENANT, _FAR):
                atlas.jobs.start()
            for stream in recovered:
                with suppress(AtlasError):
                    await stream.reply()
            errors: list[str] = []
            for number, text in enumerate(scenario.messages):
                stream = atlas.send(text, session=_SESSION, idempotency_key=f"message {number}")
                try:
                    self._acknowledged[number] = (await stream.accepted()).run_id
                    await stream.reply()
                except AtlasError as error:
                    errors.append(str(error))
            await self._finish_jobs()
            failed = [job for job in await simulation.store.jobs(_TENANT) if job.state not in (*OPEN_JOB, "done")]
            self.errors = [*errors, *[f"task of {job.agent_id}: {job.error or job.state}" for job in failed]]

    async def _finish_jobs(self) -> None:
        """Wait in virtual time until all delegated tasks have ended, and their askers have their results."""
        store, pause = self.simulation.store, 1.0
        while pause < _MAX_JOB_PAUSE and (
            await store.pending_jobs(_TENANT, _FAR) or [run for run in await store.open_runs() if run.tenant == _TENANT]
        ):
            await asyncio.sleep(pause)
            pause *= 1.5

    async def _find(self) -> list[Finding]:
        await self._check_journal()
        jobs = await self.simulation.store.jobs(_TENANT, limit=1000)
        calls = await self._read_calls(jobs)
        return [
            *self._lost_steps.values(),
            *([Finding("lost", "turn", self._stuck)] if self._stuck else []),
            *[finding async for finding in self._check_messages()],
            *_check_jobs(jobs, calls),
            *self._check_effects(calls),
            *self._check_world(),
        ]

    async def _read_calls(
        self, jobs: Sequence[JobRow], session: str = _SESSION, above: Place = ()
    ) -> list[_StoredCall]:
        """Return the tool calls of a session, each followed by those of the task that it delegated."""
        found: list[_StoredCall] = []
        store = self.simulation.store
        tasks = {(job.asker_run, job.asker_call): job.session for job in jobs}
        for turn, row in enumerate(await store.runs(_TENANT, session)):
            steps = await store.journal(_TENANT, row.id)
            outcomes = {step.key: step.payload for step in steps if step.kind == "outcome"}
            replies = [Message.from_json(step.payload) for step in steps if step.kind == "reply"]
            for number, reply in enumerate(replies):
                for index, call in enumerate(reply.tool_calls):
                    stored = outcomes.get(call.id)
                    result = msgspec.json.decode(stored, type=ToolResult) if stored is not None else None
                    place = (*above, turn, number, index)
                    found.append(_StoredCall(place, row.id, call, result))
                    if (row.id, call.id) in tasks:
                        found += await self._read_calls(jobs, tasks[row.id, call.id], place)
        return found

    async def _check_messages(self) -> AsyncIterator[Finding]:
        """Yield acknowledged messages that the store does not have, and turns that never ended."""
        store = self.simulation.store
        rows = {number: await store.run(_TENANT, run_id) for number, run_id in self._acknowledged.items()}
        # as they were accepted: interceptors may have changed them
        sent = {number: read_first_messages(row)[-1].text for number, row in rows.items() if row is not None}
        messages = [(each.run_id, each.message) for each in await store.messages(_TENANT, _SESSION)]
        stored = [(run_id, message.text) for run_id, message in messages if message.role == "user"]
        for number, run_id in self._acknowledged.items():
            row, text = rows[number], sent.get(number, self._scenario.messages[number])
            count = sum([each == text for _, each in stored])
            if row is None or (run_id, text) not in stored:
                yield Finding("lost", "message", f"message {number + 1} was accepted and is not stored: {text!r}")
            elif row.status in OPEN:
                yield Finding("lost", "turn", f"the turn of message {number + 1} never ended: it is {row.status}")
            elif count > sum([sent.get(other, text) == text for other in range(len(self._scenario.messages))]):
                yield Finding("repeated", "message", f"message {number + 1} is stored {count} times: {text!r}")

    async def _check_journal(self) -> None:
        """Note acknowledged steps that the store does not have, before a new process can record them again."""
        store = self.simulation.store
        sessions = [_SESSION, *[job.session for job in await store.jobs(_TENANT, limit=1000)]]
        rows = [row for session in sessions for row in await store.runs(_TENANT, session)]
        known = {(step.run_id, step.kind, step.key) for row in rows for step in await store.journal(_TENANT, row.id)}
        for step in self.simulation.acknowledged:
            repeats_a_message = step.kind == "accepted" and step.run_id not in self._acknowledged.values()
            if not repeats_a_message and (step.run_id, step.kind, step.key) not in known:
                detail = f"the store acknowledged a step of kind {step.kind!r} and lost it"
                self._lost_steps[step] = Finding("lost", "journal", detail)

    def _check_effects(self, calls: Sequence[_StoredCall]) -> Iterator[Finding]:
        happened: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for effect in self.simulation.ledger.effects:
            happened[effect.run_id, effect.call_id][effect.name] += 1
        for stored in calls:
            counts = happened.pop((stored.run_id, stored.call.id), Counter[str]())
            self.calls[stored.place] = counts
            yield from self._check_call(stored, counts)
        for (_, call_id), counts in happened.items():
            for name in counts if call_id else ():
                yield Finding("lost", name, "the effect happened, and the journal has no call that explains it")

    def _check_call(self, stored: _StoredCall, counts: Counter[str]) -> Iterator[Finding]:
        tool, result = stored.call.name, stored.result
        if self._plain is None:
            return
        expected = self._plain.calls.get(stored.place, Counter[str]())
        for name, count in counts.items():
            if count > max(1, expected[name]):
                yield Finding("repeated", name, f"{tool} was called once, and the effect happened {count} times")
        if result is not None and result.status == "ok":
            for name, count in expected.items():
                if (found := counts[name]) < count:
                    detail = f"{tool} was reported as done, and the effect happened {found} times instead of {count}"
                    yield Finding("lost", name, detail)
        else:
            yield from _check_unsuccessful(tool, result, counts)

    def _check_world(self) -> Iterable[Finding]:
        if self._scenario.check is None:
            return ()
        try:
            self._scenario.check(self.simulation)
        except AssertionError as error:
            return (Finding("check", "your check", str(error).partition("\n")[0] or "it failed"),)
        return ()


def _check_jobs(jobs: Sequence[JobRow], calls: Sequence[_StoredCall]) -> Iterator[Finding]:
    """Yield delegated tasks that never ended, were not reported, are missing, or exist twice."""
    asked = Counter([(job.asker_run, job.asker_call) for job in jobs])
    for job in jobs:
        if job.state in OPEN_JOB:
            yield Finding("lost", "task", f"the task of {job.agent_id} never ended: it is {job.state}")
    for stored in calls:
        count, ok = asked[stored.run_id, stored.call.id], stored.result is not None and stored.result.status == "ok"
        if stored.call.name == _DELEGATE and ok and not count:
            yield Finding("lost", "task", "it was reported as delegated, and is not stored")
        if count > 1:
            yield Finding("repeated", "task", f"one call delegated it {count} times")


def _check_unsuccessful(tool: str, result: ToolResult | None, counts: Counter[str]) -> Iterator[Finding]:
    """Yield findings about the effect of a call without a successful result."""
    if result is None:
        if counts:
            yield Finding("unknown", tool, "the turn ended before the outcome of the call was recorded")
    elif result.status == "unknown":
        yield Finding("unknown", tool, f"it may have happened: {_happened(counts)}")
    elif counts and result.error in _NOTHING_DONE:
        yield Finding("lost", tool, f"it was reported as not done ({result.error}): {_happened(counts)}")
    elif counts:
        yield Finding("unknown", tool, f"it was reported as failed ({result.error}): {_happened(counts)}")


def _happened(counts: Counter[str]) -> str:
    done = [f"{name} happened{f' {count} times' if count > 1 else ''}" for name, count in counts.items()]
    return ", ".join(done) or "nothing happened"


def _approve(question: object) -> bool:
    """Approve every call: a simulation has no people."""
    return True
