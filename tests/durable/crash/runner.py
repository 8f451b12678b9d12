"""Cases: lives that are forked one after the other from a process that has everything imported, and what came of them.

Nothing here starts a thread, and no connection is open while a life is forked: each begins as a new process would.
"""

import asyncio
import gc
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from crash.life import Life, live, recover_again
from crash.points import Plan
from crash.scripts import Script
from crash.stores import Place, SqlitePlace, Tables, make
from crash.world import Note, read

End: TypeAlias = Literal["done", "killed", "stopped", "stuck", "broken"]
_STUCK = 30


class Case(msgspec.Struct, frozen=True):
    """A script, and what strikes in each of its lives; the last one is always left in peace."""

    script: Script
    plans: tuple[Plan, ...] = ()
    jump: int = 0
    """By how much the wall clock is wrong in the life in peace."""


class Outcome(msgspec.Struct, frozen=True):
    """What is left of a case: the rows, the world, and how its lives ended."""

    case: Case
    tables: Tables
    notes: list[Note]
    ends: tuple[End, ...]

    @property
    def struck(self) -> int:
        """In how many lives something struck."""
        return sum(note.who == "points" for note in self.notes)


class Runner:
    """Runs cases in a folder; each has a place of its own there, which is gone when the next one begins."""

    def __init__(self, folder: Path, place: Callable[[Path], Place] | None = None) -> None:
        self._folder = folder
        self._make = place
        self.lives = 0
        gc.collect()
        gc.freeze()
        self.fork(lambda: make(folder / "made.db"))
        self._made = (folder / "made.db").read_bytes()

    def run(self, case: Case) -> Outcome:
        folder = self._folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        place, began, ends = self._place(folder, case.script), time.time(), list[End]()
        for number, plan in enumerate((*case.plans, Plan(jump=case.jump)), 1):
            ends.append(self.life(folder, place, case.script, Life(number, began, plan)))
            if ends[-1] == "done" and plan.deed in ("nothing", "kill"):
                break
        self.fork(lambda: recover_again(folder, place, case.script, Life(len(ends) + 1, began, Plan(jump=case.jump))))
        return Outcome(case, place.rows(), read(folder / "world"), tuple(ends))

    def life(self, folder: Path, place: Place, script: Script, life: Life) -> End:
        """One life, to whatever end."""
        self.lives += 1
        return end_of(os.waitpid(self.fork_off(lambda: live(folder, place, script, life)), 0)[1])

    def fork(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        os.waitpid(self.fork_off(work), 0)

    def fork_off(self, work: Callable[[], Coroutine[Any, Any, object]]) -> int:
        """Have it done by a child; the alarm ends one that hangs."""
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            gc.disable()
            signal.alarm(_STUCK)
            asyncio.run(_done(work))
            code = 0
        except BaseException:  # noqa: BLE001 - the parent hears of it
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _place(self, folder: Path, script: Script) -> Place:
        if self._make is not None:
            return self._make(folder)
        place = SqlitePlace(folder)
        place.begin(None if script.migrates else self._made)
        return place


async def _done(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    await work()


def end_of(status: int) -> End:
    if os.WIFSTOPPED(status):
        return "stopped"
    if os.WIFSIGNALED(status):
        return "stuck" if os.WTERMSIG(status) == signal.SIGALRM else "killed"
    return "broken" if os.waitstatus_to_exitcode(status) else "done"
