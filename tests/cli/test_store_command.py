"""`atlas store …` as an operator runs it, beside a gateway and without one."""

import asyncio
import json
from typing import Any

import pytest
from atlas_command import Home
from typer.testing import CliRunner, Result

from atlas_agents.cli.main import app
from atlas_agents.core.clock import SystemClock
from atlas_agents.core.records import PutRecord
from atlas_agents.core.store import AcceptRun, AddAudit, AddEvents, AddJournal, PutSession, ReserveEvents, SetRun
from atlas_agents.stores.sqlite import SqliteStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # each starts processes of its own


class Ago(SystemClock):
    """So many days ago."""

    def __init__(self, days: int) -> None:
        self._seconds = days * 86_400

    def time(self) -> float:
        return super().time() - self._seconds


async def _fill(home: Home, days: int, run: str, tenant: str) -> None:
    home.path.mkdir(mode=0o700, exist_ok=True)
    store = SqliteStore(home.path / "atlas.db", clock=Ago(days))
    await store.open()
    said = tuple((n, b"x" * 1000) for n in range(1, 1501))
    await store.commit(tenant, [PutRecord("tenant", tenant, b"{}"), PutSession("s"), AcceptRun(run, "s", "a")])
    await store.commit(tenant, [ReserveEvents(run, 1536), AddEvents(run, said), AddAudit(b'{"n":1}')])
    await store.commit(tenant, [AddJournal(run, 0, "accepted", "", b"{}"), SetRun(run, 0, "done")])
    await store.close()


def filled(home: Home, days: int, run: str, tenant: str = "default") -> None:
    """A turn that ended so many days ago and said 1,500 things."""
    asyncio.run(_fill(home, days, run, tenant))


def atlas(home: Home, *arguments: str, **env: str) -> Result:
    """The command, in this process: it starts sooner."""
    return CliRunner().invoke(app, ["store", *arguments], env=home.environment(**env), prog_name="atlas")


def pruned(home: Home, *arguments: str, **env: str) -> dict[str, Any]:
    done = atlas(home, "prune", *arguments, "--json", **env)
    assert (done.exit_code, done.stderr) == (0, "")
    return json.loads(done.stdout)


NOTHING = {"runs": 0, "rows": 0, "size": 0}


def test_old_events_are_counted_then_removed_and_by_default_nothing_else(bare: Home) -> None:
    for days, run, tenant in ((40, "old", "default"), (20, "new", "default"), (31, "theirs", "acme")):
        filled(bare, days, run, tenant)
    both = {"runs": 2, "rows": 3000, "size": 3_000_000}
    assert pruned(bare, "--dry-run") == {"dryRun": True, "events": both, "journal": NOTHING}
    assert atlas(bare, "prune", "--dry-run").stdout == (
        "3,000 events of 2 turns would be removed, 3.0 MB\n0 steps of 0 turns would be removed, 0.0 MB\n"
    )
    assert pruned(bare) == {"dryRun": False, "events": both, "journal": NOTHING}
    assert pruned(bare) == {"dryRun": False, "events": NOTHING, "journal": NOTHING}
    assert pruned(bare, "--events", "10", "--dry-run")["events"]["runs"] == 1
    assert pruned(bare, "--dry-run", ATLAS_KEEP_EVENTS="0")["events"] == NOTHING
    found = pruned(bare, "--events", "0", ATLAS_KEEP_JOURNALS="39")
    assert found == {"dryRun": False, "events": NOTHING, "journal": {"runs": 1, "rows": 1, "size": 2}}


def test_what_is_kept_no_longer_may_be_removed_while_a_gateway_runs(home: Home) -> None:
    filled(home, 40, "old")
    with home.gateway():
        done = home.run("store", "prune")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("1,500 events of 1 turn removed, 1.5 MB\n")
        assert home.run("ask", "Hello again").returncode == 0
