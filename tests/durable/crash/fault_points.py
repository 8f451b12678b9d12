"""Fault injection points: where a process may be killed or an error raised, counted as they are passed.

They are at the seams (store, SQL, model, tool, approval, client) and not in the product itself. Each process has one
plan: a fault, and the point at which it is injected.
"""

import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from atlas_agents.core.errors import ProviderError, StoreBusy, StoreFull, StoreLost
from crash.evidence_log import EvidenceLog

Fault: TypeAlias = Literal[
    "nothing", "kill", "snapshot", "stop", "cancel", "busy", "full", "lost", "unclear", "io", "timeout", "exception"
]
COMMIT = "sql COMMIT"
_CHANGES = ("sql INSERT", "sql UPDATE", "sql DELETE", COMMIT, "sql CREATE", "sql ALTER", "sql DROP")
_EVERYWHERE = ("commit", *_CHANGES, "model", "tool", "approval", "reconcile", "client")
_OUTSIDE = ("model", "tool", "reconcile", "approval function")
FAULT_POINTS: dict[Fault, tuple[str, ...]] = {
    "nothing": (*_EVERYWHERE, "sql BEGIN", "read"),
    "kill": _EVERYWHERE,
    "snapshot": _EVERYWHERE,
    "stop": ("commit", "model", "tool", "client"),  # in a transaction it would hold the lock of the file
    "cancel": _EVERYWHERE,
    "busy": ("commit before", "read"),
    "full": ("commit before",),
    "lost": ("commit before", "read"),
    "unclear": ("commit",),
    "io": ("sql BEGIN", *_CHANGES),
    "timeout": _OUTSIDE,
    "exception": _OUTSIDE,
}
"""The points at which a fault can be injected, by name prefix. A kill at a read or a BEGIN is equivalent to one at the
point before it."""


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """The fault of one process: at the `at`-th point, or from there on `forever`; 0 is never. `only` restricts the
    points.

    `jump` is the error of the wall clock in seconds. With `sends_first` the client repeats unacknowledged messages
    before it recovers unfinished turns. At the points `snapshots` the process stops until its files are
    copied.
    """

    fault: Fault = "nothing"
    at: int = 0
    forever: bool = False
    only: str = ""
    jump: int = 0
    sends_first: bool = False
    snapshots: tuple[int, ...] = ()


NO_FAULT = Plan()


def is_plain_kill(plan: Plan) -> bool:
    """Whether a process is killed at one of the regular points, and its clock is right."""
    return plan == Plan("kill", plan.at, sends_first=plan.sends_first)


KILL_ENTRY = "kill"
"""File of the log entry that ends the evidence of a snapshot."""
EVIDENCE = "evidence"
"""Marks in the names of the passed points where the evidence log has grown since the point before."""


class Points:
    """Counts points and injects the fault. Both the writer thread and the event loop pass points."""

    def __init__(self, plan: Plan, log: EvidenceLog, before_stop: Callable[[], object] | None = None) -> None:
        self.plan = plan
        self.passed = 0
        self.injected = 0
        self.names: list[str] = []
        self.cancel: Callable[[], None] = _nothing
        self.on_first_fault: Callable[[], None] = _nothing
        self._before_stop = before_stop or _nothing
        self._world = log
        self._recorded = log.count
        self._prefixes = (plan.only,) if plan.only else FAULT_POINTS[plan.fault]
        self._counting = threading.Lock()

    def hit(self, name: str) -> Fault | None:
        """Pass a point and return the fault to raise there, if any; kills and cancellations happen at once."""
        plan = self.plan
        if not name.startswith(self._prefixes):
            return None
        with self._counting:
            self.passed += 1
            if self._recorded != self._world.count:
                self._recorded = self._world.count
                self.names.append(EVIDENCE)
            self.names.append(name)
            if self.passed in plan.snapshots:
                self._stop_for_snapshot(name)
            due = self.passed == plan.at or (plan.forever and 0 < plan.at <= self.passed)
            if not due:
                return None
            self.injected += 1
            if self.injected == 1:
                self._world.record("points", plan.fault, name=name, n=self.passed)
                self.on_first_fault()
        if plan.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif plan.fault == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif plan.fault == "cancel":
            self.cancel()
        return plan.fault

    def _stop_for_snapshot(self, name: str) -> None:
        """Stop until the files are copied; what a kill at this point would record is in a file of its own.

        The signal is sent to this thread, which therefore executes nothing more.
        """
        killed = self._world.line("points", "kill", name=name, n=self.passed)
        self._world.path.with_name(KILL_ENTRY).write_bytes(killed)
        self._before_stop()
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def in_store(fault: Fault | None) -> None:
    """Raise a store error for the fault."""
    match fault:
        case "busy":
            raise StoreBusy("another process holds the database")
        case "full":
            raise StoreFull("the disk is full")
        case "lost" | "unclear":
            raise StoreLost("the database is gone", unclear=fault == "unclear")
        case _:
            pass


def in_sql(fault: Fault | None) -> None:
    """Raise an SQLite error for the fault."""
    if fault == "io":
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error


def in_model(fault: Fault | None) -> None:
    """Raise a provider error or an unexpected exception for the fault."""
    if fault == "timeout":
        raise ProviderError("the model took too long", "timeout")
    if fault == "exception":
        raise RuntimeError("a bug in the provider")


def _nothing() -> None:
    """Do nothing."""
