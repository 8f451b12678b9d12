"""Points: places where a process may die, or where something may go wrong, counted as they are passed.

They stand at the seams (store, SQL, model, tool, approval, client) and nowhere in the product itself. Each life of a
process has one plan: what strikes, and at which of the points that it can strike at.
"""

import os
import signal
import sqlite3
import threading
from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from atlas_agents.core.errors import ProviderError, StoreBusy, StoreFull, StoreLost
from crash.world import World

Deed: TypeAlias = Literal[
    "nothing", "kill", "stop", "cancel", "busy", "full", "lost", "unclear", "io", "timeout", "exception"
]
_CHANGES = ("sql INSERT", "sql UPDATE", "sql DELETE", "sql COMMIT", "sql CREATE", "sql ALTER", "sql DROP")
_EVERYWHERE = ("commit", *_CHANGES, "model", "tool", "approval", "reconcile", "client")
_OUTSIDE = ("model", "tool", "reconcile", "approval function")
FITS: dict[Deed, tuple[str, ...]] = {
    "nothing": (*_EVERYWHERE, "sql BEGIN", "read"),
    "kill": _EVERYWHERE,
    "stop": ("commit", "model", "tool", "client"),  # in a transaction it would hold the lock of the file as well
    "cancel": _EVERYWHERE,
    "busy": ("commit before", "read"),
    "full": ("commit before",),
    "lost": ("commit before", "read"),
    "unclear": ("commit",),
    "io": ("sql BEGIN", *_CHANGES),
    "timeout": _OUTSIDE,
    "exception": _OUTSIDE,
}
"""The points at which a deed can strike, by how their names begin. Nothing has changed between a read, or a BEGIN, and
the point before it: dying there shows nothing new."""


class Plan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What strikes in one life: at the `at`-th point, or from there on `forever`. 0 is never. `only` names the points
    that count, if not all do.

    `jump` is by how many seconds the wall clock is wrong in that life; `sends_first` has the client send again what was
    not acknowledged before it asks for what was cut short.
    """

    deed: Deed = "nothing"
    at: int = 0
    forever: bool = False
    only: str = ""
    jump: int = 0
    sends_first: bool = False


PEACE = Plan()


class Points:
    """Counts, and strikes when it is time. The writer's thread passes points as well as the loop's."""

    def __init__(self, plan: Plan, world: World) -> None:
        self.plan = plan
        self.passed = 0
        self.struck = 0
        self.names: list[str] = []
        self.cancel: Callable[[], None] = _nothing
        self._world = world
        self._fits = (plan.only,) if plan.only else FITS[plan.deed]
        self._counting = threading.Lock()

    def here(self, name: str) -> Deed | None:
        """What strikes here, if anything does; deaths and cancellations have already struck when this returns."""
        plan = self.plan
        if not name.startswith(self._fits):
            return None
        with self._counting:
            self.passed += 1
            self.names.append(name)
            due = self.passed == plan.at or (plan.forever and 0 < plan.at <= self.passed)
            if not due:
                return None
            self.struck += 1
            if self.struck == 1:
                self._world.note("points", plan.deed, name=name, n=self.passed)
        if plan.deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif plan.deed == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif plan.deed == "cancel":
            self.cancel()
        return plan.deed


def in_store(deed: Deed | None) -> None:
    """Raise what a store raises."""
    match deed:
        case "busy":
            raise StoreBusy("another process holds the database")
        case "full":
            raise StoreFull("the disk is full")
        case "lost" | "unclear":
            raise StoreLost("the database is gone", unclear=deed == "unclear")
        case _:
            pass


def in_sql(deed: Deed | None) -> None:
    """Raise what SQLite raises."""
    if deed == "io":
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error


def in_model(deed: Deed | None) -> None:
    """Raise what a model's connection raises, or something unforeseen."""
    if deed == "timeout":
        raise ProviderError("the model took too long", "timeout")
    if deed == "exception":
        raise RuntimeError("a bug in the provider")


def _nothing() -> None:
    """Nothing to cancel yet."""
