"""Counts a hardware or kernel event during the timed part of a run only, with the Linux `perf` command.

`perf stat` starts with counting off and is switched over two named pipes: `ctl` takes orders, `ack` confirms them.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

FOLDER = "BENCH_PERF"  # environment variable: where the pipes are


def command(event: str, folder: Path) -> list[str]:
    """The words to put before a worker's command line; its environment must name `folder`."""
    for pipe in ("ctl", "ack"):
        os.mkfifo(folder / pipe)
    control = f"fifo:{folder}/ctl,{folder}/ack"
    return ["perf", "stat", "-x,", "-o", f"{folder}/count", "-e", event, "-D", "-1", "--control", control]


def count(folder: Path) -> float | None:
    """What `perf` counted, or None where this machine cannot count the event."""
    for line in (folder / "count").read_text().splitlines():
        try:
            return float(line.split(",")[0])
        except ValueError:
            continue  # comments, and "<not supported>"
    return None


@contextmanager
def counting() -> Generator[None]:
    """Count while the block runs; does nothing when `perf` was not asked for."""
    folder = os.environ.get(FOLDER)
    if folder:
        _order(Path(folder), "enable")
    yield
    if folder:
        _order(Path(folder), "disable")


def _order(folder: Path, word: str) -> None:
    with (folder / "ctl").open("w") as orders, (folder / "ack").open() as answers:
        orders.write(word + "\n")
        orders.flush()
        answers.read(len("ack\n"))
