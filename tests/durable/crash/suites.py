"""Suites of cases, drawn by seed: which processes of a script are killed, stopped or fail, and at which points.

The cases of a script follow from the seed and the script alone, and a larger count only adds cases.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from typing import NamedTuple, TypeAlias

from crash.fault_points import COMMIT, EVIDENCE, FAULT_POINTS, Fault, Plan
from crash.runner import Case
from crash.scripts import POISON, SCRIPTS, Script

Draw: TypeAlias = Callable[[Script, Sequence[str], random.Random], Iterator[Case]]
"""Draws cases of a script, whose points without faults have these names."""

_ERRORS: tuple[Fault, ...] = ("busy", "full", "lost", "unclear", "io", "cancel", "timeout", "exception")
_AIMED_STEPS = ("accepted", "reply", "intent", "outcome", "asked", "answered", "ended")
_AIMED_POINTS = ("tool", "model before", "model after", "approval", "reconcile", "client ack", "client result")
_AIMED_WEIGHT = 4
_CRASHES = 6
"""Processes that a poisoned turn ends: the first one and five more without progress."""
_DAY = 86_400


def draw_points(names: Sequence[str], fault: Fault, rng: random.Random) -> list[int]:
    """Return every point of this fault in random order, those around intents and outcomes early.

    A later process finds what was committed and what tools, model and client have recorded. Points between which
    neither changes are the same crash, so all but the first of them come last.
    """
    ranks: list[tuple[bool, float]] = []
    changed, step = True, ""
    for name in names:
        if name.startswith("commit before"):
            step = name.split()[-1]
        changed = changed or name.startswith("commit after")
        if name.startswith(FAULT_POINTS[fault]):
            aimed = step in _AIMED_STEPS if name.startswith(("commit", "sql")) else name.startswith(_AIMED_POINTS)
            ranks.append((not changed, -(rng.random() ** (1 / _AIMED_WEIGHT if aimed else 1))))
            changed = False
        changed = changed or name in (COMMIT, EVIDENCE)
    return sorted(range(1, len(ranks) + 1), key=lambda at: ranks[at - 1])


def kills(script: Script, names: Sequence[str], rng: random.Random) -> Iterator[Case]:
    """Killed once."""
    for at in draw_points(names, "kill", rng):
        yield Case(script, (Plan("kill", at),))


def second_kills(script: Script, names: Sequence[str], rng: random.Random) -> Iterator[Case]:
    """Killed again while recovering, at two points of each recovery, and sometimes a third time. Where a later process
    ends before its point, fewer faults are injected than planned."""
    points = draw_points(names, "kill", rng)
    for first in cycle(points):
        left, sends_first = max(6, len(points) - first + 8), rng.random() < 0.5
        for _ in range(2):
            again = [Plan("kill", rng.randint(1, left), sends_first=sends_first)]
            if rng.random() < 0.2:
                again.append(Plan("kill", rng.randint(1, 8), sends_first=rng.random() < 0.5))
            yield Case(script, (Plan("kill", first), *again))


def errors(script: Script, names: Sequence[str], rng: random.Random) -> Iterator[Case]:
    """Each kind of error once, permanently until the next start, and while recovering from a kill."""
    kinds = [(fault, way) for fault in _ERRORS for way in ("once", "forever", "recovering")]
    kinds.remove(("cancel", "forever"))
    while True:
        rng.shuffle(kinds)
        for fault, way in kinds:
            if way == "recovering":
                kill = draw_points(names, "kill", rng)[0]
                yield Case(script, (Plan("kill", kill), Plan(fault, rng.randint(1, 12))))
            elif points := draw_points(names, fault, rng):
                yield Case(script, (Plan(fault, points[0], forever=way == "forever"),))


def unclear_commits(script: Script, names: Sequence[str], rng: random.Random) -> Iterator[Case]:
    """A commit whose response is lost, whether it was done or not."""
    for at in cycle(draw_points(names, "unclear", rng)):
        yield Case(script, (Plan("unclear", at),))


def zombies(script: Script, names: Sequence[str], rng: random.Random) -> Iterator[Case]:
    """Stopped outside of transactions, and continued after another process took over."""
    for at in cycle(draw_points(names, "stop", rng)):
        yield Case(script, (Plan("stop", at),))


def copies(script: Script, names: Sequence[str], rng: random.Random) -> Iterator[Case]:
    """Stopped for a copy of the files, and then killed: the copy must be what the kill leaves."""
    for at in draw_points(names, "snapshot", rng):
        yield Case(script, (Plan("snapshot", snapshots=(at,)),))


def seams(script: Script, names: Sequence[str], rng: random.Random) -> Iterator[Case]:
    """Killed at one point of each kind."""
    passed = [name for name in names if name.startswith(FAULT_POINTS["kill"])]
    kinds = [" ".join(name.split()[:2]) if name.startswith(("commit", "sql")) else name for name in passed]
    for kind in dict.fromkeys(kinds):
        at = rng.choice([at for at, other in enumerate(kinds, 1) if other == kind])
        yield Case(script, (Plan("kill", at),))


def crash_loops(script: Script, names: Sequence[str], rng: random.Random) -> Iterator[Case]:
    """Every process that resumes the turn is killed."""
    for point in ("tool poison", "model before", "model chunk"):
        yield Case(script, (Plan("kill", 1, only=point),) * _CRASHES)


def clock_jumps(script: Script, names: Sequence[str], rng: random.Random) -> Iterator[Case]:
    """The clock is a day off when the turn is resumed; a third process has the right time again."""
    for at in draw_points(names, "kill", rng):
        yield Case(script, (Plan("kill", at),), jump=-_DAY)
        yield Case(script, (Plan("kill", at),), jump=_DAY)
        yield Case(script, (Plan("kill", at), Plan("kill", rng.randint(1, 12), jump=-_DAY)))


class Suite(NamedTuple):
    """Which scripts, and how their cases are drawn: alternately, until one kind has no more."""

    scripts: Sequence[str]
    draws: Sequence[Draw]

    def draw(self, script: Script, names: Sequence[str], seed: str) -> Iterator[Case]:
        drawn = {
            draw: draw(script, names, random.Random(f"{seed} {draw.__name__} {script.name}")) for draw in self.draws
        }
        for draw in cycle(self.draws):
            if (case := next(drawn[draw], None)) is None:
                return
            yield case


_STOPPED = ("one unsafe call", "one keyed call", "one pure call", "approved by a function", "calls one by one")
_JUMPING = ("the day is spent", "approved", "approved as edited", "one unsafe call", "three rounds")
_ON_POSTGRES = (
    *("text only", "four calls at once", "approved", "three in a queue", "the day is spent", "summarised"),
    *("steered", "handed on"),
)
SUITES = {
    "faults": Suite(tuple(SCRIPTS), (kills, errors, second_kills, kills, unclear_commits)),
    "kills": Suite(tuple(SCRIPTS), (kills,)),
    "errors": Suite(tuple(SCRIPTS), (errors, unclear_commits)),
    "zombies": Suite((*_STOPPED, "four calls at once", "handed on"), (zombies,)),
    "copies": Suite(_STOPPED, (copies,)),
    "seams": Suite(("approved",), (seams,)),
    "crash-loops": Suite((POISON.name,), (crash_loops,)),
    "clock-jumps": Suite(_JUMPING, (clock_jumps,)),
    "postgres": Suite(_ON_POSTGRES, (kills, second_kills)),
}
