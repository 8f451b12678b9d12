"""kill -9, errors, stops and wrong clocks at every point of a turn: the twelve invariants hold, and are seen to break.

Each test starts a process that forks one for every life of every case; `make crash` runs many more of them.
"""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from crash.bugs import BUGS
from crash.scripts import SCRIPTS
from crash.tally import Tally

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

A, B, C, D = 8, 5, 6, 3
"""How many parts each lane is in: none takes long, so that two workers end at about the same time."""
LEAST = {"A": 300, "B": 110, "C": 140, "D": 66, "zombies": 180, "special": 100, "postgres": 70}
"""Fewer cases than these in a part, and something is wrong with the harness itself."""
EVERYWHERE = {"commit before", "commit after", "sql BEGIN", "sql INSERT", "sql UPDATE", "sql COMMIT", "sql after"} | {
    *("model before", "model chunk", "model after", "tool before", "tool in", "tool after", "approval asked"),
    *("approval answer", "client ack", "client message:kept", "client message:received", "client tool:result"),
}


def crash(lane: str, *arguments: str) -> Tally:
    command = [sys.executable, "-m", "crash", lane, *arguments]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    tally = msgspec.json.decode(done.stdout, type=Tally)
    print(f"{lane} {' '.join(arguments)}: {tally.cases} cases in {tally.seconds} s, {tally.cpu} s of CPU")
    return tally


def holds(lane: str, *arguments: str) -> Tally:
    tally = crash(lane, *arguments)
    assert not tally.bad, "\n\n".join(tally.bad)
    assert tally.cases >= LEAST[lane], "so few cases prove little"
    return tally


def of(parts: int) -> list[str]:
    return [f"{part}/{parts}" for part in range(1, parts + 1)]


@pytest.mark.parametrize("shard", of(A))
def test_a_turn_survives_being_killed_at_every_point(shard: str) -> None:
    tally = holds("A", "--shard", shard)
    assert tally.struck[1] > 0.95 * tally.cases


@pytest.mark.parametrize("shard", of(B))
def test_a_turn_survives_being_killed_again_while_it_recovers(shard: str) -> None:
    tally = holds("B", "--shard", shard, "--count", "20")
    assert tally.struck[2] > 0.5 * tally.cases
    assert tally.struck[3] > 0.05 * tally.cases


@pytest.mark.parametrize("shard", of(C))
def test_a_turn_survives_errors_once_and_for_ever(shard: str) -> None:
    holds("C", "--shard", shard, "--count", "2")


@pytest.mark.parametrize("shard", of(D))
def test_two_sessions_and_three_clients_survive_whatever_happens(shard: str) -> None:
    holds("D", "--shard", shard, "--count", "201")


def test_cases_that_failed_once_hold() -> None:
    assert crash("kept").bad == []


def test_a_process_that_was_stopped_comes_back_and_does_no_harm() -> None:
    holds("zombies")


def test_a_poisoned_turn_is_given_up_and_clocks_may_jump() -> None:
    holds("special", "--count", "8")


def test_the_same_holds_on_postgres() -> None:
    holds("postgres", "--count", "10")


@pytest.mark.parametrize("name", list(BUGS))
def test_the_checks_notice_a_broken_promise(name: str) -> None:
    bug = BUGS[name]
    (found,) = crash(bug.lane, "--script", bug.script, "--bug", name, "--most", "1", "--count", "6").bad
    assert f"VIOLATED {bug.breaks}:" in found


def test_there_are_points_at_all_seams_and_enough_cases() -> None:
    tally = crash("A", "--script", "approved", "--script", "four calls at once")
    assert [place for place in EVERYWHERE if not any(name.startswith(place) for name in tally.at)] == []
    assert len(SCRIPTS) >= 12
    parts = {"A": A, "B": B, "C": C, "D": D}
    assert sum(least * parts.get(lane, 1) for lane, least in LEAST.items()) >= 2500
