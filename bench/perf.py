"""Count a hardware or kernel event during the timed part of a run with the Linux `perf` command.

`perf stat` starts disabled and is controlled through two named pipes: `ctl` receives commands, `ack` confirms them.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

FOLDER = "BENCH_PERF"  # environment variable with the folder of the pipes


def command(event: str, folder: Path) -> list[str]:
    """Return the prefix for a worker's command line; its environment must name `folder`."""
    for pipe in ("ctl", "ack"):
        os.mkfifo(folder / pipe)
    control = f"fifo:{folder}/ctl,{folder}/ack"
    return ["perf", "stat", "-x,", "-o", f"{folder}/count", "-e", event, "-D", "-1", "--control", control]


def count(folder: Path) -> float | None:
    """Return the count, or None if this machine cannot count the event."""
    for line in (folder / "count").read_text().splitlines():
        try:
            return float(line.split(",")[0])
        except ValueError:
            continue  # comments, and "<not supported>"
    return None


@contextmanager
def counting() -> Generator[None]:
    """Count while the block runs, if `perf` is enabled."""
    folder = os.environ.get(FOLDER)
    if folder:
        _send_command(Path(folder), "enable")
    yield
    if folder:
        _send_command(Path(folder), "disable")


def _send_command(folder: Path, name: str) -> None:
    with (folder / "ctl").open("w") as commands, (folder / "ack").open() as acks:
        commands.write(name + "\n")
        commands.flush()
        acks.read(len("ack\n"))
