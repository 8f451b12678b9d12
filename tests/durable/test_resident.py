"""Sessions that nobody uses cost no memory."""

import subprocess
import sys
from pathlib import Path

import pytest

RUNNER = Path(__file__).parent / "memory_runner.py"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ten_thousand_turns_over_a_thousand_sessions_take_no_more_memory_than_a_thousand(tmp_path: Path) -> None:
    command = [sys.executable, str(RUNNER), str(tmp_path / "atlas.db"), "1000", "1000", "10000"]
    early, late = map(int, subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert late <= early * 1.1, f"{early} KiB after 1,000 turns, {late} KiB after 10,000"
