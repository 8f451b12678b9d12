"""`python -m crash LANE`: runs the cases of a lane, or of a part of it, and prints what came of them as one JSON line."""

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from crash import lanes
from crash.runner import Runner
from crash.scripts import SCRIPTS
from crash.seams import set_points
from crash.tally import Counting


def main() -> None:
    given = arguments()
    folder = Path(tempfile.mkdtemp(prefix="atlas-crash-", dir=shared_memory()))
    try:
        set_points()
        counting = Counting(Runner(folder), until=time.monotonic() + given.seconds)
        run(given, counting)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tally = counting.tally()
    print("\n\n".join(tally.bad), file=sys.stderr)
    print(msgspec.json.encode(tally).decode())


def run(given: argparse.Namespace, counting: Counting) -> None:
    rng = random.Random(given.seed)
    scripts = [SCRIPTS[name] for name in given.script] or list(SCRIPTS.values())
    part, parts = map(int, given.shard.split("/"))
    for script in scripts[part - 1 :: parts]:
        names = counting.names(script)
        if given.lane == "A":
            counting.run(lanes.singles(script, names))
        elif given.lane == "B":
            counting.run(lanes.repeated(script, names, given.count, rng))
        elif given.lane == "C":
            counting.run(lanes.errors(script, names, given.count, rng))
            counting.run(lanes.errors_while_recovering(script, names, given.count, rng))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="crash", description=__doc__)
    parser.add_argument("lane", choices=["A", "B", "C"])
    parser.add_argument("--shard", default="1/1", help="which part of how many")
    parser.add_argument("--count", type=int, default=10, help="cases for each script, or for each kind of error")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--script", action="append", default=[])
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after so long")
    return parser.parse_args()


def shared_memory() -> str | None:
    """Memory that looks like a disk, where there is some."""
    place = Path("/dev/shm")
    return str(place) if place.is_dir() else None


if __name__ == "__main__":
    main()
