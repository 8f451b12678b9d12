"""The stores of tests/data, which this version and every later one reads and continues.

If a schema or a stored form has changed, write them again: `python tests/stores/write_data.py`.
"""

import asyncio
import sqlite3
from contextlib import closing

import psycopg
import pytest
from store_helpers import DAY, TENANT, Make, everything, one_of_each
from test_derived import database
from write_data import DATA, MODEL, VECTOR, tools

from atlas_agents import Agent, Atlas, Message, verify
from atlas_agents.core.store import AddMessage, AuditFilter, DropSession, JournalRow, Prune, SetRun, Store, Where
from atlas_agents.storage.hash_chain import find_audit_break, find_journal_break
from atlas_agents.testing import Scripted, says
from checks import TIMEOUT, is_paired

pytestmark = pytest.mark.durable
DERIVED_OF_LONG_LOGS = {"audit_blocks", "audit_values", "tool_days"}


@pytest.fixture
def location(kind: str, location: tuple[str, str]) -> tuple[str, str]:
    """The place of a copy of the stored data."""
    where, schema = location
    content = (DATA / f"{kind}.sql").read_text(encoding="utf-8")
    if kind == "sqlite":
        with closing(sqlite3.connect(where)) as connection:
            connection.executescript(content)
    else:
        with psycopg.connect(where) as session:
            session.execute(f"DROP SCHEMA {schema} CASCADE".encode())
            session.execute(content.encode())
    return where, schema


async def test_every_table_has_rows(store: Store, kind: str, location: tuple[str, str]) -> None:
    """The store was opened, so the schema is the current one; each part of it is used."""
    of_tables = {
        "sqlite": "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE '%\\_words\\_%' ESCAPE '\\'",
        "postgres": "SELECT tablename FROM pg_tables WHERE schemaname = 'atlas'",
    }
    with database(*location) as execute:
        tables = {name for (name,) in execute(of_tables[kind])}
        assert {name for name in tables if not execute(f"SELECT * FROM {name} LIMIT 1")} == DERIVED_OF_LONG_LOGS


async def test_every_kind_of_row_is_read(store: Store) -> None:
    found = await everything(store)
    assert {name for name, value in found.items() if not value} == set()
    (run,) = found["runs"]
    assert (run.user, run.idempotency_key, run.fingerprint, run.request) == ("ann", "key", "print", b'{"say":"hi"}')
    assert [event.body for event in found["events"]] == [b'{"e":1}', b'{"e":2}']
    assert (found["sessions"][-1].metadata, found["counted"]) == ({"k": [1, "ü"]}, 1)
    assert [each.key for each in await store.sessions(TENANT, branches=True, prefix="@ann/")] == ["@ann/notes"]
    assert await store.message(TENANT, "s", "m1") == found["messages"][0]
    assert [row.user for row in await store.jobs(TENANT, states=["queued"])] == [""]
    (document,) = await store.documents(TENANT, Where("knowledge", "handbook"))
    assert (document.title, document.model, document.passages) == ("Lamps", MODEL, 2)
    where = Where("knowledge")
    (hit,) = await store.search_text(TENANT, where, ["lamp"])
    assert [each.passage for each in await store.find_nearest(TENANT, where, MODEL, VECTOR)] == [hit.passage]
    assert [row.heading for row in await store.passages(TENANT, [hit.passage])] == ["Lamps"]
    assert [each.session for each in (await store.search_sessions(TENANT, "notes")).matches] == ["@ann/notes"]
    assert [row.model for row in await store.sum_usage(TENANT, "model")] == ["m"]
    assert sum(row.tokens for row in await store.budget_rows(TENANT, "day", DAY)) == 5
    assert len((await store.find_audit("default", AuditFilter(tool="look"))).rows) == 1
    assert {run.tenant for run in await store.open_runs()} == {TENANT, "default"}
    for tenant in (TENANT, "default"):
        assert find_audit_break(await store.audit(tenant)) is None


async def test_rows_are_continued_and_deleted(store: Store, make_store: Make) -> None:
    (message,) = await store.commit(TENANT, [AddMessage("s", "m1", b"again")])
    assert message.body == b'{"role":"user"}'
    assert (await store.commit(TENANT, one_of_each()))[1].id == "r1"
    await store.commit(TENANT, [SetRun("r1", 0, "done")])
    for what in ("events", "journal"):
        (gone,) = await store.commit(TENANT, [Prune(what, 1 << 50)])
        assert gone.runs == 1 and gone.rows > 0
    await store.commit(TENANT, [DropSession("s")])
    await store.close()
    assert [each.key for each in await (await make_store()).sessions(TENANT)] == ["@ann/notes"]


async def test_unfinished_turns_are_completed(store: Store) -> None:
    async def journals() -> dict[str, list[JournalRow]]:
        runs = [run for each in await store.sessions("default") for run in await store.runs("default", each.key)]
        return {run.id: await store.journal("default", run.id) for run in runs}

    actions: list[str] = []
    before = await journals()
    begun = {run.id for run in await store.open_runs() if run.tenant == "default"}
    model = Scripted(*(says("Done.") for _ in range(3)))
    async with Atlas([Agent("a", model=model, tools=tools(actions))], store=store) as atlas, asyncio.timeout(TIMEOUT):
        streams = [each for each in await atlas.recover() if each.stream_id in begun]
        assert {stream.stream_id for stream in streams} == begun and len(begun) == 3
        assert [(await stream.reply()).text for stream in streams] == ["Done."] * 3
        assert verify(await atlas.audit.records("default")) is None
        assert actions == ["write 3"]
        statuses: dict[str, list[str]] = {}
        for session in await store.sessions("default"):
            messages = [Message.from_json(row.body) for row in await store.messages("default", session.key)]
            assert is_paired(messages)
            results = [result for message in messages for result in message.tool_results]
            statuses[session.key] = [result.status for result in results]
        assert statuses == {"whole": ["ok"], "in a call": ["unknown"], "in a keyed call": ["ok"], "while speaking": []}
        for run_id, rows in (await journals()).items():
            assert rows[: len(before[run_id])] == before[run_id] and find_journal_break(rows) is None
            assert (len(rows) > len(before[run_id])) == (run_id in begun)
