"""Crash tests: kill -9, errors, stops and clock jumps at every point of a turn; the twelve invariants hold.

Each test starts a process that forks the processes of its cases. Most cases that begin with a kill recover from a
snapshot of the files at its point instead, and processes that are not killed are one; `make crash` runs many more
cases, each with processes of its own.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import msgspec
import psycopg
import pytest
from crash.bugs import BUGS
from crash.on_postgres import PostgresDatabase, migrate
from crash.scripts import JOBS, SCRIPTS
from crash.stores import SqliteDatabase, make
from crash.tally import Tally

import fork_server
from stores.postgres_server import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Crash: TypeAlias = Callable[..., Tally]
A, B, C, D = 6, 5, 6, 3
"""Number of shards per suite, short enough to balance parallel test workers."""
MIN_CASES = {"A": 148, "B": 75, "C": 110, "D": 68, "zombies": 90, "special": 110, "postgres": 70}
"""Minimum number of cases per shard; fewer mean that the harness is broken."""
JOB_SUITES = [("A", 1, 45), ("B", 20, 60), ("C", 1, 60), ("zombies", 1, 38), ("postgres", 6, 8)]
"""Suites in which agents delegate: the cases of each script, and the minimum number of cases."""
EVERYWHERE = {
    *("commit before", "commit after", "sql INSERT", "sql UPDATE", "sql COMMIT", "model before", "model chunk"),
    *("model after", "tool before", "tool in", "tool after", "approval asked", "approval answer before"),
    *("approval answer after", "client ack before", "client ack after", "client tool:result before"),
    *("client message:kept before", "client message:received before", "client message:received after"),
}


@pytest.fixture
def crash(record_property: Callable[[str, object], None]) -> Crash:
    """Run a suite; the number of its cases is reported at the end of the test run."""

    def run(suite: str, *arguments: str) -> Tally:
        done = fork_server.run("-m", "crash", suite, *arguments, cwd=Path(__file__).parent, timeout=580)
        assert done.returncode == 0, done.stderr
        tally = msgspec.json.decode(done.stdout, type=Tally)
        record_property("crash_cases", tally.cases)
        return tally

    return run


@pytest.fixture
def holds(crash: Crash) -> Crash:
    """Run a suite in which every invariant must hold."""

    def run(suite: str, *arguments: str) -> Tally:
        tally = crash(suite, *arguments)
        assert not tally.bad, "\n\n".join(tally.bad)
        assert tally.cases >= MIN_CASES[suite], "so few cases prove little"
        return tally

    return run


def of(parts: int) -> list[str]:
    return [f"{part}/{parts}" for part in range(1, parts + 1)]


@pytest.mark.parametrize("shard", of(A))
def test_turn_survives_kill_9_at_every_point(shard: str, holds: Crash) -> None:
    tally = holds("A", "--shard", shard, "--distinct", "--snapshots")
    assert tally.injected[1] > 0.85 * tally.cases  # a steering message may enter the turn at another point than before


@pytest.mark.parametrize("shard", of(B))
def test_turn_survives_kill_9_during_recovery(shard: str, holds: Crash) -> None:
    tally = holds("B", "--shard", shard, "--count", "10", "--snapshots")
    assert tally.injected[2] > 0.5 * tally.cases
    assert tally.injected[3] > 0.05 * tally.cases


@pytest.mark.parametrize("shard", of(C))
def test_turn_survives_transient_and_permanent_errors(shard: str, holds: Crash) -> None:
    holds("C", "--shard", shard, "--count", "1", "--snapshots")


@pytest.mark.parametrize("shard", of(D))
def test_concurrent_sessions_and_clients_survive_random_faults(shard: str, holds: Crash) -> None:
    holds("D", "--shard", shard, "--count", "120", "--snapshots")


@pytest.mark.parametrize(("suite", "count", "least"), JOB_SUITES)
def test_delegated_jobs_run_and_are_reported_once(suite: str, count: int, least: int, crash: Crash) -> None:
    every = ("handed on",) if suite in ("A", "zombies", "postgres") else tuple(JOBS)
    named = [argument for name in every for argument in ("--script", name)]
    tally = crash(suite, "--count", str(count), *named, "--distinct", "--snapshots")
    assert not tally.bad, "\n\n".join(tally.bad)
    assert tally.cases >= least


def test_regression_cases_hold(crash: Crash) -> None:
    assert crash("regressions", "--snapshots").bad == []


def test_snapshot_is_what_kill_9_leaves(crash: Crash) -> None:
    """Byte by byte: the process is stopped, its files are copied, and it is killed."""
    tally = crash("snapshots", "--distinct", "--count", "3", "--snapshots")
    assert not tally.bad, "\n\n".join(tally.bad)
    assert tally.injected[1] >= 34


def test_change_after_the_last_recovery_is_noticed(tmp_path: Path) -> None:
    make(tmp_path / "atlas.db")
    database = SqliteDatabase(tmp_path)
    with database.watch() as changed, closing(sqlite3.connect(tmp_path / "atlas.db", isolation_level=None)) as other:
        assert not changed()
        other.execute("CREATE TABLE unrelated (id)")
        assert not changed()
        other.execute("INSERT INTO counters (tenant, agent_id, day, used) VALUES ('t', 'a', 'd', 1)")
        assert changed()


def test_change_after_the_last_recovery_is_noticed_on_postgres() -> None:
    with PostgresServer() as server:
        url = server.made("watched")
        asyncio.run(migrate(url))
        with PostgresDatabase(url).watch() as changed, psycopg.connect(url, autocommit=True) as other:
            assert not changed()
            other.execute("CREATE TABLE unrelated (id int)")
            assert not changed()
            other.execute("INSERT INTO atlas.counters (tenant, agent_id, day, used) VALUES ('t', 'a', 'd', 1)")
            assert changed()


def test_resumed_zombie_process_writes_nothing(holds: Crash) -> None:
    holds("zombies", "--distinct", "--snapshots")


def test_crash_looping_turn_is_failed_and_clocks_may_jump(holds: Crash) -> None:
    holds("special", "--count", "8", "--snapshots")


def test_invariants_hold_on_postgres(holds: Crash) -> None:
    holds("postgres", "--count", "8", "--snapshots")


@pytest.mark.parametrize("name", list(BUGS))
def test_checks_detect_a_seeded_bug(name: str, crash: Crash) -> None:
    bug = BUGS[name]
    limits = ("--distinct", "--most", "1", "--count", "6", "--snapshots")
    (found,) = crash(bug.suite, "--script", bug.script, "--bug", name, *limits).bad
    assert any(f"VIOLATED {invariant}:" in found for invariant in bug.breaks)


def test_every_seam_has_fault_points(crash: Crash) -> None:
    tally = crash("A", "--script", "approved", "--snapshots")
    assert not tally.bad, "\n\n".join(tally.bad)
    assert [point for point in EVERYWHERE if not any(name.startswith(point) for name in tally.at)] == []


def test_suite_has_enough_cases() -> None:
    parts = {"A": A, "B": B, "C": C, "D": D}
    delegated = sum(least for _, _, least in JOB_SUITES)
    assert delegated + sum(least * parts.get(suite, 1) for suite, least in MIN_CASES.items()) >= 2500
    assert len(SCRIPTS) >= 12
