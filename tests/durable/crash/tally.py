"""Runs cases and counts them: injected faults by point, and violations."""

import resource
import time
from collections import Counter
from collections.abc import Iterable

import msgspec

from crash.checker import format_case, transcripts, violations
from crash.more_checks import Transcripts
from crash.random_cases import ALONE
from crash.runner import Case, Outcome, Runner
from crash.scripts import Script

_LIMITED = ("rounds spent",)
"""Scripts whose settings change the end of a scenario."""


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
    """Runs and checks cases. It stops at the time `until`, or after `most` failed cases."""

    def __init__(self, runner: Runner, *, until: float = float("inf"), most: int = 5) -> None:
        self.bad: list[str] = []
        self.runner = runner
        self._until = until
        self._most = most
        self._plain: Transcripts = {}
        self._names: dict[str, list[str]] = {}
        self._at: Counter[str] = Counter()
        self._injected: Counter[int] = Counter()
        self._began = time.monotonic(), _cpu()

    @property
    def over(self) -> bool:
        return time.monotonic() > self._until or len(self.bad) >= self._most

    def names(self, script: Script) -> list[str]:
        """Return the point names of a script without faults; that case counts as well."""
        if script.name not in self._names:
            outcome = self.runner.run(Case(script))
            found = transcripts(outcome)
            self._plain |= found
            if len(script.sends) == 1 and script.name not in _LIMITED:
                self._plain |= {(ALONE, scenario): transcript for (_, scenario), transcript in found.items()}
            self.judge(outcome, _unexpected(script, found))
            passed = [entry.text for entry in outcome.entries if entry.what == "passed"]
            self._names[script.name] = passed[0].split("\n") if passed else []
        return self._names[script.name]

    def run(self, cases: Iterable[Case]) -> None:
        for case in cases:
            if self.over:
                return
            self.judge(self.runner.run(case))

    def judge(self, outcome: Outcome, also: Iterable[str] = ()) -> None:
        self._injected[outcome.injected] += 1
        self._at.update([entry.name for entry in outcome.entries if entry.who == "points"])
        if found := [*violations(outcome, self._plain), *also]:
            self.bad.append(format_case(outcome, found))

    def tally(self) -> Tally:
        seconds, cpu = self._began
        return Tally(
            cases=self._injected.total(),
            injected=dict(sorted(self._injected.items())),
            at=dict(self._at.most_common()),
            bad=self.bad,
            seconds=round(time.monotonic() - seconds, 1),
            cpu=round(_cpu() - cpu, 1),
        )


def _unexpected(script: Script, found: Transcripts) -> list[str]:
    """Return an error if the answers without faults differ from those of the script."""
    answers = [transcript[-1][1] for transcript in found.values()]
    as_expected = len(answers) == len(script.ends) and all(
        text == end for text, end in zip(answers, script.ends, strict=True) if end
    )
    return [] if as_expected or not script.ends else [f"the answers are {answers}, not {script.ends}"]


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
