"""Zombie processes: stopped in a turn and continued after another process took over (F21)."""

import os
import signal
from collections.abc import Iterator, Sequence

from crash.case_process import CaseProcess
from crash.fault_points import EVIDENCE, FAULT_POINTS, NO_FAULT, Plan
from crash.runner import Case, End, Outcome, Runner, decode_exit
from crash.scripts import Script
from crash.suites import COMMIT


def zombies(runner: Runner, script: Script, names: Sequence[str], *, distinct: bool = False) -> Iterator[Outcome]:
    """Yield a case for a stop at every point outside transactions.

    With `distinct`, only the first of the points between which nothing was committed and nothing was recorded by tools,
    model and client: both processes then find the same, and the zombie continues with the same commit.
    """
    at, changed = 0, True
    for name in names:
        if name in (EVIDENCE, COMMIT):
            changed = True
        elif name.startswith(FAULT_POINTS["stop"]):
            at += 1
            if changed or not distinct:
                yield zombie(runner, Case(script, (Plan("stop", at),)))
            changed = False


def zombie(runner: Runner, case: Case) -> Outcome:
    """Stop the first process, let a second one finish the turn, then continue the first.

    On SQLite, the lease of the stopped process would keep the second one from that, so its file is removed.
    """
    own = runner.count_case()
    setup = runner.set_up(case.script)
    first = runner.start(setup, CaseProcess(1, case.plans[0]))
    ends: list[End] = [decode_exit(os.waitpid(first, os.WUNTRACED)[1])]
    if ends[0] == "stopped":
        for lease in setup.folder.glob("*-lock"):
            lease.unlink()
        ends.append(runner.run_process(setup, CaseProcess(2, NO_FAULT), own=own))
        os.kill(first, signal.SIGCONT)
        ends.append(decode_exit(os.waitpid(first, 0)[1]))
        runner.run_process(setup, CaseProcess(3, NO_FAULT, restarts=True), own=own)
    return runner.collect_outcome(setup, case, ends)
