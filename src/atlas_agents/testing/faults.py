"""Fault injection for tests of agents: seeded faults of models, tools and the store, a ledger of effects, virtual time.

A simulated process is an event loop of its own. It passes numbered points: commits, model requests, tool calls and
effects. A fault is planned at a number, so that the same plan gives the same schedule.
"""

import asyncio
import functools
import random
import selectors
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, get_args

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.core import store as records
from atlas_agents.core.aio import Clock
from atlas_agents.core.errors import ConfigError, ProviderError, StoreBusy, StoreLost
from atlas_agents.core.paths import Environment
from atlas_agents.providers.base import BaseProvider, Capabilities, Chunk, DoneChunk, Provider, Request
from atlas_agents.providers.failover import Route
from atlas_agents.providers.registry import Model, Registry
from atlas_agents.providers.testing import Scripted
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Tool

FaultKind: TypeAlias = Literal[
    "crash",
    "model_error",
    "model_timeout",
    "model_rate_limit",
    "model_network",
    "model_cut",
    "tool_exception",
    "tool_timeout",
    "tool_slow",
    "tool_refused",
    "tool_answer_lost",
    "store_busy",
    "store_lost",
    "store_answer_lost",
    "store_slow",
]
"""Kinds of faults in a simulation."""
_POINTS: Mapping[FaultKind, tuple[str, ...]] = {
    "crash": ("",),
    "model_error": ("model request",),
    "model_timeout": ("model request",),
    "model_rate_limit": ("model request",),
    "model_network": ("model request",),
    "model_cut": ("model chunk", "model end"),
    "tool_exception": ("tool before",),
    "tool_timeout": ("tool before", "tool after"),
    "tool_slow": ("tool before",),
    "tool_refused": ("tool before",),
    "tool_answer_lost": ("tool after",),
    "store_busy": ("commit before",),
    "store_lost": ("commit before",),
    "store_answer_lost": ("commit after",),
    "store_slow": ("commit before",),
}
"""Points at which each fault can happen, as prefixes of their names."""
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
_START = 1_000_000_000.0
_MAX_CRASHES = 3
_MAX_FAULTS = 4
_CLEANUP_SECONDS = 60.0
_REAL_WAIT, _STORE_WAIT = 5.0, 60.0
"""Real seconds that virtual time waits for threads and sockets, whose work is invisible to it, and for the store."""
_current_call: ContextVar[ToolContext | None] = ContextVar("simulated_call", default=None)
_tool_name: ContextVar[str] = ContextVar("simulated_tool", default="")


class SimulatedCrash(asyncio.CancelledError):
    """The simulated process has crashed; further actions of its code have no effect."""


class PlannedFault(msgspec.Struct, frozen=True):
    """A fault of a case.

    Args:
        kind: Kind of the fault.
        at: Number of the point at which it happens; if it cannot happen there, it does at the next possible one.
    """

    kind: FaultKind
    at: int

    def __str__(self) -> str:
        return f"{self.kind}@{self.at}"


def draw_faults(seed: int, points: int, kinds: Sequence[FaultKind] = FAULT_KINDS) -> tuple[PlannedFault, ...]:
    """Draw the faults of a seed for a turn that passes so many points without faults."""
    rng = random.Random(seed)
    found: list[PlannedFault] = []
    crashes = 0
    for _ in range(rng.randint(1, _MAX_FAULTS)):
        kind = rng.choice(kinds)
        crashes += kind == "crash"
        if kind != "crash" or crashes <= _MAX_CRASHES:
            found.append(PlannedFault(kind, rng.randint(1, points + points // 2)))
    return tuple(sorted(found, key=lambda fault: fault.at))


class Effect(msgspec.Struct, frozen=True):
    """An effect that a tool had on the world.

    Attributes:
        name: Name of the effect.
        tool: Tool whose call had it; empty outside calls.
        run_id: Turn of the call.
        call_id: The call.
        key: Idempotency key under which it was made; empty if there was none.
    """

    name: str
    tool: str = ""
    run_id: str = ""
    call_id: str = ""
    key: str = ""


class EffectLedger:
    """Ledger of effects on the simulated outside world, which survives crashes as an external service would.

    Call `record` in a tool, or in the double of a client that it uses, where the real effect would happen.

    Args:
        pass_point: Function that is called with the name of each point before and after an effect.
    """

    def __init__(self, pass_point: Callable[[str], object]) -> None:
        self._pass_point = pass_point
        self._effects: list[Effect] = []
        self._keys: set[tuple[str, str]] = set()
        self.recording_tools: set[str] = set()
        """Names of tools that have recorded effects themselves."""

    @property
    def effects(self) -> tuple[Effect, ...]:
        """All effects, oldest first."""
        return tuple(self._effects)

    def count(self, name: str) -> int:
        """Return how often an effect happened."""
        return sum(effect.name == name for effect in self._effects)

    def record(self, name: str, *, key: str = "") -> bool:
        """Record an effect and return True; return False if one with this name and key was recorded before.

        Args:
            name: Name of the effect, such as `charge`.
            key: The idempotency key that the service would receive, such as `context.idempotency_key`. A service that
                is called without one does the same thing twice.
        """
        call = _current_call.get()
        if call is not None:
            self.recording_tools.add(_tool_name.get())
        return self.add(name, key=key)

    def add(self, name: str, *, key: str = "") -> bool:
        """Internal: record an effect, also of a tool that does not use the ledger."""
        self._pass_point(f"effect before {name}")
        if key and (name, key) in self._keys:
            return False
        call = _current_call.get()
        where = (_tool_name.get(), call.run_id, call.call_id) if call is not None else ("", "", "")
        self._effects.append(Effect(name, *where, key))
        self._keys.add((name, key))
        self._pass_point(f"effect after {name}")
        return True


class _VirtualSelector(selectors.DefaultSelector):
    """Selector that advances virtual time instead of waiting.

    Time waits for other threads and for sockets, which it cannot see, but not for long.
    """

    def __init__(self, now: float) -> None:
        super().__init__()
        self.now = now
        self.own_threads = threading.active_count()
        """Threads that never wake the loop on their own."""
        self.pending = 0
        """Operations of the store that run in its threads."""
        self._waited = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if ready := super().select(0):
            self._waited = 0.0
            return ready
        if timeout is not None and timeout <= 0:
            return []
        threads = self.pending or threading.active_count() > self.own_threads
        others = threads or len(self.get_map()) > 1  # one wakes the loop
        if others and self._waited < (_STORE_WAIT if self.pending else _REAL_WAIT):
            started = time.monotonic()
            ready = super().select(0.01)
            self._waited = 0.0 if ready else self._waited + time.monotonic() - started
            return ready
        if timeout is None:
            raise Deadlock("the turn waits for something that never happens")
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop whose time jumps to the next timer as soon as nothing else is left to do.

    Functions for the default executor run at once.
    """

    def __init__(self, now: float) -> None:
        self.selector = _VirtualSelector(now)
        super().__init__(self.selector)

    def time(self) -> float:
        return self.selector.now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        if executor is not None:
            return super().run_in_executor(executor, func, *args)
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is raised again where the future is awaited
            done.set_exception(error)
        return done


class Deadlock(Exception):
    """All tasks of a simulated process wait, and no timer is left."""


class SimulationClock:
    """Clock of a simulation: the time of the current process's event loop."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._last = 0.0

    def time(self) -> float:
        """Return the current time in seconds since the epoch."""
        return _START + self.monotonic()

    def monotonic(self) -> float:
        """Return the seconds since the simulation started."""
        if self.loop is not None:
            self._last = self.loop.time()
        return self._last

    def call_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """Schedule a function."""
        return asyncio.get_running_loop().call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        """Sleep in virtual time."""
        await asyncio.sleep(seconds)


class Simulation:
    """State of one simulated case that survives crashes. The function that builds the agents receives it.

    `ledger` records effects, `clock` is the virtual clock, and `state` is a dict of your own that survives crashes as a
    service outside the process would.

    Args:
        faults: The planned faults.
        make_store: Function of a clock that creates the store.
    """

    def __init__(self, faults: Sequence[PlannedFault], make_store: Callable[[SimulationClock], records.Store]) -> None:
        self.clock = SimulationClock()
        self.ledger = EffectLedger(self.pass_point)
        self.state: dict[str, Any] = {}
        self.store = make_store(self.clock)
        """Internal: the store without faults."""
        self.trace: list[str] = []
        """Internal: trace of the passed points and of the faults."""
        self.points = 0
        self.crashed = False
        self.acknowledged: list[records.AddJournal] = []
        """Internal: steps whose commit returned."""
        self.script_positions: dict[str, dict[tuple[int, int], int]] = {}
        self.start_jobs: Callable[[], object] | None = None
        """Internal: starts the jobs of the current process; called when one is added."""
        self._faults = list(faults)

    def pass_point(self, name: str) -> FaultKind | None:
        """Internal: pass a point of the program; return the fault that happens there, or raise SimulatedCrash."""
        if self.crashed:
            raise SimulatedCrash
        self.points += 1
        fault = next((each for each in self._faults if each.at <= self.points and _fits(each.kind, name)), None)
        self.trace.append(f"{self.points} {name}{f' -> {fault.kind}' if fault else ''}")
        if fault is None:
            return None
        self._faults.remove(fault)
        if fault.kind == "crash":
            self.crashed = True
            if self.clock.loop is not None:
                self.clock.loop.stop()
            raise SimulatedCrash
        return fault.kind

    def run_process(self, work: Callable[[], Any]) -> bool:
        """Internal: run a coroutine function in a process of its own; return whether that crashed."""
        self.crashed = False
        loop = VirtualLoop(self.clock.monotonic() + 1)
        self.clock.loop = loop
        loop.set_exception_handler(_ignore)
        task = loop.create_task(work())
        task.add_done_callback(_stop_loop)
        try:
            loop.run_forever()
            if not self.crashed:
                task.result()
            return self.crashed
        finally:
            task.remove_done_callback(_stop_loop)
            ended, self.crashed = self.crashed, True  # nothing that ends later may have an effect
            _end_tasks(loop)
            self.clock.monotonic()
            self.clock.loop = None
            loop.close()
            self.crashed = ended


def _fits(kind: FaultKind, point: str) -> bool:
    return point.startswith(_POINTS[kind])


def _stop_loop(task: "asyncio.Task[Any]") -> None:
    task.get_loop().stop()


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Drop errors of tasks that ended with a simulated crash."""


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        with suppress(Deadlock):
            loop.run_until_complete(asyncio.wait(tasks, timeout=_CLEANUP_SECONDS))
    loop.run_until_complete(loop.shutdown_asyncgens())


def memory_store(clock: Clock) -> records.Store:
    """Create the store of a simulation."""
    from atlas_agents.storage.sqlite import MemoryStore  # imports sqlite3

    return MemoryStore(clock=clock)


@asynccontextmanager
async def open_sqlite_file(path: Path, clock: Clock) -> AsyncGenerator[records.Store]:
    """Open a SQLite file for a simulated process. Virtual time waits for the threads of the store only while they work.

    Closing it loses only uncommitted data, which was not acknowledged.
    """
    from atlas_agents.storage.sql.tables import Query
    from atlas_agents.storage.sqlite import SqliteStore  # imports sqlite3

    class SimulatedFile(SqliteStore):
        async def commit(self, tenant: str, writes: Sequence[records.Write]) -> list[Any]:
            with _pending():
                return await super().commit(tenant, writes)

        async def fetch(self, query: Any) -> Any:
            with _pending():
                return await super().fetch(query)

        async def search(self, query: Any) -> Any:
            with _pending():
                return await super().search(query)

        async def orphaned_runs(self) -> list[records.RunRow]:
            with _pending():
                return await super().orphaned_runs()

    store = SimulatedFile(path, clock=clock)
    before = threading.active_count()
    with _pending():
        await store.open()
        await store.search(Query("SELECT 1", {}))  # starts the thread of searches
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        loop.selector.own_threads += threading.active_count() - before
    try:
        yield store
    finally:
        with _pending():
            await store.close()


@contextmanager
def _pending() -> Generator[None]:
    """Let virtual time wait for an operation that runs in a thread of the store."""
    loop = asyncio.get_running_loop()
    selector = loop.selector if isinstance(loop, VirtualLoop) else None
    if selector is not None:
        selector.pending += 1
    try:
        yield
    finally:
        if selector is not None:
            selector.pending -= 1


def memory_simulation() -> Simulation:
    """Return a simulation without faults, for building agents outside a case."""
    return Simulation((), memory_store)


class FaultyModel(BaseProvider):
    """A model with the faults of a simulation. The replies of a scripted one follow the position in the conversation,
    so that a request that is repeated after a crash gets the same reply."""

    def __init__(self, simulation: Simulation, inner: Provider, name: str) -> None:
        self._simulation = simulation
        self._inner = inner
        self.id = inner.id
        self.model: str | None = getattr(inner, "model", None)
        self._positions = simulation.script_positions.setdefault(name, {})

    @property
    def capabilities(self) -> Capabilities:
        return self._inner.capabilities

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        pass_point = self._simulation.pass_point
        await _fail_request(pass_point(f"model request {self.id}"))
        first = True
        async for chunk in self._reply(request):
            is_end = type(chunk) is DoneChunk
            if (first or is_end) and pass_point(f"model {'end' if is_end else 'chunk'} {self.id}") == "model_cut":
                raise ProviderError("simulated fault: the stream was cut", "incomplete")
            first = False
            yield chunk

    def _reply(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if not isinstance(self._inner, Scripted):
            return self._inner.stream(request)
        roles = [message.role for message in request.messages]
        place = (roles.count("user"), roles.count("assistant"))
        index = self._positions.setdefault(place, len(self._positions))
        return self._inner.stream_reply(index, request)


async def _fail_request(fault: FaultKind | None) -> None:
    match fault:
        case "model_error":
            raise ProviderError("simulated fault: the server failed", "server", status=500)
        case "model_rate_limit":
            raise ProviderError("simulated fault: too many requests", "rate_limit", status=429, retry_after=5)
        case "model_network":
            raise ProviderError("simulated fault: connection refused", "network", unreachable=True)
        case "model_timeout":
            await asyncio.sleep(60)
            raise ProviderError("simulated fault: no answer for 60 s", "timeout")
        case _:
            await asyncio.sleep(0)


class SimulatedRegistry(Registry):
    """Resolves models for a simulation: with `instead`, all that are not scripted are replaced. No vendor is called."""

    def __init__(self, simulation: Simulation, agents: Iterable[Agent], instead: Model | None) -> None:
        super().__init__(Environment({}, dotenv=None))
        self._simulation = simulation
        self._instead = instead
        self._names = {
            id(model): f"{agent.id}/{number}" for agent in agents for number, model in enumerate(agent.models)
        }

    @property
    def default_model(self) -> str | None:
        return "the default model"

    def route(self, model: Model) -> Route:
        if self._instead is not None:
            model = model if isinstance(model, Scripted) else self._instead
        elif isinstance(model, str) or hasattr(model, "base_url"):
            raise ConfigError(
                f"a simulation does not call {model!r}: pass model=Scripted(…), or give the agent a scripted model"
            )
        name = self._names.get(id(model), "all")
        found = super().route(model)
        return Route(FaultyModel(self._simulation, found.provider, name), found.model)


class FaultyTools:
    """Puts the faults of a simulation around the tools of agents. Sync functions run in the event loop."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def wrap(self, agent: Agent) -> Agent:
        """Return a copy of an agent whose tools have faults."""
        return agent.with_tools([self._wrap_tool(tool) for tool in agent.tools])

    def _wrap_tool(self, tool: Tool) -> Tool:
        inline = tool if tool.is_async else tool.with_function(_on_loop(tool.function))
        return inline.within(functools.partial(self._around, tool, tool.around))

    @asynccontextmanager
    async def _around(
        self,
        tool: Tool,
        inner: Callable[[ToolContext], AbstractAsyncContextManager[None]] | None,
        context: ToolContext,
    ) -> AsyncGenerator[None]:
        simulation, ledger = self._simulation, self._simulation.ledger
        call, name = _current_call.set(context), _tool_name.set(tool.name)
        try:
            await _fail_call(simulation.pass_point(f"tool before {tool.name}"), tool)
            before = len(ledger.effects)
            async with inner(context) if inner is not None else nullcontext():
                yield
            own = tool.name in ledger.recording_tools or len(ledger.effects) > before
            if not own and tool.effect != "pure":
                ledger.add(tool.name, key=context.idempotency_key if tool.effect == "keyed" else "")
            await _fail_call(simulation.pass_point(f"tool after {tool.name}"), tool)
        finally:
            _current_call.reset(call)
            _tool_name.reset(name)


def _on_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def call(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return call


async def _fail_call(fault: FaultKind | None, tool: Tool) -> None:
    match fault:
        case "tool_exception":
            raise RuntimeError(f"simulated fault: {tool.name} raised an exception before it did anything")
        case "tool_refused":
            raise ConnectionRefusedError("simulated fault: connection refused")
        case "tool_answer_lost":
            raise ConnectionResetError("simulated fault: the connection was lost before the answer arrived")
        case "tool_timeout":
            await asyncio.sleep(tool.timeout * 2)
        case "tool_slow":
            await asyncio.sleep(tool.timeout / 2)
        case _:
            await asyncio.sleep(0)


class FaultyStore:
    """A store with the faults of a simulation; after a crash it refuses everything."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._inner = simulation.store

    async def commit(self, tenant: str, writes: Sequence[records.Write]) -> list[Any]:
        steps = [write for write in writes if isinstance(write, records.AddJournal)]
        what = " ".join([step.kind for step in steps]) or type(writes[0]).__name__ if writes else "nothing"
        match self._simulation.pass_point(f"commit before {what}"):
            case "store_busy":
                raise StoreBusy("simulated fault: another process holds the database")
            case "store_lost":
                raise StoreLost("simulated fault: the database is unreachable")
            case "store_slow":
                await asyncio.sleep(3)
            case _:
                pass
        results = await self._inner.commit(tenant, writes)
        if self._simulation.start_jobs is not None and any([isinstance(write, records.AddJob) for write in writes]):
            self._simulation.start_jobs()
        if self._simulation.pass_point(f"commit after {what}") == "store_answer_lost":
            raise StoreLost("simulated fault: the connection was lost during the commit", unclear=True)
        self._simulation.acknowledged += steps
        return results

    def __getattr__(self, name: str) -> Any:
        if self._simulation.crashed:
            raise SimulatedCrash
        return getattr(self._inner, name)


def faulty_store(simulation: Simulation) -> records.Store:
    """Return the store of a simulation as its processes see it."""
    return cast(records.Store, FaultyStore(simulation))
