"""`atlas store …`, with and without a running gateway."""

import asyncio
import base64
import contextlib
import json
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from atlas_command import Home

from atlas_agents.agents.run import TurnOptions, encode_run_request
from atlas_agents.core.aio import SystemClock
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, Text
from atlas_agents.core.store import (
    AcceptRun,
    AddAudit,
    AddEvents,
    AddJob,
    AddJournal,
    AddMessage,
    JobRow,
    PutRecord,
    PutSession,
    ReserveEvents,
    Schedule,
    SetRun,
)
from atlas_agents.storage.sqlite import SqliteStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Ago(SystemClock):
    """A clock that is this many days behind."""

    def __init__(self, days: int) -> None:
        self._seconds = days * 86_400

    def time(self) -> float:
        return super().time() - self._seconds


async def _fill(home: Home, days: int, run: str, tenant: str) -> None:
    home.path.mkdir(mode=0o700, exist_ok=True)
    store = SqliteStore(home.path / "atlas.db", clock=Ago(days))
    await store.open()
    events = tuple((n, b"x" * 1000) for n in range(1, 1501))
    await store.commit(tenant, [PutRecord("tenant", tenant, b"{}"), PutSession("s"), AcceptRun(run, "s", "a")])
    await store.commit(tenant, [ReserveEvents(run, 1536), AddEvents(run, events), AddAudit(b'{"n":1}')])
    await store.commit(tenant, [AddJournal(run, 0, "accepted", "", b"{}"), SetRun(run, 0, "done")])
    await store.close()


def filled(home: Home, days: int, run: str, tenant: str = "default") -> None:
    """Store a turn that ended this many days ago, with 1,500 events."""
    asyncio.run(_fill(home, days, run, tenant))


def pruned(home: Home, *arguments: str, **env: str) -> dict[str, Any]:
    done = home.run("store", "prune", *arguments, "--json", **env)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


NOTHING = {"runs": 0, "rows": 0, "size": 0}


def test_prune_removes_old_events_and_by_default_nothing_else(bare: Home) -> None:
    for days, run, tenant in ((40, "old", "default"), (20, "new", "default"), (31, "theirs", "acme")):
        filled(bare, days, run, tenant)
    both = {"runs": 2, "rows": 3000, "size": 3_000_000}
    kept = {"journal": NOTHING, "counters": NOTHING}
    assert pruned(bare, "--dry-run") == {"dryRun": True, "events": both, **kept}
    assert bare.run("store", "prune", "--dry-run").stdout == (
        "3,000 events of 2 turns would be removed, 3.0 MB\n0 steps of 0 turns would be removed, 0.0 MB\n"
        "0 counters of past days and months would be removed\n"
    )
    assert pruned(bare) == {"dryRun": False, "events": both, **kept}
    assert pruned(bare) == {"dryRun": False, "events": NOTHING, **kept}
    assert pruned(bare, "--events", "10", "--dry-run")["events"]["runs"] == 1
    assert pruned(bare, "--dry-run", ATLAS_KEEP_EVENTS="0")["events"] == NOTHING
    found = pruned(bare, "--events", "0", ATLAS_KEEP_JOURNALS="39")
    assert found == {"dryRun": False, "events": NOTHING, **kept, "journal": {"runs": 1, "rows": 1, "size": 2}}


def test_prune_works_while_a_gateway_runs(home: Home) -> None:
    filled(home, 40, "old")
    with home.gateway():
        done = home.run("store", "prune")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("1,500 events of 1 turn removed, 1.5 MB\n")
        assert home.run("ask", "Hello again").returncode == 0


def test_backup_of_a_running_gateway_is_restored_after_data_loss(home: Home) -> None:
    copy = home.folder / "backup.db"
    with home.gateway() as served:
        assert home.run("ask", "Remember the boat", "-s", "first").returncode == 0
        done = home.run("store", "backup", "backup.db")
        assert (done.returncode, done.stderr) == (0, "")
        assert re.fullmatch(rf"Backed up to {copy}: 1 session, 2 messages, 0 audit rows, 0\.\d MB\.\n", done.stdout)
        home.run("ask", "Too late", "-s", "second")
        refused = home.run("store", "restore", str(copy), "--replace")
        assert refused.returncode == 2 and "another Atlas process" in refused.stderr
        served.kill()
    refused = home.run("store", "restore", str(copy))
    assert refused.returncode == 1
    assert f"database {home.path / 'atlas.db'} is not empty: pass --replace" in refused.stderr
    (home.path / "atlas.db").write_bytes(b"rubbish" * 1000)
    done = home.run("store", "restore", str(copy), "--replace")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"Restored {home.path / 'atlas.db'} from {copy}: 1 session, 2 messages, 0 audit rows."
    assert Path(lines[1].removeprefix("The previous database is ").removesuffix(".")).read_bytes() == b"rubbish" * 1000
    again = home.run("ask", "Hello", "-s", "first", "--json")
    assert again.returncode == 0, again.stderr
    shown = json.loads(home.run("sessions", "show", "first", "--json").stdout)
    assert [each["role"] for each in shown["messages"]] == ["user", "assistant"] * 2


def test_open_turns_of_a_backup_are_reported_and_can_be_ended(bare: Home) -> None:
    filled(bare, 1, "old")
    asyncio.run(_open_turns(bare))
    copy = str(bare.folder / "backup.db")
    content = json.loads(bare.run("store", "backup", copy, "--json").stdout)
    assert (content["openTurns"], content["openJobs"], content["auditLines"], content["broken"]) == (2, 1, 1, None)
    done = bare.run("store", "restore", copy, "--replace")
    assert done.returncode == 0 and "2 turns and 1 job were running" in done.stderr
    refused = bare.run("store", "end-turns")
    assert refused.returncode == 2 and "Pass --yes" in refused.stderr
    assert bare.run("store", "end-turns", "--yes").stdout == "Ended 2 turns and 1 job.\n"
    assert json.loads(bare.run("store", "end-turns", "--yes", "--json").stdout) == {"turns": 0, "jobs": 0}
    errors = asyncio.run(_errors(bare))
    assert errors == ["it was running when the backup was made"] * 2


async def _open_turns(home: Home) -> None:
    store = SqliteStore(home.path / "atlas.db")
    await store.open()
    asked = JobRow("j1", "delegation", "b", "write", "s/jobs/1", asker_session="s", asker_agent="a")
    await store.commit("default", [AcceptRun("r1", "s", "a"), AcceptRun("r2", "s", "a"), AddJob(asked)])
    await store.close()


async def _errors(home: Home) -> list[str | None]:
    store = SqliteStore(home.path / "atlas.db")
    await store.open()
    runs = await store.runs("default", "s")
    await store.close()
    return [run.error for run in runs if run.status == "failed"]


def test_backup_with_a_broken_audit_log_is_kept_and_reported(bare: Home) -> None:
    filled(bare, 1, "old")
    with contextlib.closing(sqlite3.connect(bare.path / "atlas.db", isolation_level=None)) as other:
        other.execute("UPDATE audit SET entry = '{}'")
    copy = bare.folder / "backup.db"
    done = bare.run("store", "backup", str(copy))
    assert done.returncode == 1 and copy.exists()
    assert "the audit log of tenant 'default' is broken at entry 1" in done.stderr
    refused = bare.run("store", "restore", str(copy), "--replace")
    assert refused.returncode == 1 and refused.stderr.endswith("is broken at entry 1; nothing was changed\n")


@pytest.mark.parametrize(("command", "program"), [("backup", "pg_dump"), ("restore", "pg_restore")])
def test_postgres_commands_are_named_instead(command: str, program: str, bare: Home) -> None:
    done = bare.run("store", command, "file", ATLAS_DATABASE_URL="postgresql://ana:geheim@db/atlas")
    assert (
        done.returncode == 2
        and f"for Postgres, run: {program} --" in done.stderr
        and "geheim" not in done.stdout + done.stderr
    )


async def _fill_unreadable(home: Home) -> None:
    store = SqliteStore(home.path / "atlas.db")
    await store.open()
    good = Message("user", (Text("Hello"),)).to_json()
    messages = [AddMessage("s", "m1", good), AddMessage("s", "m2", b"\xffgarbled"), AddMessage("s", "m3", good)]
    request = encode_run_request([Message("user", (Text("Hello"),))], TurnOptions())
    runs = [AcceptRun("bad", "s", "assistant", request=b"{"), AcceptRun("good", "t", "assistant", request=request)]
    schedule = encode(Schedule("daily", "0 8 * * *", "assistant", "Report."))
    records = [PutRecord("schedule", "daily", schedule), PutRecord("schedule", "weekly", b"garbled")]
    await store.commit("default", [PutSession("s"), PutSession("t"), *messages, *runs, *records])
    await store.close()


async def _check_isolated(home: Home) -> None:
    store = SqliteStore(home.path / "atlas.db")
    await store.open()
    assert [row.id for row in await store.open_runs()] == ["good"]
    ended = await store.run("default", "bad")
    assert ended is not None and ended.error is not None
    assert ended.error.startswith("the request of run 'bad':") and "atlas store check --repair" in ended.error
    bodies = [row.message.text for row in await store.messages("default", "s")]
    assert bodies[0] == bodies[2] == "Hello" and "cannot be read" in bodies[1]
    assert [row.key for row in await store.records("default", "schedule")] == ["daily"]
    await store.close()


def test_check_finds_and_isolates_unreadable_rows(home: Home) -> None:
    """A message, a queued turn and a schedule, each with a neighbour that can be read."""
    home.path.mkdir(mode=0o700, exist_ok=True)
    asyncio.run(_fill_unreadable(home))
    checked = home.run("store", "check")
    assert checked.returncode == 1
    assert [line.partition(":")[0] for line in checked.stdout.splitlines()] == [
        "message 2 of session 's'",
        "schedule 'weekly'",
        "the request of run 'bad'",
        "3 rows cannot be read.",
        "Run",
    ]
    assert len(json.loads(home.run("store", "check", "--json").stdout)["unreadable"]) == 3
    repaired = json.loads(home.run("store", "check", "--repair", "--json").stdout)
    saved = [json.loads(line) for line in Path(repaired["saved"]).read_text().splitlines()]
    assert base64.b64decode(saved[0]["body"]) == b"\xffgarbled"
    assert Path(repaired["saved"]).stat().st_mode & 0o777 == 0o600
    again = home.run("store", "check")
    assert (again.returncode, again.stdout) == (0, "Every row can be read.\n")
    asyncio.run(_check_isolated(home))
