"""Suites of cases. A: kill at every point. B: kill again during recovery. C: errors instead of kills."""

import random
from collections.abc import Iterator, Sequence

from crash.fault_points import EVIDENCE, FAULT_POINTS, Fault, Plan
from crash.runner import Case
from crash.scripts import Script

STORE: tuple[Fault, ...] = ("busy", "full", "lost", "unclear", "io")
OTHERS: tuple[Fault, ...] = ("cancel", "timeout", "exception")
COMMIT = "sql COMMIT"
UNCOMMITTED = ("commit before", "sql INSERT", "sql UPDATE", "sql DELETE", "sql CREATE", "sql ALTER", "sql DROP")


def count_points(names: Sequence[str], fault: Fault) -> int:
    """Return at how many of these points a fault can be injected."""
    return sum(name.startswith(FAULT_POINTS[fault]) for name in names)


def singles(script: Script, names: Sequence[str], *, distinct: bool = False) -> Iterator[Case]:
    """Suite A: killed at every point once; with `distinct`, at one of the points that lead to the same recovery.

    A later process finds what was committed and what tools, model and client have recorded. Points between which
    neither changes are the same crash, so the first of them stands for all. The point before a COMMIT stands for its
    transaction: the file is the same whichever statement is next.
    """
    at, changed = 0, True
    for name in names:
        if name == EVIDENCE:
            changed = True
        elif name.startswith(FAULT_POINTS["kill"]):
            at += 1
            inside = name.startswith(UNCOMMITTED)
            if not distinct or name == COMMIT or (changed and not inside):
                yield Case(script, (Plan("kill", at),))
            changed = name == COMMIT or (changed and inside)


def repeated(script: Script, names: Sequence[str], count: int, rng: random.Random) -> Iterator[Case]:
    """Suite B: killed again while recovering, two points of each recovery, and sometimes a third time. Where a later
    process ends before its point, fewer faults are injected than planned."""
    points = count_points(names, "kill")
    first, sends_first = 0, False
    for number in range(count):
        if number % 2 == 0:
            first, sends_first = rng.randint(1, points), bool(rng.getrandbits(1))
        left = max(6, points - first + 8)
        restarted = [Plan("kill", rng.randint(1, left), sends_first=sends_first)]
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
