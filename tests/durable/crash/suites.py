"""Suites of cases. A: kill at every point. B: kill again during recovery. C: errors instead of kills."""

import random
from collections.abc import Iterator, Sequence

from crash.fault_points import FAULT_POINTS, Fault, Plan
from crash.runner import Case
from crash.scripts import Script

STORE: tuple[Fault, ...] = ("busy", "full", "lost", "unclear", "io")
OTHERS: tuple[Fault, ...] = ("cancel", "timeout", "exception")
UNCOMMITTED = ("commit before", "sql INSERT", "sql UPDATE", "sql DELETE", "sql CREATE", "sql ALTER", "sql DROP")
CHUNK = "model chunk"


def count_points(names: Sequence[str], fault: Fault) -> int:
    """Return at how many of these points a fault can be injected."""
    return sum(name.startswith(FAULT_POINTS[fault]) for name in names)


def singles(script: Script, names: Sequence[str], *, distinct: bool = False) -> Iterator[Case]:
    """Suite A: killed at every point once; with `distinct`, at one of the points that lead to the same recovery.

    Until COMMIT the file is the same whichever statement of the transaction is next. While a reply is streamed nothing
    is written, so the first and the last chunk stand for all.
    """
    points = [name for name in names if name.startswith(FAULT_POINTS["kill"])]
    for at, name in enumerate(points, 1):
        inside = points[at - 2 : at - 1] == [CHUNK] == points[at : at + 1]
        if not (distinct and (name.startswith(UNCOMMITTED) or (name == CHUNK and inside))):
            yield Case(script, (Plan("kill", at),))


def repeated(script: Script, names: Sequence[str], count: int, rng: random.Random) -> Iterator[Case]:
    """Suite B: killed again while recovering, and sometimes a third time. Where a later process ends before its point,
    fewer faults are injected than planned."""
    points = count_points(names, "kill")
    for number in range(count):
        first = rng.randint(1, points)
        left = max(6, points - first + 8)
        restarted = [Plan("kill", rng.randint(1, left), sends_first=bool(rng.getrandbits(1)))]
        if number % 5 == 0:
            restarted.append(Plan("kill", rng.randint(1, 8), sends_first=bool(rng.getrandbits(1))))
        yield Case(script, (Plan("kill", first), *restarted))


def errors(script: Script, names: Sequence[str], each: int, rng: random.Random) -> Iterator[Case]:
    """Suite C: some points for each kind of error, once and permanently until the next start."""
    for fault in (*STORE, *OTHERS):
        points = range(1, count_points(names, fault) + 1)
        for at in sorted(rng.sample(points, min(each, len(points)))):
            yield Case(script, (Plan(fault, at),))
        for at in sorted(rng.sample(points, min(max(1, each // 3), len(points)))):
            if fault != "cancel":
                yield Case(script, (Plan(fault, at, forever=True),))


def errors_while_recovering(script: Script, names: Sequence[str], each: int, rng: random.Random) -> Iterator[Case]:
    """Suite C: a kill, then an error during recovery."""
    points = count_points(names, "kill")
    for fault in (*STORE, "cancel"):
        for _ in range(each):
            yield Case(script, (Plan("kill", rng.randint(1, points)), Plan(fault, rng.randint(1, 12))))
