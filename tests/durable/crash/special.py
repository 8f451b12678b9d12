"""Special cases: a turn that crashes every process that resumes it (F40), and clock jumps (F28)."""

import random
from collections.abc import Iterator, Sequence

from crash.fault_points import Plan
from crash.runner import Case, Outcome
from crash.scripts import POISON, Script
from crash.suites import count_points

_PROCESSES = 6
"""The first process and five more without progress."""
_DAY = 86_400
JUMPING = ("the day is spent", "approved", "approved as edited", "one unsafe call", "three rounds")


def crash_loops() -> Iterator[Case]:
    for point in ("tool poison", "model before", "model chunk"):
        yield Case(POISON, (Plan("kill", 1, only=point),) * _PROCESSES)


def not_given_up(outcome: Outcome) -> list[str]:
    """Return what is wrong if the turn was not failed with this error, or if the next one does not work."""
    found = [(run.status, (run.error or "")[:28]) for run in outcome.tables.runs]
    wanted = [("failed", "the process crashed 5 times "), ("done", "")]
    ends = (*("killed",) * _PROCESSES, "done")
    return [] if found == wanted and outcome.ends == ends else [f"I4: {outcome.ends} {found} instead of {wanted}"]


def clock_jumps(script: Script, names: Sequence[str], each: int, rng: random.Random) -> Iterator[Case]:
    """The clock is a day off when the turn is resumed; a third process has the right time again."""
    points = range(1, count_points(names, "kill") + 1)
    for at in sorted(rng.sample(points, min(each, len(points)))):
        yield Case(script, (Plan("kill", at),), jump=-_DAY)
        yield Case(script, (Plan("kill", at),), jump=_DAY)
        yield Case(script, (Plan("kill", at), Plan("kill", rng.randint(1, 12), jump=-_DAY)))
