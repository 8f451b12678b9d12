"""Crash tests: kill -9, errors, stops and clock jumps at drawn points of many turns; the twelve invariants hold.

The cases follow from a seed; CRASH_SEED names another one. A failed case prints the command that repeats it.
`make crash` runs many more, in processes of their own.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest
from crash.bugs import BUGS
from crash.suites import SUITES
from crash.tally import Tally

import fork_server
from checks import scaled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Crash: TypeAlias = Callable[..., Tally]
SEED = os.environ.get("CRASH_SEED", "1")
PARTS = 3
"""Parts of the largest suite, which parallel workers run at the same time."""
MOST_UNTIL_A_BUG = 50
"""Cases after which every seeded bug was found."""
SEAMS = {
    *("commit before", "commit after", "sql INSERT", "sql UPDATE", "sql COMMIT", "model before", "model chunk"),
    *("model after", "tool before", "tool in", "tool after", "approval asked", "approval answer before"),
    *("approval answer after", "client ack before", "client ack after", "client tool:result before"),
    *("client message:kept before", "client message:received before", "client message:received after"),
}


@pytest.fixture
def crash(record_property: Callable[[str, object], None]) -> Crash:
    """Run cases of a suite; their number is reported at the end of the test run."""

    def run(suite: str, count: int, *arguments: str) -> Tally:
        options = ("--count", str(count), "--seed", SEED, *arguments)
        done = fork_server.run("-m", "crash", suite, *options, cwd=Path(__file__).parent, timeout=scaled(580))
        assert done.returncode == 0, done.stderr
        tally = msgspec.json.decode(done.stdout, type=Tally)
        record_property("crash_cases", tally.cases)
        return tally

    return run


@pytest.fixture
def holds(crash: Crash) -> Crash:
    """Run cases of a suite in which every invariant must hold: this many of each script, and one without faults."""

    def run(suite: str, count: int, *scripts: str) -> Tally:
        tally = crash(suite, count, *[argument for name in scripts for argument in ("--script", name)])
        assert not tally.bad, f"with CRASH_SEED={SEED}\n\n" + "\n\n".join(tally.bad)
        assert tally.cases == (count + 1) * len(scripts or SUITES[suite].scripts)
        return tally

    return run


@pytest.mark.parametrize("part", range(PARTS))
def test_turn_survives_kills_and_errors(part: int, holds: Crash) -> None:
    tally = holds("faults", 9, *SUITES["faults"].scripts[part::PARTS])
    once, more = tally.injected[1], tally.injected[2] + tally.injected.get(3, 0)
    assert once > 0.5 * tally.cases and more > 0.1 * tally.cases


def test_concurrent_sessions_and_clients_survive_random_faults(crash: Crash) -> None:
    """The random cases that failed once, and others."""
    tally = crash("random", 40)
    assert not tally.bad, "\n\n".join(tally.bad)
    assert tally.cases > 40 and sum(tally.injected.values()) - tally.injected[0] > 20


def test_every_seam_has_fault_points(crash: Crash) -> None:
    tally = crash("seams", 100)
    assert not tally.bad, "\n\n".join(tally.bad)
    assert [seam for seam in SEAMS if not any(name.startswith(seam) for name in tally.at)] == []


def test_snapshot_is_what_kill_9_leaves(holds: Crash) -> None:
    """Byte by byte: the process is stopped, its files are copied, and it is killed."""
    assert holds("copies", 2).injected[1] == 10


def test_turn_that_crashes_every_process_is_given_up(holds: Crash) -> None:
    assert holds("crash-loops", 3).injected[6] == 3


def test_resumed_zombie_process_writes_nothing(holds: Crash) -> None:
    holds("zombies", 4)


def test_clocks_may_jump(holds: Crash) -> None:
    holds("clock-jumps", 3)


def test_invariants_hold_on_postgres(holds: Crash) -> None:
    holds("postgres", 3)


@pytest.mark.parametrize("name", list(BUGS))
def test_checks_detect_a_seeded_bug(name: str, crash: Crash) -> None:
    bug = BUGS[name]
    tally = crash(bug.suite, MOST_UNTIL_A_BUG - 1, "--script", bug.script, "--bug", name)
    assert any(f"VIOLATED {invariant}:" in tally.bad[-1] for invariant in bug.breaks)
    assert tally.cases <= MOST_UNTIL_A_BUG
    assert not any("TypeError" in bad for bad in tally.bad), "the bug does not fit the code that it breaks"
