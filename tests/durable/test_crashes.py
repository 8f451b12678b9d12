"""kill -9 at every point of a turn: nothing acknowledged is lost, nothing happens twice, no history is left broken."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

RUNNER = Path(__file__).parent / "crash_runner.py"
ENDS = {"text": "Just words.", "one call": "Done.", "pure and keyed": "Done.", "three rounds": "Done."}
BUGS = [
    "no intent is written",
    "a run that goes on names its own messages anew",
    "an intent without outcome is tried again",
    "the turn ends before its end is written",
]


def cases(folder: Path, doubles: int, bug: str = "") -> tuple[list[dict[str, Any]], int]:
    """(what came of each case, how the runner ended)"""
    command = [sys.executable, str(RUNNER), str(folder), str(doubles), bug]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode


def violations(case: dict[str, Any]) -> list[str]:
    """What does not hold, judged from the store, the audit log and the world alone."""
    found: list[str] = []
    happened: Counter[str] = Counter(case["world"])
    if any(count > 1 for effect, count in happened.items() if effect.startswith("unsafe")):
        found.append("an unsafe effect happened twice")
    if len(happened) < case["statuses"].count("ok"):
        found.append("a call is called ok and had no effect")
    if case["calls"] != case["answered"]:
        found.append("a call has no result, or a result no call")
    if sorted(case["audited"]) != sorted(case["calls"]):
        found.append("the audit log has not one row for each call")
    if case["chain"] is not None:
        found.append(case["chain"])
    if case["runs"] != ["done"] or case["open"]:
        found.append(f"the run has not ended: {case['runs']}")
    if case["roles"].count("user") != 1 or case["last"] != ENDS[case["script"]]:
        found.append(f"the conversation is not whole: {case['roles']}")
    return found


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_turn_survives_being_killed_at_every_point_once_and_again_while_it_recovers(tmp_path: Path) -> None:
    done, code = cases(tmp_path, 100)
    assert code == 0
    assert len(done) > 250
    assert sum(bool(case["killed"]) for case in done) > 250
    assert [(case["script"], case["killed"], wrong) for case in done if (wrong := violations(case))] == []
    assert any("unknown" in case["statuses"] for case in done)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_the_checks_notice_a_broken_promise(bug: str, tmp_path: Path) -> None:
    done, code = cases(tmp_path, 0, bug)
    assert code == 0
    assert any(violations(case) for case in done)
