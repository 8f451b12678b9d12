"""Cases with two sessions, three clients and random faults; all of it follows from one number, the seed."""

import random

from crash.fault_points import Fault, Plan
from crash.runner import Case
from crash.scripts import Script, Send

_PLAYS = (
    *("text", "pure", "unsafe", "keyed", "mixed", "three rounds", "yes", "no", "edited", "both", "fails", "bug"),
    *("flaky", "checked", "untold", "thread", "shape", "bad call", "stopped", "stopped later"),
)
_DEEDS: tuple[Fault, ...] = ("kill",) * 10 + ("busy", "full", "lost", "unclear", "io", "cancel", "timeout", "exception")
_MAX_POINTS = (250, 120, 60)
"""For the first process and for later ones, which have less to do."""
ALONE = "alone"
"""Script name of the transcripts of single scenarios."""


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    clients = tuple(tuple(_send(rng, f"{client}.{n}") for n in range(rng.randint(1, 3))) for client in "abc")
    steered = any(send.steers for sends in clients for send in sends)
    script = Script(
        f"seed {seed}",
        clients,
        one_by_one=rng.random() < 0.2,
        memory=rng.randint(2, 6) if rng.random() < 0.3 and not steered else 0,  # the model must see its scenario
        asks="function" if rng.random() < 0.2 else "wait",
        fails_over=rng.random() < 0.2,
        like=ALONE,
    )
    plans = tuple(_plan(rng, _MAX_POINTS[process]) for process in range(rng.randint(1, 3)))
    if rng.random() < 0.2:  # at any moment, even inside SQLite
        return Case(script, (Plan(), *plans[1:]), after=rng.uniform(0.02, 0.25))
    return Case(script, plans)


def _send(rng: random.Random, key: str) -> Send:
    scenario = rng.choice(_PLAYS)
    return Send(scenario, key, rng.choice("st"), rng.random() < 0.5, scenario == "shape", rng.random() < 0.15)


def _plan(rng: random.Random, points: int) -> Plan:
    fault = rng.choice(_DEEDS)
    at = rng.randint(1, points) if fault in ("kill", "cancel") else rng.randint(1, points // 6)
    forever = fault not in ("kill", "cancel") and rng.random() < 0.2
    return Plan(fault, at, forever, sends_first=rng.random() < 0.5)
