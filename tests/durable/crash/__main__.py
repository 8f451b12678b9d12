"""`python -m crash SUITE`: runs the cases of a suite, or some of them, and prints the result as one JSON line."""

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import msgspec

from crash import special, suites
from crash.bugs import BUGS
from crash.faulty_store import install_faults
from crash.random_cases import random_case
from crash.runner import Case, Runner
from crash.scripts import JOBS, SCRIPTS, Script
from crash.stores import Database
from crash.tally import Counting
from crash.zombie import zombies

REGRESSIONS = Path(__file__).parent / "regressions.jsonl"
ON_POSTGRES = (
    *("text only", "four calls at once", "approved", "three in a queue", "the day is spent", "summarised"),
    "steered",
)
STOPPED = ("one unsafe call", "one keyed call", "one pure call", "approved by a function", "calls one by one")


class Suite:
    """The requested suite and its tally."""

    def __init__(self, given: argparse.Namespace, counting: Counting) -> None:
        self._answered = given
        self._counting = counting
        self._rng = random.Random(given.seed)

    def singles(self) -> None:
        for script in self._scripts():
            names = self._counting.names(script)
            self._run(suites.singles(script, names, distinct=self._answered.distinct))

    def repeated(self) -> None:
        for script in self._scripts():
            names = self._counting.names(script)
            self._run(suites.repeated(script, names, self._answered.count, self._rng))

    def errors(self) -> None:
        for script in self._scripts():
            names = self._counting.names(script)
            self._counting.run(suites.errors(script, names, self._answered.count, self._rng))
            self._run(suites.errors_while_recovering(script, names, self._answered.count, self._rng))

    def regressions(self) -> None:
        """Random cases that failed once."""
        self._alone()
        self._counting.run(msgspec.json.decode(line, type=Case) for line in REGRESSIONS.read_bytes().splitlines())

    def random(self) -> None:
        self._alone()
        part, parts = self._part()
        first = self._answered.seed
        for seed in self._answered.only or range(first + part - 1, first + self._answered.count, parts):
            self._counting.run([random_case(seed)])

    def snapshots(self) -> None:
        """A snapshot is what a kill at the same point leaves."""
        for script in self._scripts(STOPPED):
            cases = list(suites.singles(script, self._counting.names(script), distinct=self._answered.distinct))
            for case in cases[:: self._answered.count]:
                self._counting.judge(*self._counting.runner.run_copied_and_killed(case))

    def zombies(self) -> None:
        for script in self._scripts(STOPPED):
            names = self._counting.names(script)
            for outcome in zombies(self._counting.runner, script, names, distinct=self._answered.distinct):
                self._counting.judge(outcome)
                if self._counting.over:
                    return

    def special(self) -> None:
        for case in special.crash_loops():
            outcome = self._counting.runner.run(case)
            self._counting.judge(outcome, special.not_given_up(outcome))
        for name in special.JUMPING:
            names = self._counting.names(SCRIPTS[name])
            self._run(special.clock_jumps(SCRIPTS[name], names, self._answered.count, self._rng))

    def on_postgres(self) -> None:
        """A sample of suites A and B."""
        for script in self._scripts(ON_POSTGRES):
            names, count = self._counting.names(script), self._answered.count
            cases = list(suites.singles(script, names))
            self._counting.run(self._rng.sample(cases, min(count, len(cases))))
            self._counting.run(suites.repeated(script, names, count // 2, self._rng))

    def _run(self, cases: Iterable[Case]) -> None:
        """Run cases of one script that begin with a kill."""
        cases = list(cases)
        self._counting.runner.take_snapshots(cases)
        self._counting.run(cases)

    def _alone(self) -> None:
        """Record how each scenario ends on its own, as a reference for combined cases."""
        for script in SCRIPTS.values():
            if len(script.sends) == 1:
                self._counting.names(script)

    def _scripts(self, names: tuple[str, ...] = ()) -> list[Script]:
        wanted = self._answered.script or names or tuple(SCRIPTS)
        part, parts = self._part()
        return [(SCRIPTS | JOBS)[name] for name in wanted][part - 1 :: parts]

    def _part(self) -> tuple[int, int]:
        part, parts = map(int, self._answered.shard.split("/"))
        return part, parts


SUITES: dict[str, Callable[[Suite], None]] = {
    "A": Suite.singles,
    "B": Suite.repeated,
    "C": Suite.errors,
    "D": Suite.random,
    "snapshots": Suite.snapshots,
    "regressions": Suite.regressions,
    "zombies": Suite.zombies,
    "special": Suite.special,
    "postgres": Suite.on_postgres,
}


def main() -> None:
    given = arguments()
    if given.bug:
        BUGS[given.bug].patch()
    folder = Path(tempfile.mkdtemp(prefix="atlas-crash-", dir=shared_memory()))
    install_faults()
    try:
        with _server() if given.suite == "postgres" else nullcontext() as database:
            runner = Runner(folder, database, snapshots=given.snapshots)
            counting = Counting(runner, until=time.monotonic() + given.seconds, most=given.most)
            SUITES[given.suite](Suite(given, counting))
            runner.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tally = counting.tally()
    print("\n\n".join(tally.bad), file=sys.stderr)
    print(msgspec.json.encode(tally).decode())


def _server() -> AbstractContextManager[Callable[[], Database]]:
    from crash.on_postgres import postgres

    return postgres()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="crash", description=__doc__)
    parser.add_argument("suite", choices=list(SUITES))
    parser.add_argument("--shard", default="1/1", help="which part of how many")
    parser.add_argument("--count", type=int, default=10, help="cases for each script, each kind of error, or seeds")
    parser.add_argument("--seed", type=int, default=1, help="the first one, where cases are drawn")
    parser.add_argument("--only", type=int, action="append", default=[], help="just this seed of suite D")
    parser.add_argument("--script", action="append", default=[], help="just this script")
    parser.add_argument(
        "--distinct", action="store_true", help="A, zombies: one of the points that lead to the same recovery"
    )
    parser.add_argument(
        "--snapshots",
        action="store_true",
        help="most cases: recover from copies of the files instead of killing, in a process that they share",
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after so long")
    parser.add_argument("--most", type=int, default=5, help="stop after so many bad cases")
    parser.add_argument("--bug", default="", help="with this promise broken")
    return parser.parse_args()


def shared_memory() -> str | None:
    """Return the shared-memory file system, if there is one."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() else None


if __name__ == "__main__":
    main()
