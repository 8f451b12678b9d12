"""Measure one adapter in one scenario in this process: python worker.py ADAPTER SCENARIO SERVER_URL.

The last line it prints is the result as JSON. Set BENCH_PROFILE=FILE to profile the timed part; ignore
its figures then (read the file with `python -m pstats`).
"""

import asyncio
import cProfile
import gc
import importlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, cast

from scenarios import PROMPT, SCENARIOS, Tool, answer_deltas, make_history, make_tools

CPU_SECONDS = 0.8  # CPU time of the timed turns in one run: the same for fast and slow adapters
EARLY_ROUNDS, LATE_ROUNDS = (40, 60), (190, 210)  # rounds that `rounds` compares: around 50 and around 200
LONG_TURNS = 3  # minimum number of turns for `rounds`; up to three times as many if they are cheap

Result = dict[str, float]


class Adapter(Protocol):
    """Interface of a module in `adapters/`; see README.md. Only durable adapters have `store_history`."""

    def setup(self, base_url: str) -> None: ...
    def make_agent(self, tools: list[Tool]) -> Any: ...
    def make_history(self, pairs: list[tuple[str, str]]) -> Any: ...
    async def store_history(self, agent: Any, pairs: list[tuple[str, str]]) -> Any: ...
    async def turn(self, agent: Any, prompt: str, history: Any, on_delta: Callable[[str], None]) -> str: ...


class WrongTurn(Exception):
    """A turn did not do what its scenario requires, so its time is meaningless."""


class Subject:
    """One adapter in one scenario: runs turns and checks each of them."""

    def __init__(self, adapter: Adapter, name: str, server: str) -> None:
        self.scenario = SCENARIOS[name]
        self.call_times: list[int] = []  # CPU clock at each tool call
        self._adapter = adapter
        self._expected = "".join(answer_deltas(self.scenario))
        adapter.setup(f"{server}/{name}/v1")
        self._tools = make_tools(lambda: self.call_times.append(time.process_time_ns()))
        self._agent = adapter.make_agent(self._tools)
        self._history: Any = None

    async def open(self) -> "Subject":
        """Make the history that every turn has; a durable adapter stores it."""
        pairs = make_history(self.scenario.history)
        if self.scenario.durable:
            self._history = await self._adapter.store_history(self._agent, pairs)
        else:
            self._history = self._adapter.make_history(pairs)
        return self

    async def turn(self) -> None:
        """Run one turn; check that deltas, final text and expected text agree."""
        deltas: list[str] = []
        agent = self._adapter.make_agent(self._tools) if self.scenario.fresh else self._agent
        final = await self._adapter.turn(agent, PROMPT, self._history, deltas.append)
        streamed = "".join(deltas)
        if streamed != final or final != self._expected:
            raise WrongTurn(f"wrong text: deltas {streamed[:90]!r}, final {final[:90]!r}")

    async def turns(self, count: int) -> None:
        """Run `count` turns with the concurrency of the scenario; check the number of their tool calls."""
        together = self.scenario.concurrency
        self.call_times.clear()
        for _ in range(count // together):
            if together == 1:
                await self.turn()
            else:
                await asyncio.gather(*(self.turn() for _ in range(together)))
        if len(self.call_times) != count * sum(self.scenario.calls):
            raise WrongTurn(f"{len(self.call_times)} tools ran, {count * sum(self.scenario.calls)} expected")


async def measure_turns(adapter: Adapter, name: str, server: str) -> Result:
    """Measure CPU and memory per turn, after one cold turn and some warm ones."""
    subject = await Subject(adapter, name, server).open()
    count = subject.scenario.turns
    if not subject.scenario.gate:  # with a gate a single turn would wait for the others
        await subject.turn()
        count = await warm_up(subject)
    gc.collect()
    rss = reset_peak_memory()
    with profiling():
        cpu = time.process_time()
        await subject.turns(count)
        cpu = time.process_time() - cpu
    return {
        "cpu_ms": cpu / count * 1e3,
        "kb_per_turn": (memory_kb("VmHWM") - rss) / subject.scenario.concurrency,
    }


async def warm_up(subject: Subject) -> int:
    """Warm up caches and connections; return how many turns to time."""
    scenario = subject.scenario
    if scenario.concurrency > 1:
        await subject.turns(scenario.concurrency)
        return scenario.turns
    begin = time.process_time()
    await subject.turns(2)
    each = (time.process_time() - begin) / 2
    count = max(3, min(scenario.turns, int(CPU_SECONDS / each)))
    await subject.turns(min(count // 5, 10))
    return count


async def measure_rounds(adapter: Adapter, name: str, server: str) -> Result:
    """Measure the CPU of one model round with a short and with a long history, within the same turns."""
    subject = await Subject(adapter, name, server).open()
    early: list[float] = []
    late: list[float] = []
    while len(early) < LONG_TURNS or (len(early) < 3 * LONG_TURNS and time.process_time() < LONG_TURNS):
        gc.collect()
        await subject.turns(1)
        early.append(cpu_per_round(subject.call_times, *EARLY_ROUNDS))
        late.append(cpu_per_round(subject.call_times, *LATE_ROUNDS))
    ratios = [after / before for before, after in zip(early, late, strict=True)]
    return {
        "round_50_ms": statistics.median(early),
        "round_200_ms": statistics.median(late),
        "ratio": statistics.median(ratios),
    }


def cpu_per_round(call_times: list[int], first: int, last: int) -> float:
    """Return the CPU milliseconds per round, from the tool call of round `first` to that of round `last`."""
    return (call_times[last - 1] - call_times[first - 1]) / (last - first) / 1e6


async def measure_creation(adapter: Adapter, name: str, server: str) -> Result:
    """Measure the time of one agent with ten tools, without what agents share."""
    adapter.setup(f"{server}/S2/v1")
    tools = make_tools(lambda: None)
    agents = [adapter.make_agent(tools) for _ in range(3)]
    gc.collect()
    times: list[float] = []
    for _ in range(30):
        begin = time.process_time_ns()
        agents.append(adapter.make_agent(tools))
        times.append((time.process_time_ns() - begin) / 1e3)
    return {"create_us": statistics.median(times)}


def memory_kb(field: str) -> int:
    """Return a memory figure of this process from the kernel."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1])
    raise KeyError(field)


def reset_peak_memory() -> int:
    """Reset the peak to the current memory and return that."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_kb("VmRSS")


@contextmanager
def profiling() -> Generator[None]:
    target = os.environ.get("BENCH_PROFILE")
    if not target:
        yield
        return
    with cProfile.Profile(time.process_time) as profile:
        yield
    profile.dump_stats(target)


def fail_at_once(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the error and exit at once, without warnings about open resources."""
    traceback.print_exception(kind, error, trace)
    sys.stderr.flush()
    os._exit(1)


MEASURES = {"create": measure_creation, "rounds": measure_rounds}


async def main() -> None:
    adapter_name, scenario, server = sys.argv[1:]
    adapter = cast(Adapter, importlib.import_module(f"adapters.{adapter_name}"))
    result = await MEASURES.get(scenario, measure_turns)(adapter, scenario, server)
    print("\n" + json.dumps(result), flush=True)
    os._exit(0)  # the shutdown of frameworks is not measured


if __name__ == "__main__":
    sys.excepthook = fail_at_once
    asyncio.run(main())
