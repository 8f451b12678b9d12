"""Runs cases: their processes are forked one after the other from a process with everything imported.

It starts no thread and has no open connection, so each child begins as a new process would.
"""

import asyncio
import gc
import os
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from crash.case_process import CaseProcess, CaseSetup, restart_process, run_to_end
from crash.evidence_log import LogEntry, read
from crash.fault_points import NO_FAULT, Plan
from crash.scripts import Script
from crash.stores import Database, SqliteDatabase, Tables, make

End: TypeAlias = Literal["done", "killed", "stopped", "stuck", "broken"]
_HANG_TIMEOUT = 120


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """A script and the fault plan of each process; the last process has no fault.

    `jump` is the error of the last process's wall clock in seconds; `after` kills the first process from outside after
    so many seconds.
    """

    script: Script
    plans: tuple[Plan, ...] = ()
    jump: int = 0
    after: float = 0.0


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of a case: the rows, the evidence log, and how its processes ended."""

    case: Case
    tables: Tables
    entries: list[LogEntry]
    ends: tuple[End, ...]

    @property
    def injected(self) -> int:
        """The number of processes in which a fault was injected."""
        return sum(entry.who == "points" for entry in self.entries)


class Runner:
    """Runs cases in a folder; each has its own database, which the next case replaces."""

    def __init__(self, folder: Path, database: Callable[[], Database] | None = None) -> None:
        self._folder = folder
        self._make = database
        gc.collect()
        gc.freeze()
        run_in_child(lambda: make(folder / "made.db"))
        self._empty_database = (folder / "made.db").read_bytes()

    def run(self, case: Case) -> Outcome:
        setup, ends = self.set_up(case.script), list[End]()
        for plan in (*case.plans, Plan(jump=case.jump)):
            after = case.after if not ends else 0.0
            ends.append(self.run_process(setup, CaseProcess(len(ends) + 1, plan), after))
            if ends[-1] == "done" and plan.fault in ("nothing", "kill"):
                break
        return self.collect_outcome(setup, case, ends)

    def set_up(self, script: Script) -> CaseSetup:
        """Create a folder with an empty log and an empty database."""
        folder = self._folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        database = self._make() if self._make is not None else self._create_database(folder, script)
        return CaseSetup(folder, database, script, time.time())

    def start(self, setup: CaseSetup, process: CaseProcess) -> int:
        """Start a process and return its id."""
        return _fork(lambda: run_to_end(setup, process))

    def run_process(self, setup: CaseSetup, process: CaseProcess, after: float = 0.0) -> End:
        """Run a process to its end; with `after`, kill it from outside after so many seconds."""
        child = self.start(setup, process)
        if after:
            time.sleep(after)
            os.kill(child, signal.SIGKILL)
        return decode_exit(os.waitpid(child, 0)[1])

    def restart(self, setup: CaseSetup, number: int) -> None:
        """Start once more, which should find nothing to do."""
        run_in_child(lambda: restart_process(setup, CaseProcess(number, NO_FAULT)))

    def collect_outcome(self, setup: CaseSetup, case: Case, ends: Sequence[End]) -> Outcome:
        return Outcome(case, setup.database.rows(), read(setup.folder / "evidence"), tuple(ends))

    def _create_database(self, folder: Path, script: Script) -> Database:
        database = SqliteDatabase(folder)
        if not script.migrates:
            database.copy_from(self._empty_database)
        return database


def run_in_child(work: Callable[[], Coroutine[Any, Any, object]]) -> End:
    """Run a coroutine in a child process to its end."""
    return decode_exit(os.waitpid(_fork(work), 0)[1])


def _fork(work: Callable[[], Coroutine[Any, Any, object]]) -> int:
    """Run a coroutine in a forked child; an alarm kills one that hangs."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        gc.disable()
        signal.alarm(_HANG_TIMEOUT)
        asyncio.run(_done(work))
        code = 0
    except BaseException:  # noqa: BLE001 - the parent sees how it ended
        traceback.print_exc()
    finally:
        os._exit(code)


async def _done(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    await work()


def decode_exit(status: int) -> End:
    if os.WIFSTOPPED(status):
        return "stopped"
    if os.WIFSIGNALED(status):
        return "stuck" if os.WTERMSIG(status) == signal.SIGALRM else "killed"
    return "broken" if os.waitstatus_to_exitcode(status) else "done"
