"""Tests that failed are tried once more, and only a passing one counts."""

import json
from pathlib import Path

import pytest

from once_more import MOST, main

CASES = "import os\ndef test_well():\n    pass\ndef test_broken():\n    assert os.environ.get('MENDED')\n"


def failed(folder: Path, *names: str) -> Path:
    (folder / "test_cases.py").write_text(CASES)
    kept = folder / "lastfailed"
    kept.write_text(json.dumps({f"{folder}/test_cases.py::{name}": True for name in names}))
    return kept


@pytest.mark.slow
def test_what_is_broken_fails_again_and_what_is_not_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(1, failed(tmp_path, "test_broken")) == 1
    assert main(1, failed(tmp_path, "test_well", "test_broken")) == 1
    assert main(1, failed(tmp_path, "test_well")) == 0
    monkeypatch.setenv("MENDED", "1")
    assert main(1, failed(tmp_path, "test_broken")) == 0


@pytest.mark.parametrize("status", [1, 2, 3, 4, 5])
def test_many_failures_and_runs_that_could_not_be_made_stay_failures(status: int, tmp_path: Path) -> None:
    many = failed(tmp_path, *[f"test_{number}" for number in range(MOST + 1)])
    assert main(status, many) == status
    assert main(status, tmp_path / "nothing") == status
    if status != 1:
        assert main(status, failed(tmp_path, "test_well")) == status
