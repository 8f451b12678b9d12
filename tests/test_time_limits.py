"""Time limits of tests: one that hangs cannot stop the whole run, even if it swallows the exception of its limit."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
HEAD = """
import time
import conftest
import pytest

conftest._GRACE = 0.2
"""
SWALLOWS = """
@pytest.mark.timeout(0.1)
def test_hangs():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass
"""
FAILS_AND_HANGS = """
@pytest.fixture
def stuck():
    yield
    time.sleep(60)

def test_hangs(stuck):
    assert False
"""


@pytest.mark.parametrize("hanging", [SWALLOWS, FAILS_AND_HANGS])
def test_process_of_a_test_that_hangs_ends_and_prints_where_it_was(tmp_path: Path, hanging: str) -> None:
    program = tmp_path / "test_hanging.py"
    program.write_text(HEAD + hanging)
    settings = ["-c", str(TESTS.parent / "pyproject.toml"), "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", *settings, str(program)],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "Timeout (0:00:" in ended.stderr and f'"{program}"' in ended.stderr
