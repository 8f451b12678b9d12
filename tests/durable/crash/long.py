"""`python -m crash.long`: more than 20,000 cases, in processes of their own; two suites run at a time.

Add a case that failed to `regressions.jsonl` once its cause is fixed.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from crash.suites import SUITES
from crash.tally import Tally

_DURABLE = Path(__file__).parent.parent
_GATEWAY_KILLS = str(_DURABLE.parent / "gateway" / "kill_cases.py")
_EVERY_POINT = "100000"
_RANDOM, _AT_A_TIME = 7000, 500
_KILLS, _KILLS_AT_A_TIME = 1500, 250


def main() -> None:
    given, began = arguments(), time.monotonic()
    with ThreadPoolExecutor(given.processes) as pool:
        tallies = list(pool.map(partial(run, until=began + 60 * given.minutes), jobs(given.seed)))
    cases, bad = sum(tally.cases for tally in tallies), [each for tally in tallies for each in tally.bad]
    print("\n\n".join(bad))
    cpu = 1000 * sum(tally.cpu for tally in tallies) / cases
    print(f"{cases} cases, {len(bad)} bad, {time.monotonic() - began:.0f} s, {cpu:.0f} ms CPU per case")
    sys.exit(bool(bad))


def jobs(seed: int) -> Iterator[list[str]]:
    """Yield the arguments of each process."""
    for first in range(0, _RANDOM, _AT_A_TIME):
        yield ["-m", "crash", "random", "--count", str(_AT_A_TIME), "--seed", str(seed * _RANDOM + first)]
    for suite, count in {
        "faults": _EVERY_POINT,
        "zombies": "60",
        "copies": "20",
        "clock-jumps": "60",
        "postgres": "80",
    }.items():
        for script in SUITES[suite].scripts:
            yield ["-m", "crash", suite, "--script", script, "--count", count, "--seed", str(seed)]
    for first in range(0, _KILLS, _KILLS_AT_A_TIME):
        yield [_GATEWAY_KILLS, "--kills", str(_KILLS_AT_A_TIME), "--seed", str(seed * _KILLS + first)]


def run(job: list[str], until: float) -> Tally:
    """Return the tally of one process; an empty one if no time is left."""
    left = until - time.monotonic()
    if left <= 0:
        return Tally(0, {}, {}, [], 0, 0)
    command = [sys.executable, *job, "--seconds", str(left), *(["--separate"] if "crash" in job else [])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(_DURABLE.parent), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(command, cwd=_DURABLE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return Tally(0, {}, {}, [f"{' '.join(command)}\n{done.stderr}"], 0, 0)
    tally = msgspec.json.decode(done.stdout, type=Tally)
    print(f"{' '.join(job)}: {tally.cases} cases, {len(tally.bad)} bad, {tally.seconds:.0f} s", flush=True)
    return tally


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="crash.long", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=120.0, help="stop after so long")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
