"""Helpers of many tests: valid histories, events of a stream, waiting, and a monitor of the event loop."""

import asyncio
import gc
import importlib
import inspect
import os
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

from atlas_agents import AtlasStream, Event, Message, Provider, Request, Tool, tool
from atlas_agents.core.aio import SystemClock

_TICK = 0.01
_LONGEST_INTERVAL = 0.05
T = TypeVar("T")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has bubblewrap, Landlock and /proc")
_REFERENCE = 0.004
"""Seconds of CPU time that the computation of `cpu_factor` takes on the reference machine."""
_MEASURED_EVERY = 15.0
"""Seconds between two measurements of the CPU for bounds in seconds."""
_USUAL_LOAD = 2.0
"""Processes per core that want to run while the tests run alone, with more workers than cores."""


def cpu_factor(samples: int = 5) -> float:
    """Return how many times slower this machine computes now than the one on which the bounds of CPU time were chosen.

    At least 1. Even CPU time grows on a busy machine: other processes share its caches and cores.
    """
    taken: list[float] = []
    for _ in range(samples):
        begun = time.process_time()
        sum(len(str(number)) for number in range(20_000))
        taken.append(time.process_time() - begun)
    return max(1.0, min(taken) / _REFERENCE)


def scaled(seconds: float) -> float:
    """Return a bound in seconds for this machine as it is now: slower CPUs and other processes make it longer."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * _recent_cpu_factor(int(time.monotonic() / _MEASURED_EVERY)) * max(1.0, load / _USUAL_LOAD)


@lru_cache(maxsize=1)
def _recent_cpu_factor(period: int) -> float:
    del period  # the key of the cache
    return cpu_factor(1)


TIMEOUT = min(scaled(120), 600)
"""Seconds after which a wait fails; at most what `chat.wait` accepts."""


def load_benchmark(name: str) -> Any:
    """Load a program of bench/ as a module. It imports others from its folder."""
    folder = str(Path(__file__).parents[1] / "bench")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)


class LazyModule:
    """A module that is imported when one of its names is first used: every worker process collects all tests.

    Not the one of `importlib`: pytest reads private attributes of every object in a test module, which would import it.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def is_paired(messages: Sequence[Message]) -> bool:
    """Return whether the next message answers every call exactly once, and answers nothing else."""
    expected: list[str] = []
    for message in messages:
        answered = [result.call_id for result in message.tool_results]
        if (answered and message.role != "tool") or sorted(answered) != sorted(expected):
            return False
        if message.tool_calls and message.role != "assistant":
            return False
        expected = [call.id for call in message.tool_calls]
    return not expected


async def wait_until(condition: Callable[[], Any], interval: float = 0.01, seconds: float = TIMEOUT) -> Any:
    """Poll a sync or async condition until it is true and return its value; TimeoutError after `seconds`.

    Only for states that no event announces, such as those of another process. Long waits poll less often: many
    conditions query a database or another process.
    """
    longest = max(interval, _LONGEST_INTERVAL)
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if found := await found if inspect.isawaitable(found) else found:
                return found
            await asyncio.sleep(interval)
            interval = min(longest, interval * 1.25)


def is_running(command: str) -> bool:
    """Return whether a process of this machine runs a command; its words are separated by single spaces."""
    if sys.platform != "linux":
        return command in subprocess.run(["ps", "-axo", "args="], check=True, capture_output=True, text=True).stdout
    wanted = command.replace(" ", "\0").encode()
    for each in Path("/proc").iterdir():
        with suppress(OSError):
            if each.name.isdecimal() and wanted in (each / "cmdline").read_bytes():
                return True
    return False


def endless_tool() -> tuple[Tool, asyncio.Event]:
    """Return the tool `forever`, which never ends, and an event that is set when it runs."""
    running = asyncio.Event()

    @tool
    async def forever() -> None:
        """Never ends."""
        running.set()
        await asyncio.Event().wait()

    return forever, running


async def run_ready_tasks(count: int = 50) -> None:
    """Yield to the event loop `count` times, so that ready tasks run."""
    for _ in range(count):
        await asyncio.sleep(0)


class ShiftedClock(SystemClock):
    """Real time plus `ahead` seconds, which a test can change at any time."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


def roles(messages: Sequence[Message]) -> list[str]:
    return [message.role for message in messages]


async def collect_events(stream: AtlasStream) -> list[Any]:
    async with asyncio.timeout(TIMEOUT):
        return [event async for event in stream]


def summarize_events(events: Sequence[Event]) -> list[tuple[Any, ...]]:
    """Return the content of the events, without ids and times."""
    return [(event.type, *_event_fields(event)) for event in events]


def _event_fields(event: Any) -> tuple[Any, ...]:
    match event.type:
        case "message:sent" | "message:received":
            return (event.message.text,)
        case "stream:start":
            return (event.agent_id,)
        case "stream:chunk" | "stream:thinking":
            return (event.text,)
        case "tool:called":
            return event.name, event.arguments
        case "tool:progress":
            return event.name, event.message
        case "tool:result":
            return event.name, event.status, event.error, event.result
        case "stream:end":
            return ("cancelled",) if event.cancelled else ((event.error,) if event.error else ())
        case "error":
            return event.kind, event.message
        case _:
            return ()


class PausedProvider:
    """Wraps a provider: after `after` chunks it sets `reached` and waits for `go`."""

    def __init__(self, provider: Provider, after: int = 0) -> None:
        self._provider = provider
        self._after = after
        self.id = provider.id
        self.capabilities = provider.capabilities
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        self.closed = 0

    async def stream(self, request: Request) -> AsyncGenerator[Any, None]:
        count = 0
        try:
            async for chunk in self._provider.stream(request):
                if count == self._after:
                    self.reached.set()
                    await self.go.wait()
                count += 1
                yield chunk
        finally:
            self.closed += 1


async def ignore_cancellation(release: asyncio.Event, seconds: float = 2 * TIMEOUT) -> None:
    """Wait for `release` despite cancellation, but no longer than `seconds`."""
    end = time.monotonic() + seconds
    while not release.is_set() and time.monotonic() < end:
        with suppress(asyncio.CancelledError, TimeoutError):
            await asyncio.wait_for(release.wait(), 0.1)


class LoopMonitor:
    """Counts the rounds of the event loop."""

    def __init__(self) -> None:
        self.rounds = 0

    def keeps_running(self, seconds: float = TIMEOUT) -> bool:
        """Block this thread until the loop has run three more rounds; False on the loop's own thread."""
        target, end = self.rounds + 3, time.monotonic() + seconds
        while self.rounds < target:
            if time.monotonic() > end:
                return False
            time.sleep(0.001)
        return True


@asynccontextmanager
async def monitor_loop() -> AsyncGenerator[LoopMonitor, None]:
    monitor = LoopMonitor()

    async def count_rounds() -> None:
        while True:
            monitor.rounds += 1
            await asyncio.sleep(0.001)

    task = asyncio.create_task(count_rounds())
    try:
        yield monitor
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class LoopTime:
    """Seconds in which the event loop could run; time in which the process got no CPU does not count."""

    def __init__(self) -> None:
        self.seconds = 0.0


@asynccontextmanager
async def measure_loop_time() -> AsyncGenerator[LoopTime, None]:
    """Measure a duration with a bound that also holds on a busy machine."""
    elapsed = LoopTime()

    async def tick() -> None:
        while True:
            await asyncio.sleep(_TICK)
            elapsed.seconds += _TICK

    task = asyncio.create_task(tick())
    try:
        yield elapsed
    finally:
        task.cancel()


class LongestBlock:
    """The most CPU seconds that the thread of the event loop used without running other tasks."""

    def __init__(self) -> None:
        self.seconds = 0.0


@asynccontextmanager
async def measure_longest_block() -> AsyncGenerator[LongestBlock, None]:
    """Measure how long other tasks wait. CPU time counts: other processes delay them, too."""
    longest = LongestBlock()
    gc.collect()
    gc.freeze()  # do not collect garbage of earlier tests meanwhile

    async def tick() -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            longest.seconds = max(longest.seconds, time.thread_time() - before)

    task = asyncio.create_task(tick())
    try:
        yield longest
        await asyncio.sleep(0.01)  # until the last block is counted
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        gc.unfreeze()


async def repeat_for_block(work: Callable[[], Awaitable[T]], times: int = 3) -> tuple[T, float]:
    """Return the result of some work, and its longest block in the best of several runs, since other processes that
    use the same cores lengthen single ones."""
    blocks: list[float] = []
    while True:
        async with measure_longest_block() as longest:
            result = await work()
        blocks.append(longest.seconds)
        if len(blocks) == times:
            return result, min(blocks)


@contextmanager
def as_unprivileged_user(folder: Path) -> Generator[None]:
    """Switch from root to a user to whom file modes apply. The folder itself stays accessible."""
    if os.geteuid() != 0:
        yield
        return
    for each in (folder, *folder.parents[:-2]):
        each.chmod(each.stat().st_mode | 0o755)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@cache
def ssl_context() -> ssl.SSLContext:
    """One TLS context for all clients of SDKs: to read the certificates of the machine takes longer than most tests."""
    return ssl.create_default_context()
