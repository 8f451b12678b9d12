"""A process that is stopped in the middle of a turn, and comes back when another one has gone on with it (F21)."""

import os
import signal
from collections.abc import Iterator, Sequence

from crash.life import Life
from crash.points import PEACE, Plan
from crash.runner import Case, End, Outcome, Runner, end_of
from crash.scripts import Script
from crash.suites import fitting


def zombies(runner: Runner, script: Script, names: Sequence[str]) -> Iterator[Outcome]:
    """Stopped at every point that is outside of a transaction."""
    for at in range(1, fitting(names, "stop") + 1):
        yield zombie(runner, Case(script, (Plan("stop", at),)))


def zombie(runner: Runner, case: Case) -> Outcome:
    """The first process is stopped, the second goes on and ends the turn, and then the first one wakes up."""
    setting = runner.set_up(case.script)
    first = runner.start(setting, Life(1, case.plans[0]))
    ends: list[End] = [end_of(os.waitpid(first, os.WUNTRACED)[1])]
    if ends[0] == "stopped":
        ends.append(runner.life(setting, Life(2, PEACE)))
        os.kill(first, signal.SIGCONT)
        ends.append(end_of(os.waitpid(first, 0)[1]))
        runner.again(setting, 3)
    return runner.judged(setting, case, ends)
