"""One stored row that cannot be read harms its own run or session; everything else starts and works."""

import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from gateway_client import Client, connect_client, serve_gateway

from atlas_agents import Approvals, tool
from atlas_agents.core.store import AcceptRun, ClaimRun, PutRecord, PutSession
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Reply, Scripted, calls, in_memory_atlas, says

GARBLED = [b"\xff\x00garbled", b"", b"{", b"[]"]


@tool(confirm=True)
async def note(text: str) -> str:
    """Write something down."""
    return text


@asynccontextmanager
async def gateway(home: Path, *replies: Reply) -> AsyncGenerator[Client, None]:
    store = SqliteStore(home / "atlas.db")
    await store.open()
    atlas = in_memory_atlas(Scripted(*replies), [note], store=store, approve=Approvals(wait=True))
    try:
        async with serve_gateway(home, atlas, grace=0.0) as gateway, connect_client(gateway) as client:
            yield client
    finally:
        await store.close()


def execute(home: Path, statement: str, **values: Any) -> None:
    with closing(sqlite3.connect(home / "atlas.db")) as connection, connection:
        assert connection.execute(statement, values).rowcount > 0


async def run_turn(client: Client, session: str, message: str = "Hello") -> str:
    run_id: str = (await client.get("chat.send", sessionKey=session, message=message))["runId"]
    while (await client.until("chat.final", "chat.error"))["runId"] != run_id:
        pass
    return run_id


async def leave_open_turn(home: Path, session: str) -> str:
    """Stop a gateway while a turn of the session waits for an approval."""
    async with gateway(home, calls("note", text="a")) as client:
        run_id: str = (await client.get("chat.send", sessionKey=session, message="Note it"))["runId"]
        await client.until("exec.approval_request")
    return run_id


@pytest.mark.parametrize("body", GARBLED)
async def test_gateway_starts_although_the_request_of_a_run_is_unreadable(tmp_path: Path, body: bytes) -> None:
    bad, good = await leave_open_turn(tmp_path, "bad"), await leave_open_turn(tmp_path, "good")
    execute(tmp_path, "UPDATE runs SET request = :body WHERE id = :run", body=body, run=bad)
    async with gateway(tmp_path, says("Hi."), says("Hi again.")) as client:
        found = await client.get("runs.get", runId=bad)
        assert found["run"]["status"] == "failed"
        assert bad in found["run"]["error"] and "cannot be read" in found["run"]["error"]
        assert (await client.get("runs.get", runId=good))["run"]["status"] in ("running", "waiting")
        await run_turn(client, "bad")
        history = await client.get("chat.history", sessionKey="bad")
        assert history["messages"][-1]["parts"][0]["text"] == "Hi.", "the session can be used again"


async def test_queued_message_that_is_unreadable_fails_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    writes = [PutSession("s"), AcceptRun("r1", "s", "assistant", request=b"\x00"), ClaimRun("r1")]
    await store.commit("default", [*writes, AcceptRun("r2", "s", "assistant", request=b'{"messages": [{"role": 7}]}')])
    await store.close()
    async with gateway(tmp_path, says("Hi.")) as client:
        for run_id in ("r1", "r2"):
            waited = await client.get("chat.wait", runId=run_id, timeoutMs=120_000)
            assert waited["status"] == "failed" and run_id in waited["error"]
        await run_turn(client, "s")


@pytest.mark.parametrize("kind", ["accepted", "reply"])
async def test_run_with_an_unreadable_step_fails_and_names_it(tmp_path: Path, kind: str) -> None:
    run_id = await leave_open_turn(tmp_path, "bad")
    execute(tmp_path, "UPDATE journal_rows SET payload = :body WHERE kind = :kind", body=b"\xffx", kind=kind)
    async with gateway(tmp_path, says("Hi."), says("Hi again.")) as client:
        await client.get("sessions.subscribe", sessionKey="bad", runs={run_id: 0})
        waited = await client.get("chat.wait", runId=run_id, timeoutMs=120_000)
        assert waited["status"] == "failed" and run_id in waited["error"] and "cannot be read" in waited["error"]
        (step,) = [each for each in (await client.get("runs.get", runId=run_id))["steps"] if each["kind"] == kind]
        assert "cannot be read" in step["error"]
        await run_turn(client, "bad")


async def test_call_with_an_unreadable_approval_is_refused(tmp_path: Path) -> None:
    run_id = await leave_open_turn(tmp_path, "bad")
    execute(tmp_path, "UPDATE approvals SET question = :body", body=b"\xffx")
    async with gateway(tmp_path, says("It was refused.")) as client:
        assert (await client.get("approvals.list"))["approvals"] == []
        assert (await client.get("chat.wait", runId=run_id, timeoutMs=120_000))["status"] == "done"
        (tool_message,) = [
            each for each in (await client.get("chat.history", sessionKey="bad"))["messages"] if each["role"] == "tool"
        ]
        assert tool_message["parts"][0]["status"] == "error"


@pytest.mark.parametrize("body", [*GARBLED, b'{"role": "assistant", "parts": 3}'])
async def test_session_with_an_unreadable_message_stays_usable(tmp_path: Path, body: bytes) -> None:
    async with gateway(tmp_path, says("One."), says("Two.")) as client:
        run_id = await run_turn(client, "s")
        execute(tmp_path, "UPDATE messages SET body = :body WHERE seq = 2", body=body)
        page = await client.get("chat.history", sessionKey="s")
        assert [message["role"] for message in page["messages"]] == ["user", "assistant"]
        assert "cannot be read" in page["messages"][1]["parts"][0]["text"]
        assert (await client.get("chat.wait", runId=run_id, timeoutMs=120_000))["status"] == "done"
        await client.get("sessions.subscribe", sessionKey="s")
        await client.get("sessions.search", query="hello")
        assert len((await client.get("sessions.export", sessionKey="s"))["lines"]) == 3
    async with gateway(tmp_path, says("Two.")) as client:
        await run_turn(client, "s")
        page = await client.get("chat.history", sessionKey="s")
        assert page["messages"][-1]["parts"][0]["text"] == "Two."


async def test_unreadable_event_is_left_out(tmp_path: Path) -> None:
    async with gateway(tmp_path, says("One.")) as client:
        run_id = await run_turn(client, "s")
    execute(tmp_path, "UPDATE event_rows SET body = :body WHERE id % 8 = 2", body=b"\xff garbled")
    async with gateway(tmp_path, says("Two.")) as client:
        await client.get("sessions.subscribe", sessionKey="s", runs={run_id: 0})
        await client.until("chat.final")
        assert [frame["data"]["seq"] for frame in client.events(run_id)][:2] == [1, 3]


async def test_unreadable_metadata_and_schedules_harm_no_other_session(tmp_path: Path) -> None:
    async with gateway(tmp_path, says("One.")) as client:
        await run_turn(client, "s")
        execute(tmp_path, "UPDATE sessions SET metadata = :body", body=b"{{")
        assert [each["sessionKey"] for each in (await client.get("sessions.list"))["sessions"]] == ["s"]
    store = SqliteStore(tmp_path / "atlas.db")
    await store.open()
    await store.commit("default", [PutRecord("schedule", "daily", b"garbled")])
    await store.close()
    async with gateway(tmp_path, says("Two.")) as client:
        assert (await client.get("schedules.list"))["schedules"] == []
        await run_turn(client, "s")
