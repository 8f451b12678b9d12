"""Cases: lives that are forked one after the other from a process that has everything imported, and what came of them.

Nothing here starts a thread, and no connection is open during a fork: each begins as a new process would.
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

from crash.life import Life, Setting, live, start_again
from crash.points import PEACE, Plan
from crash.scripts import Script
from crash.stores import Place, SqlitePlace, Tables, make
from crash.world import Note, read

End: TypeAlias = Literal["done", "killed", "stopped", "stuck", "broken"]
_STUCK = 30


class Case(msgspec.Struct, frozen=True, omit_defaults=True):
    """A script, and what strikes in each of its lives; the last one is always left in peace.

    `jump` is by how many seconds the wall clock is wrong in that one; `after` kills the first life from outside when it
    has lived so many seconds.
    """

    script: Script
    plans: tuple[Plan, ...] = ()
    jump: int = 0
    after: float = 0.0


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

    def __init__(self, folder: Path, place: Callable[[], Place] | None = None) -> None:
        self._folder = folder
        self._make = place
        gc.collect()
        gc.freeze()
        end_of(os.waitpid(_fork(lambda: make(folder / "made.db")), 0)[1])
        self._made = (folder / "made.db").read_bytes()

    def run(self, case: Case) -> Outcome:
        setting, ends = self.set_up(case.script), list[End]()
        for plan in (*case.plans, Plan(jump=case.jump)):
            after = case.after if not ends else 0.0
            ends.append(self.life(setting, Life(len(ends) + 1, plan), after))
            if ends[-1] == "done" and plan.deed in ("nothing", "kill"):
                break
        return self.judged(setting, case, ends)

    def set_up(self, script: Script) -> Setting:
        """A folder with an empty world and an empty store."""
        folder = self._folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        place = self._make() if self._make is not None else self._file(folder, script)
        return Setting(folder, place, script, time.time())

    def start(self, setting: Setting, life: Life) -> int:
        """Start a process and return its id."""
        return _fork(lambda: live(setting, life))

    def life(self, setting: Setting, life: Life, after: float = 0.0) -> End:
        """A whole life, to whatever end; killed from outside `after` so many seconds, if it still lives then."""
        child = self.start(setting, life)
        if after:
            time.sleep(after)
            os.kill(child, signal.SIGKILL)
        return end_of(os.waitpid(child, 0)[1])

    def again(self, setting: Setting, number: int) -> None:
        """One more start, that should find nothing to do; an undisturbed process does that by itself."""
        os.waitpid(_fork(lambda: start_again(setting, Life(number, PEACE))), 0)

    def judged(self, setting: Setting, case: Case, ends: Sequence[End]) -> Outcome:
        return Outcome(case, setting.place.rows(), read(setting.folder / "world"), tuple(ends))

    def _file(self, folder: Path, script: Script) -> Place:
        place = SqlitePlace(folder)
        if not script.migrates:
            place.begin(self._made)
        return place


def _fork(work: Callable[[], Coroutine[Any, Any, object]]) -> int:
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
    except BaseException:  # noqa: BLE001 - the parent sees how it ended
        traceback.print_exc()
    finally:
        os._exit(code)


async def _done(work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    await work()


def end_of(status: int) -> End:
    if os.WIFSTOPPED(status):
        return "stopped"
    if os.WIFSIGNALED(status):
        return "stuck" if os.WTERMSIG(status) == signal.SIGALRM else "killed"
    return "broken" if os.waitstatus_to_exitcode(status) else "done"
