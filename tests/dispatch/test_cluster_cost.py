"""What a turn of a cluster costs, by what does not depend on the machine: nobody makes it dear unseen."""

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench" / "cluster.py"


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_turn_of_a_cluster_costs_few_statements_and_little_of_the_log() -> None:
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
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    heads, row = done.stdout.splitlines()[-2:]
    found = dict(zip(heads.split(" | "), map(float, row.split(" | ")), strict=True))
    assert found["turns/s"] > 0 and found["p95 s"] > 0
    assert found["commits"] < 60  # readings outside of a transaction count as well; 25 where several turns share one
    assert found["WAL KB"] < 50  # a word, a row: that were 40 more
