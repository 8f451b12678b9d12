"""Runs cases: their processes are forked one after the other from a process with everything imported.

It starts no thread and has no open connection, so each child begins as a new process would. Half of what such a process
takes is copying the memory that it shares with its parent. So most cases that begin with a kill start from a snapshot
instead, and all processes that are not killed are one; every twentieth case has processes of its own.
"""

import asyncio
import gc
import os
import pickle
import shutil
import signal
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from checks import scaled
from crash.case_process import CaseProcess, CaseSetup, run_process
from crash.evidence_log import LogEntry, read
from crash.fault_points import NO_FAULT, Plan, is_plain_kill
from crash.process_state import STATE
from crash.scripts import Script
from crash.snapshots import Snapshot, compare_with_kill, take_snapshot
from crash.stores import Database, SqliteDatabase, Tables, make

End: TypeAlias = Literal["done", "killed", "stopped", "stuck", "broken"]
_HANG_TIMEOUT = 120.0
_THREAD_TIMEOUT = 10.0
_ENDED, _STOPS = b".", b"s"
"""What the shared process writes when a process of a case ends, and before it stops."""
_COLLECTED = 50_000
"""Objects from which on the shared process collects garbage; each case leaves far fewer."""
_OWN_PROCESSES = 20
"""One of so many cases runs without snapshots and without the shared process."""


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
    changed_files: tuple[str, ...] = ()
    """Files that a kill has changed since they were copied."""

    @property
    def injected(self) -> int:
        """The number of processes in which a fault was injected."""
        return sum(entry.who == "points" for entry in self.entries)


class Runner:
    """Runs cases in a folder; each has its own database, which the next case replaces. Postgres has no snapshots."""

    def __init__(self, folder: Path, database: Callable[[], Database] | None = None, *, separate: bool = False) -> None:
        self._folder = folder
        self._make = database
        self._separate = separate
        self._count = 0
        self._snapshots: dict[tuple[Plan, ...], Snapshot] = {}
        """Of the present script, by the kills before."""
        self._shared = SharedProcess()
        make(folder / "made.db")
        gc.collect()
        gc.freeze()
        self._empty_database = (folder / "made.db").read_bytes()

    def run(self, case: Case) -> Outcome:
        self._count += 1
        own = self._separate or self._count % _OWN_PROCESSES == 0
        match case.plans:
            case [Plan(fault="stop"), *_]:
                return self._run_zombie(case, own=own)
            case [Plan(fault="snapshot"), *_]:
                return self._run_copied_and_killed(case, own=own)
            case _:
                killed = 0 if own else self._count_snapshot_kills(case)
                setup = self._begin(case.script, case.plans[:killed])
                return self._run_processes(setup, case, ["killed"] * killed, own=own)

    def _count_snapshot_kills(self, case: Case) -> int:
        """Return the number of processes of a case up to its latest snapshot."""
        return next((n for n in range(len(case.plans), 0, -1) if case.plans[:n] in self._snapshots), 0)

    def _begin(self, script: Script, kills: tuple[Plan, ...] = ()) -> CaseSetup:
        """Set up a case: a new one, or as these kills left it."""
        folder = self._folder / "case"
        if kills:
            return CaseSetup(folder, SqliteDatabase(folder), script, self._snapshots[kills].restore(folder))
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        database = self._make() if self._make is not None else SqliteDatabase(folder)
        if isinstance(database, SqliteDatabase) and not script.migrates:
            database.path.write_bytes(self._empty_database)
        return CaseSetup(folder, database, script, time.time())

    def _run_processes(self, setup: CaseSetup, case: Case, ends: list[End], *, own: bool) -> Outcome:
        """Run the processes of a case after those that have ended; without `own`, all that are not killed are one."""
        for plan in (*case.plans, Plan(jump=case.jump))[len(ends) :]:
            process, after = CaseProcess(len(ends) + 1, plan), 0.0 if ends else case.after
            ends.append(self._run_process(setup, process, own=own or after > 0 or plan.fault == "kill", after=after))
            if ends[-1] == "done" and plan.fault in ("nothing", "kill"):
                break
        return _collect_outcome(setup, case, ends)

    def _run_zombie(self, case: Case, *, own: bool) -> Outcome:
        """Stop the first process, let a second one finish the turn, then continue the first.

        On SQLite, the lease of the stopped process would keep the second one from that, so its file is removed.
        """
        setup = self._begin(case.script)
        first = _start(setup, CaseProcess(1, case.plans[0]))
        ends = [decode_exit(os.waitpid(first, os.WUNTRACED)[1])]
        if ends[0] == "stopped":
            for lease in setup.folder.glob("*-lock"):
                lease.unlink()
            ends.append(self._run_process(setup, CaseProcess(2, NO_FAULT), own=own))
            os.kill(first, signal.SIGCONT)
            ends.append(decode_exit(os.waitpid(first, 0)[1]))
            self._run_process(setup, CaseProcess(3, NO_FAULT, restarts=True), own=own)
        return _collect_outcome(setup, case, ends)

    def _run_copied_and_killed(self, case: Case, *, own: bool) -> Outcome:
        """Copy the files at the point of the kill, then kill and recover."""
        setup = self._begin(case.script)
        child = _start(setup, CaseProcess(1, case.plans[0]))
        changed = compare_with_kill(setup, child, self._folder / "copied")
        outcome = self._run_processes(setup, case, ["killed"], own=own)
        return msgspec.structs.replace(outcome, changed_files=tuple(changed))

    def _run_process(self, setup: CaseSetup, process: CaseProcess, *, own: bool, after: float = 0.0) -> End:
        """Run a process to its end: an own or the shared one. With `after`, kill an own one after so many seconds."""
        if not own:
            return self._shared.run(setup, process)
        child = _start(setup, process)
        if after:
            time.sleep(after)
            os.kill(child, signal.SIGKILL)
        return decode_exit(os.waitpid(child, 0)[1])

    def take_snapshots(self, cases: Sequence[Case]) -> None:
        """Take the snapshots with which these cases of one script begin, instead of those of the script before.

        All first kills are points of one process, and second kills after the same first one of another. For a single
        kill, a process that is killed takes less.
        """
        self._snapshots.clear()
        shutil.rmtree(self._folder / "snapshots", ignore_errors=True)
        if self._separate or self._make is not None:
            return
        for depth in (0, 1):
            points = defaultdict[tuple[tuple[Plan, ...], Plan], list[int]](list)
            for case in cases:
                before = case.plans[:depth]
                if len(case.plans) > depth and is_plain_kill(kill := case.plans[depth]):
                    points[before, msgspec.structs.replace(kill, at=0)].append(kill.at)
            for (before, kill), at in points.items():
                if len(at) > 1 and (not before or before in self._snapshots):
                    self._take_snapshots(cases[0].script, before, kill, set(at))

    def _take_snapshots(self, script: Script, before: tuple[Plan, ...], kill: Plan, points: Collection[int]) -> None:
        """Take snapshots at some points of the process that follows the kills `before`."""
        setup = self._begin(script, before)

        def take() -> None:
            at, snapshot = take_snapshot(setup, self._folder / "snapshots" / str(len(self._snapshots)))
            self._snapshots[*before, msgspec.structs.replace(kill, at=at)] = snapshot

        plan = msgspec.structs.replace(kill, fault="snapshot", snapshots=tuple(points))
        self._shared.run(setup, CaseProcess(len(before) + 1, plan), take)

    def close(self) -> None:
        self._shared.close()


def _collect_outcome(setup: CaseSetup, case: Case, ends: Sequence[End]) -> Outcome:
    return Outcome(case, setup.database.rows(), read(setup.folder / "evidence"), tuple(ends))


def _start(setup: CaseSetup, process: CaseProcess) -> int:
    """Start a process and return its id."""
    return _fork(lambda: asyncio.run(run_process(setup, process)))


class SharedProcess:
    """A process that runs the processes of one case after the other, each with a store, an Atlas and a loop of its own.

    It is started when it is first needed, and again after one that was killed or has failed.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._requests, self._states = -1, -1

    def run(self, setup: CaseSetup, process: CaseProcess, at_stop: Callable[[], None] | None = None) -> End:
        """Run a process to its end; call `at_stop` whenever it stops for a snapshot."""
        if not self._pid:
            self._start()
        os.write(self._requests, pickle.dumps((setup, process)))
        while (state := os.read(self._states, 1)) == _STOPS and at_stop is not None:
            os.waitpid(self._pid, os.WUNTRACED)
            at_stop()
            os.kill(self._pid, signal.SIGCONT)
        return "done" if state else self._wait()

    def close(self) -> None:
        if self._pid:
            self._wait()

    def _start(self) -> None:
        requests, self._requests = os.pipe()
        self._states, states = os.pipe()
        self._pid = _fork(lambda: self._serve(requests, states))
        os.close(requests)
        os.close(states)

    def _serve(self, requests: int, states: int) -> None:
        os.close(self._requests)
        os.close(self._states)
        gc.enable()
        gc.set_threshold(_COLLECTED)
        with open(requests, "rb") as pipe:
            while pipe.peek(1):
                setup, process = pickle.load(pipe)
                signal.alarm(round(scaled(_HANG_TIMEOUT)))
                asyncio.run(run_process(setup, process, lambda: os.write(states, _STOPS)))
                _join_threads()
                signal.alarm(0)
                STATE.log.close()
                os.write(states, _ENDED)

    def _wait(self) -> End:
        os.close(self._requests)
        os.close(self._states)
        pid, self._pid = self._pid, 0
        return decode_exit(os.waitpid(pid, 0)[1])


def _join_threads() -> None:
    """Wait until the threads of a case have ended, so that they do not pass points of the next one."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(scaled(_THREAD_TIMEOUT))
            if thread.is_alive():
                raise RuntimeError(f"thread {thread.name} goes on after its store was closed")


def run_in_child(work: Callable[[], Coroutine[Any, Any, object]]) -> End:
    """Run a coroutine in a child process to its end."""
    return decode_exit(os.waitpid(_fork(lambda: asyncio.run(work())), 0)[1])


def _fork(work: Callable[[], object]) -> int:  # pyrefly: ignore[bad-return] - a child exits in `finally`
    """Run a function in a forked child; an alarm kills one that hangs."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        gc.disable()
        signal.alarm(round(scaled(_HANG_TIMEOUT)))
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - the parent sees how it ended
        traceback.print_exc()
    finally:
        os._exit(code)


def decode_exit(status: int) -> End:
    if os.WIFSTOPPED(status):
        return "stopped"
    if os.WIFSIGNALED(status):
        return "stuck" if os.WTERMSIG(status) == signal.SIGALRM else "killed"
    return "broken" if os.waitstatus_to_exitcode(status) else "done"
