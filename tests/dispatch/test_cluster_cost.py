"""Cost of a turn on a cluster in commits and WAL, which do not depend on the machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from checks import TIMEOUT

BENCH = Path(__file__).parents[2] / "bench" / "cluster.py"


@pytest.mark.slow
def test_cluster_turn_needs_few_commits_and_little_wal() -> None:
    command = [
        sys.executable,
        str(BENCH),
        "--workers",
        "1",
        "--turns",
        "24",
        "--sessions",
        "4",
        "--rounds",
        "1",
        "--unsafe",
        "--wal",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    *lines, heads, _, row = done.stdout.splitlines()
    found = dict(zip(heads.strip("| ").split(" | "), map(float, row.strip("| ").split(" | ")), strict=True))
    assert found["turns/s"] > 0 and found["p95 s"] > 0
    assert found["commits"] < 50  # includes reads outside of transactions; 12 if turns share commits
    assert found["statements"] < 50  # 87 if each write read its rows first; 18 if many turns share commits
    (records,) = [float(line.split()[1]) for line in lines if line.endswith(" all")]
    assert records < 8 * 1024  # 7.2 KB; the rows of the queue, or of the search index, would each add 1.2
    assert found["WAL KB"] < 10  # 8.6: a few pages are written whole once, which is much for so few turns
