"""The audit log of a home folder is signed: `atlas audit verify` names truncation and rewriting."""

import contextlib
import re
import sqlite3
from pathlib import Path

import pytest
from atlas_command import Home

from atlas_agents.storage.hash_chain import audit_row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def _execute(home: Home, statement: str, *values: object) -> list[tuple[int, bytes]]:
    with contextlib.closing(sqlite3.connect(home.path / "atlas.db", isolation_level=None)) as database:
        return database.execute(statement, values).fetchall()


def _add_rows(home: Home, count: int) -> None:
    """Continue the chain, signed as the gateway does it."""
    key = (home.path / "audit.key").read_bytes().strip()
    ((seq, hash),) = _execute(home, "SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1")
    rows = list[tuple[int, bytes, str, str]]()
    for number in range(seq + 1, seq + count + 1):
        row = audit_row(number, str(hash), b"{}", key)
        hash = row.hash
        rows.append((row.seq, row.entry, row.previous, row.hash))
    with contextlib.closing(sqlite3.connect(home.path / "atlas.db")) as database, database:
        database.executemany(
            "INSERT INTO audit (tenant, seq, entry, previous, hash) VALUES ('default', ?, ?, ?, ?)", rows
        )


def _verify(home: Home) -> tuple[int, str]:
    done = home.run("audit", "verify")
    return done.returncode, done.stdout.strip()


def test_truncated_or_rewritten_log_is_named(home: Home) -> None:
    for _ in range(3):
        assert home.run("ask", "What time is it?").returncode == 0
    intact = home.run("audit", "verify")
    assert (intact.returncode, intact.stdout) == (0, "The chain is intact: 3 entries.\n")
    assert "Signed from entry 1 on." in intact.stderr
    key = home.path / "audit.key"
    assert key.stat().st_mode & 0o777 == (home.path / "atlas.db-heads").stat().st_mode & 0o777 == 0o600
    assert key.read_bytes().strip() not in (home.path / "atlas.db").read_bytes()

    (last,) = _execute(home, "SELECT seq, entry FROM audit WHERE seq = 3")
    _execute(home, "DELETE FROM audit WHERE seq = 3")
    assert _verify(home) == (1, "The chain is broken: row 3 is missing: the log was truncated.")
    assert home.run("ask", "What time is it?").returncode == 0  # another row 3
    assert _verify(home) == (1, "The chain is broken: row 3 is not the row of the signed head: the log was rewritten.")

    previous = ""
    for seq, entry in [*_execute(home, "SELECT seq, entry FROM audit WHERE seq < 3 ORDER BY seq"), last]:
        row = audit_row(seq, previous, entry)
        previous = row.hash
        _execute(home, "UPDATE audit SET previous = ?, hash = ? WHERE seq = ?", row.previous, row.hash, seq)
    code, problem = _verify(home)
    assert code == 1
    assert "row 1 is not signed, but rows before it were: the log was rewritten without the key" in problem


def test_verification_in_a_terminal_shows_its_progress(home: Home) -> None:
    assert home.run("ask", "What time is it?").returncode == 0
    _add_rows(home, 5_000)
    with home.terminal("audit", "verify") as terminal:
        screen = terminal.expect("The chain is intact: 5001 entries")
        assert terminal.wait_for_exit() == 0
    progress = [line for line in terminal.erased if line]
    assert progress and all(re.fullmatch(r"[1-5],\d{3} of 5,001 entries verified", line) for line in progress)
    assert "entries verified" not in screen


def test_missing_heads_are_reported_until_the_log_is_accepted(home: Home) -> None:
    assert home.run("ask", "What time is it?").returncode == 0
    (home.path / "atlas.db-heads").unlink()
    code, problem = _verify(home)
    assert code == 1
    assert "was missing when the database was opened: rows may be missing" in problem
    assert home.run("audit", "accept").returncode == 2
    assert _verify(home)[0] == 1
    assert home.run("audit", "accept", "--yes").returncode == 0
    assert _verify(home)[0] == 0


def test_restored_backup_is_verified_against_its_own_end(home: Home, tmp_path: Path) -> None:
    assert home.run("ask", "What time is it?").returncode == 0
    assert home.run("store", "backup", str(tmp_path / "copy.db")).returncode == 0
    assert home.run("ask", "What time is it?").returncode == 0
    assert home.run("store", "restore", str(tmp_path / "copy.db"), "--replace").returncode == 0
    assert _verify(home) == (0, "The chain is intact: 1 entries.")
    assert home.run("ask", "What time is it?").returncode == 0
    assert _verify(home) == (0, "The chain is intact: 2 entries.")
