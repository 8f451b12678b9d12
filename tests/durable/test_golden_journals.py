"""Golden journals: unfinished turns of older versions, which every later version must complete."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path

import pytest

from atlas_agents import Agent, Atlas, Message, Tool, tool, verify
from atlas_agents.core.store import JournalRow
from atlas_agents.storage.hash_chain import find_journal_break
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Scripted, says
from checks import TIMEOUT, is_paired

FIXTURES = Path(__file__).parents[1] / "stores" / "fixtures"
VERSIONS = ["v1"]
"""Each has the same four sessions. A release that changes the journal format adds its own."""


def tools(actions: list[str]) -> list[Tool]:
    """The tools as they were when the turns started."""

    @tool(effect="pure")
    async def look(n: int) -> str:
        """Look."""
        actions.append(f"look {n}")
        return f"saw {n}"

    @tool(effect="keyed")
    async def write(n: int) -> str:
        """Write under a key."""
        actions.append(f"write {n}")
        return f"wrote {n}"

    @tool(effect="unsafe")
    async def act(n: int) -> str:
        """Act."""
        actions.append(f"act {n}")
        return f"did {n}"

    return [look, write, act]


@pytest.fixture(params=VERSIONS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "atlas.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript((FIXTURES / f"{request.param}.sqlite.sql").read_text())
    return path


async def journals(store: SqliteStore) -> dict[str, list[JournalRow]]:
    runs = [run for session in await store.sessions("default") for run in await store.runs("default", session.key)]
    return {run.id: await store.journal("default", run.id) for run in runs}


async def test_unfinished_turns_of_an_older_version_are_completed(database: Path) -> None:
    actions: list[str] = []
    store = SqliteStore(database, must_exist=True)
    await store.open()
    before = await journals(store)
    begun = {run.id for run in await store.open_runs() if run.tenant == "default"}
    model = Scripted(*(says("Done.") for _ in range(3)))
    async with Atlas([Agent("a", model=model, tools=tools(actions))], store=store) as atlas, asyncio.timeout(TIMEOUT):
        streams = await atlas.recover()
        assert {stream.stream_id for stream in streams} == begun and len(begun) == 3
        assert [(await stream.reply()).text for stream in streams] == ["Done."] * 3
        assert await atlas.recover() == []
        assert verify(await atlas.audit.records("default")) is None
    assert sorted(actions) == ["look 4", "write 3"]
    statuses: dict[str, list[str]] = {}
    for session in await store.sessions("default"):
        messages = [Message.from_json(row.body) for row in await store.messages("default", session.key)]
        assert is_paired(messages)
        results = [result for message in messages for result in message.tool_results]
        statuses[session.key] = [result.status for result in results]
    assert statuses == {
        "whole": ["ok", "ok"],
        "in a call": ["ok", "ok", "unknown"],
        "in a keyed call": ["ok"],
        "while speaking": [],
    }
    after = await journals(store)
    for run_id, rows in after.items():
        assert rows[: len(before[run_id])] == before[run_id] and find_journal_break(rows) is None
        assert len(rows) > len(before[run_id]) if run_id in begun else rows == before[run_id]
        assert rows[-1].kind == "ended"
    assert [run.tenant for run in await store.open_runs()] == ["acme", "acme"]
    await store.close()
