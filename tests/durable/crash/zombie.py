"""Zombie processes: stopped in a turn and continued after another process took over (F21)."""

import os
import signal
from collections.abc import Iterator, Sequence

from crash.case_process import CaseProcess
from crash.fault_points import NO_FAULT, Plan
from crash.runner import Case, End, Outcome, Runner, decode_exit
from crash.scripts import Script
from crash.suites import count_points


def zombies(runner: Runner, script: Script, names: Sequence[str]) -> Iterator[Outcome]:
    """Yield a case for a stop at every point outside transactions."""
    for at in range(1, count_points(names, "stop") + 1):
        yield zombie(runner, Case(script, (Plan("stop", at),)))


def zombie(runner: Runner, case: Case) -> Outcome:
    """Stop the first process, let a second one finish the turn, then continue the first.

    On SQLite, the lease of the stopped process would keep the second one from that, so its file is removed.
    """
    setup = runner.set_up(case.script)
    first = runner.start(setup, CaseProcess(1, case.plans[0]))
    ends: list[End] = [decode_exit(os.waitpid(first, os.WUNTRACED)[1])]
    if ends[0] == "stopped":
        for lease in setup.folder.glob("*-lock"):
            lease.unlink()
        ends.append(runner.run_process(setup, CaseProcess(2, NO_FAULT)))
        os.kill(first, signal.SIGCONT)
        ends.append(decode_exit(os.waitpid(first, 0)[1]))
        runner.restart(setup, 3)
    return runner.collect_outcome(setup, case, ends)
