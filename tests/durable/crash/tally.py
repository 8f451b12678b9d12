"""Runs cases and counts them: injected faults by point, and violations."""

import resource
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from crash.checker import format_case, transcripts, violations
from crash.more_invariants import Transcripts
from crash.random_cases import ALONE
from crash.runner import Case, Outcome, Runner
from crash.scripts import SCRIPTS, Script

_SCENARIOS = {
    script.sends[0].scenario: script
    for script in reversed(SCRIPTS.values())
    if len(script.sends) == 1 and script.name != "rounds spent"  # its setting changes the end of its scenario
}
"""The script that shows how each scenario ends on its own."""


_MOST_BAD = 5


class Tally(msgspec.Struct, frozen=True):
    """Result of many cases; printed as one JSON line."""

    cases: int
    injected: dict[int, int]
    """Number of cases by the number of injected faults."""
    at: dict[str, int]
    """Number of faults injected by point name."""
    bad: list[str]
    seconds: float
    cpu: float
    """CPU seconds of this process and its children."""


class Counting:
    """Runs and checks cases of a suite, up to the time `until`. It stops after some failed cases, or with a seeded bug
    when one of the invariants is violated that it `breaks`."""

    def __init__(self, runner: Runner, suite: str, *, until: float, breaks: Sequence[str]) -> None:
        self._runner = runner
        self._suite = suite
        self._until = until
        self._breaks = breaks
        self._plain: Transcripts = {}
        self._names: dict[str, list[str]] = {}
        self._at: Counter[str] = Counter()
        self._injected: Counter[int] = Counter()
        self._bad: list[str] = []
        self._began = time.monotonic(), _cpu()

    @property
    def _over(self) -> bool:
        if self._breaks:
            return any(f"VIOLATED {name}:" in bad for name in self._breaks for bad in self._bad[-1:])
        return time.monotonic() > self._until or len(self._bad) >= _MOST_BAD

    def names(self, script: Script) -> list[str]:
        """Return the point names of a script without faults; that case counts as well."""
        if script.name not in self._names:
            outcome = self._runner.run(Case(script))
            plain = transcripts(outcome)
            self._plain |= plain
            if script in _SCENARIOS.values():
                self._plain |= {(ALONE, scenario): transcript for (_, scenario), transcript in plain.items()}
            self._judge(outcome)
            passed = [entry.text for entry in outcome.entries if entry.what == "passed"]
            self._names[script.name] = passed[0].split("\n") if passed else []
        return self._names[script.name]

    def run(self, cases: Sequence[Case]) -> None:
        """Run cases of one script."""
        self._runner.take_snapshots(cases)
        for case in cases:
            for script in _references(case.script):
                self.names(script)
            if self._over:
                return
            self._judge(self._runner.run(case))

    def _judge(self, outcome: Outcome) -> None:
        self._injected[outcome.injected] += 1
        self._at.update([entry.name for entry in outcome.entries if entry.who == "points"])
        if found := violations(outcome, self._plain):
            again = f"python -m crash {self._suite} --case {shlex.quote(msgspec.json.encode(outcome.case).decode())}"
            self._bad.append(f"{format_case(outcome, found)}\n  REPEAT in tests/durable: {again}")

    def tally(self) -> Tally:
        seconds, cpu = self._began
        return Tally(
            cases=self._injected.total(),
            injected=dict(sorted(self._injected.items())),
            at=dict(self._at.most_common()),
            bad=self._bad,
            seconds=round(time.monotonic() - seconds, 1),
            cpu=round(_cpu() - cpu, 1),
        )


def _references(script: Script) -> Iterable[Script]:
    """Return the scripts that show how the turns of this one end without faults."""
    return [script] if script.like != ALONE else [_SCENARIOS[send.scenario] for send in script.sends]


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
