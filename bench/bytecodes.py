"""Executed bytecodes per turn in two checkouts: exact on a busy machine, where CPU time is not.

python bench/bytecodes.py ../before/src     this checkout compared with another one

S1, S2 and S3 run in memory, D1 is S2 with every step stored in SQLite. The model double is the one of `run.py`. The
bytecodes of all threads are counted; work in C (SQLite, JSON, the kernel) is not. A count is the median of some turns,
because timers and the garbage collector are not part of every turn.
"""

import argparse
import asyncio
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from measure import running_server
from tables import table
from venvs import BENCH_FOLDER
from worker import Subject

ADAPTERS = {"S1": "ours", "S2": "ours", "S3": "ours", "D1": "ours_sqlite"}
WARM_UP_TURNS, TURNS = 5, 15


class BytecodeCounter:
    """Counts the bytecodes that Python executes, in each thread apart: adding to a number is not atomic."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def install(self) -> None:
        threading.settrace(self._trace_call)
        sys.settrace(self._trace_call)

    @property
    def total(self) -> int:
        return self._counts.total()

    def _trace_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._trace_opcode

    def _trace_opcode(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self._counts[threading.get_ident()] += 1
        return self._trace_opcode


async def count(scenario: str, server: str) -> float:
    """Return the bytecodes of a turn in this process."""
    counter = BytecodeCounter()
    counter.install()
    subject = await Subject(importlib.import_module(f"adapters.{ADAPTERS[scenario]}"), scenario, server).open()
    await subject.turns(WARM_UP_TURNS)
    counts: list[int] = []
    for _ in range(TURNS):
        before = counter.total
        await subject.turns(1)
        counts.append(counter.total - before)
    return statistics.median(counts)


def count_in_process(scenario: str, server: str, source: Path) -> float:
    """Return the bytecodes of a turn of the package in a folder."""
    command = [sys.executable, __file__, "count", scenario, server]
    environment = os.environ | {"PYTHONPATH": str(source.resolve()), "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, cwd=folder, check=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="folder `src` of another checkout")
    other = parser.parse_args().other
    if not (other / "atlas_agents").is_dir():
        parser.error(f"{other}: no package atlas_agents is there, expected the folder `src` of a checkout")
    rows: dict[str, dict[str, float]] = {}
    with running_server() as server:
        for scenario in ADAPTERS:
            this = count_in_process(scenario, server, BENCH_FOLDER.parent / "src")
            before = count_in_process(scenario, server, other)
            rows[scenario] = {"this": this, "other": before, "this / other": this / before}
    print(table("bytecodes of a turn", rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["count"]:
        print(json.dumps(asyncio.run(count(*sys.argv[2:]))), flush=True)
        os._exit(0)  # stores and clients need not be closed
    main()
