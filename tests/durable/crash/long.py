"""`python -m crash.long`: all suites at length, in two processes; failed cases become regression cases."""

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

from crash.tally import Tally

_HERE = Path(__file__).parent
_TESTS = _HERE.parent.parent
_GATEWAY_KILLS = (str(_TESTS / "gateway" / "kill_cases.py"),)
_PARTS = 10
_KILLS_AT_A_TIME = 250


def main() -> None:
    given = arguments()
    began = time.monotonic()
    with ThreadPoolExecutor(given.processes) as pool:
        tallies = list(pool.map(partial(run, until=began + 60 * given.minutes), jobs(given)))
    cases, bad = sum(tally.cases for tally in tallies), [each for tally in tallies for each in tally.bad]
    cpu = sum(tally.cpu for tally in tallies)
    for each in bad:
        print(each, end="\n\n")
        if each.startswith("CASE seed"):
            with (_HERE / "regressions.jsonl").open("a") as kept:
                kept.write(each.splitlines()[1].strip() + "\n")
    print(f"{cases} cases, {len(bad)} bad, {time.monotonic() - began:.0f} s, {1000 * cpu / cases:.0f} ms CPU per case")
    sys.exit(bool(bad))


def jobs(given: argparse.Namespace) -> Iterator[list[str]]:
    seed = ["--seed", str(given.seed)]
    for part in range(1, _PARTS + 1):
        shard = ["--shard", f"{part}/{_PARTS}", *seed]
        yield ["A", *shard]
        yield ["B", *shard, "--count", str(given.doubles)]
        yield ["C", *shard, "--count", str(given.errors)]
        yield ["D", *shard, "--count", str(given.seeds)]
    yield ["zombies", *seed]
    yield ["special", *seed, "--count", "60"]
    yield ["postgres", *seed, "--count", "80"]
    yield ["regressions"]
    for part in range(given.kills // _KILLS_AT_A_TIME):
        yield ["gateway", "--kills", str(_KILLS_AT_A_TIME), "--seed", str((given.seed + part) * 1000)]


def run(job: list[str], until: float) -> Tally:
    """Return the tally of one process; None if no time is left."""
    left = until - time.monotonic()
    if left <= 0:
        return Tally(0, {}, {}, [], 0, 0)
    command = [sys.executable, *(_GATEWAY_KILLS if job[0] == "gateway" else ("-m", "crash", job[0]))]
    command += [*job[1:], "--seconds", str(left)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_TESTS), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, cwd=_HERE.parent, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        return Tally(0, {}, {}, [f"{' '.join(command)}\n{done.stderr}"], 0, 0)
    tally = msgspec.json.decode(done.stdout, type=Tally)
    print(f"{' '.join(job)}: {tally.cases} cases, {len(tally.bad)} bad, {tally.seconds:.0f} s", flush=True)
    if job[0] == "gateway":
        print(", ".join(f"{name}: {count}" for name, count in tally.at.items()), flush=True)
    return tally


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="crash.long", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="where the drawing of cases begins")
    parser.add_argument("--seeds", type=int, default=5000, help="cases of suite D")
    parser.add_argument("--doubles", type=int, default=250, help="cases of suite B for each script")
    parser.add_argument("--errors", type=int, default=12, help="points of suite C for each script and kind of error")
    parser.add_argument("--kills", type=int, default=1500, help="kills of gateways with reconnecting clients")
    parser.add_argument("--minutes", type=float, default=120.0, help="stop after so long")
    parser.add_argument("--processes", type=int, default=2)
    return parser.parse_args()


if __name__ == "__main__":
    main()
