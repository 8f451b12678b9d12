"""`python -m crash SUITE`: runs cases of a suite and prints the result as one JSON line."""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path

import msgspec

from crash.bugs import BUGS
from crash.faulty_store import install_faults
from crash.random_cases import random_case
from crash.runner import Case, Runner
from crash.scripts import POISON, SCRIPTS
from crash.stores import Database
from crash.suites import SUITES
from crash.tally import Counting

_REGRESSIONS = Path(__file__).parent / "regressions.jsonl"
"""Random cases that failed once."""


def main() -> None:
    given = arguments()
    breaks: tuple[str, ...] = ()
    if given.bug:
        BUGS[given.bug].patch()
        breaks = BUGS[given.bug].breaks
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="atlas-crash-", dir=memory if memory.is_dir() else None))
    install_faults()
    try:
        with _postgres() if given.suite == "postgres" else nullcontext() as database:
            runner = Runner(folder, database, separate=given.separate)
            counting = Counting(runner, given.suite, until=time.monotonic() + given.seconds, breaks=breaks)
            for cases in _cases(given, counting):
                counting.run(cases)
            runner.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tally = counting.tally()
    print("\n\n".join(tally.bad), file=sys.stderr)
    print(msgspec.json.encode(tally).decode())


def _cases(given: argparse.Namespace, counting: Counting) -> Iterator[Sequence[Case]]:
    """Yield the cases of each script."""
    if given.case:
        yield [msgspec.json.decode(given.case, type=Case)]
    elif given.suite == "random":
        for line in _REGRESSIONS.read_text().splitlines():
            yield [msgspec.json.decode(line, type=Case)]
        for seed in range(given.seed, given.seed + given.count):
            yield [random_case(seed)]
    else:
        suite, scripts = SUITES[given.suite], {**SCRIPTS, POISON.name: POISON}
        for name in given.script or suite.scripts:
            cases = suite.draw(scripts[name], counting.names(scripts[name]), given.seed)
            yield list(islice(cases, given.count))


def _postgres() -> AbstractContextManager[Callable[[], Database]]:
    from crash.on_postgres import postgres

    return postgres()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="crash", description=__doc__)
    parser.add_argument("suite", choices=[*SUITES, "random"])
    parser.add_argument("--count", type=int, default=10, help="cases of each script, or random ones")
    parser.add_argument("--seed", type=int, default=1, help="from which the cases follow")
    parser.add_argument("--script", action="append", default=[], help="just this script")
    parser.add_argument("--case", default="", help="just this case, as JSON")
    parser.add_argument("--bug", default="", help="with this promise broken, until that is found")
    parser.add_argument("--separate", action="store_true", help="processes of their own, and no snapshots")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after so long")
    return parser.parse_args()


if __name__ == "__main__":
    main()
