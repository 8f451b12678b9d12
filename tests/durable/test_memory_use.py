"""Memory use: idle sessions take none."""

import subprocess
import sys
from pathlib import Path

import pytest

from atlas_agents.storage.sqlite.files import WRITER_CACHE

RUNNER = Path(__file__).parent / "memory_runner.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_idle_sessions_take_no_memory(tmp_path: Path) -> None:
    command = [sys.executable, str(RUNNER), str(tmp_path / "atlas.db")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    (early, early_blocks), (later, later_blocks), (last, last_blocks) = (map(int, line.split()) for line in printed)
    assert later_blocks - early_blocks < 800, "a turn in a new session leaves an object behind"
    assert last_blocks - later_blocks < 0.1 * later_blocks, "a turn in an old session leaves its history behind"
    history = f"{early} KiB after 100 turns, {later} after 400, {last} after 500"
    # the page cache of the writer fills up, even after the second phase
    assert max(later, last) < 1.1 * early + WRITER_CACHE, history
    assert last < 1.05 * later, history
