"""Methods about the past: runs and their steps, search, forks, the audit log, and tool usage."""

import json
from pathlib import Path
from typing import Any

import pytest
from gateway_client import Client, serve_and_connect

from atlas_agents import Approvals, Atlas, Interceptor, Price, Request, ToolCall, ToolFailed, tool
from atlas_agents.core.store import AddAudit, AddUsage, UsageRow
from atlas_agents.gateway import hub
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Reply, Scripted, calls, fails, in_memory_atlas, says
from checks import ShiftedClock


@tool(confirm=True)
async def note(text: str) -> str:
    """Write something down."""
    if text == "no":
        raise ToolFailed("not that")
    return text


def atlas(*replies: Reply, store: MemoryStore | None = None, **more: Any) -> Atlas:
    approvals = Approvals(wait=True)
    return in_memory_atlas(Scripted(*replies), [note], store=store or MemoryStore(), approve=approvals, **more)


async def run_turn(client: Client, message: str, session: str = "s") -> str:
    run_id: str = (await client.get("chat.send", sessionKey=session, message=message))["runId"]
    while (await client.until("chat.final", "chat.error"))["runId"] != run_id:
        pass
    return run_id


async def run_approved_turn(client: Client, text: str) -> str:
    """Run a turn in which the tool call is approved once."""
    run_id: str = (await client.get("chat.send", sessionKey="s", message=text))["runId"]
    approval = await client.until("exec.approval_request")
    await client.get("approvals.resolve", approvalId=approval["approvalId"], decision="allow-once")
    await client.until("chat.final")
    return run_id


async def test_run_lists_its_steps(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, atlas(calls("note", text="a"), says("Noted."))) as client:
        run_id = await run_approved_turn(client, "note it")
        found = await client.get("runs.get", runId=run_id)
        assert found["run"] | {"createdAt": 0, "endedAt": 0} == {
            "runId": run_id,
            "sessionKey": "s",
            "agentId": "assistant",
            "status": "done",
            "createdAt": 0,
            "endedAt": 0,
            "user": "owner",
        }
        steps = [(step["kind"], step.get("name", ""), step.get("status", "")) for step in found["steps"]]
        assert steps == [
            ("accepted", "", ""),
            ("reply", "scripted", "tool_calls"),
            ("asked", "note", ""),
            ("answered", "", "allow-once"),
            ("intent", "note", ""),
            ("outcome", "", "ok"),
            ("reply", "scripted", "stop"),
            ("ended", "", "done"),
        ]
        call = [step["callId"] for step in found["steps"] if step["kind"] in ("asked", "intent", "outcome")]
        assert len(set(call)) == 1
        assert "Noted." not in str(found)


async def test_step_of_a_hook_names_the_hook_without_its_content(tmp_path: Path) -> None:
    def change(call: ToolCall) -> ToolCall:
        return ToolCall(call.id, call.name, {"text": "hidden"})

    hooks = [Interceptor(tool_call=change, name="editor")]
    async with serve_and_connect(
        tmp_path, atlas(calls("note", text="a"), says("Noted."), interceptors=hooks)
    ) as client:
        found = await client.get("runs.get", runId=await run_approved_turn(client, "note it"))
        steps = [(step["kind"], step.get("name", ""), step.get("status", "")) for step in found["steps"]]
        assert steps[2:4] == [("hook", "editor", "changed arguments"), ("asked", "note", "")]
        assert "hidden" not in str(found)


async def test_runs_are_listed_latest_first(tmp_path: Path) -> None:
    clock = ShiftedClock()
    async with serve_and_connect(
        tmp_path, atlas(says("1"), says("2"), store=MemoryStore(clock=clock), clock=clock)
    ) as client:
        first = await run_turn(client, "one", "a")
        clock.ahead += 1
        second = await run_turn(client, "two", "b")
        runs = (await client.get("runs.list"))["runs"]
        assert [run["runId"] for run in runs] == [second, first]
        assert [run["runId"] for run in (await client.get("runs.list", sessionKey="a"))["runs"]] == [first]


async def test_search_finds_labels_and_messages(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, atlas(says("The Fjord is deep. " * 20), says("ok"))) as client:
        await run_turn(client, "tell me of water", "a")
        await run_turn(client, "hello", "b")
        hits = (await client.get("sessions.search", query="fjORD"))["hits"]
        assert [hit["session"]["sessionKey"] for hit in hits] == ["a"]
        assert "Fjord" in hits[0]["excerpt"] and len(hits[0]["excerpt"]) < 200
        named = (await client.get("sessions.search", query="HELLO"))["hits"]
        assert [(hit["session"]["sessionKey"], "excerpt" in hit) for hit in named] == [("b", False)]
        assert (await client.get("sessions.search", query="nowhere"))["hits"] == []


async def test_branches_of_a_session_are_listed_from_each_of_them(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, atlas()) as client:
        first = (await client.get("sessions.create", label="Trip"))["sessionKey"]
        branch = {"branch": {"root": first, "from": first, "at": ""}}
        second = (await client.get("sessions.fork", sessionKey=first, metadata=branch))["sessionKey"]
        await client.get("sessions.create", metadata={"branch": "malformed"})
        for key in (first, second):
            found = (await client.get("sessions.branches", sessionKey=key))["sessions"]
            assert {each["sessionKey"] for each in found} == {first, second}
            assert [each["sessionKey"] for each in found] == [first, second], "the oldest first"
        third = (await client.get("sessions.fork", sessionKey=second, metadata=branch))["sessionKey"]
        await client.get("sessions.delete", sessionKey=first)
        found = (await client.get("sessions.branches", sessionKey=second))["sessions"]
        assert {each["sessionKey"] for each in found} == {second, third}, "without the first one"
        missing = await client.request("sessions.branches", sessionKey="unknown")
        assert missing["error"]["data"]["kind"] == "SESSION_NOT_FOUND"


async def test_fork_starts_with_the_same_messages(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, atlas(says("1"), says("2"))) as client:
        await run_turn(client, "one")
        await run_turn(client, "two")
        messages = (await client.get("chat.history", sessionKey="s"))["messages"]
        forked = await client.get("sessions.fork", sessionKey="s", messageId=messages[1]["id"], label="branch")
        found = await client.get("sessions.get", sessionKey=forked["sessionKey"])
        assert found["session"]["label"] == "branch"
        assert [message["id"] for message in found["messages"]] == [message["id"] for message in messages[:2]]
        unknown = await client.request("sessions.fork", sessionKey="s", messageId="nothing")
        assert unknown["error"]["data"]["kind"] == "INVALID_PARAMS"
        assert unknown["error"]["message"].startswith("message not found: 'nothing'; expected")
        unknown = await client.request("sessions.fork", sessionKey="none", messageId=messages[1]["id"])
        assert unknown["error"]["data"]["kind"] == "SESSION_NOT_FOUND"


async def test_subscribe_returns_outcomes_and_queued_messages(tmp_path: Path) -> None:
    replies = [calls("note", text="a"), says("ok")]
    async with serve_and_connect(tmp_path, atlas(fails("gone"), fails("gone"), fails("gone"), *replies)) as client:
        failed = await run_turn(client, "fail")
        await client.get("chat.send", sessionKey="s", message="ask")
        await client.until("exec.approval_request")
        waiting = await client.get("chat.send", sessionKey="s", message="later")
        state = await client.get("sessions.subscribe", sessionKey="s")
        assert state["outcomes"] == [{"runId": failed, "status": "failed", "error": "gone"}]
        assert [(each["runId"], each["parts"][0]["text"]) for each in state["waiting"]] == [(waiting["runId"], "later")]


async def test_readers_receive_approval_updates_of_any_session(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, atlas(calls("note", text="a"), says("Noted."))) as client:
        await run_approved_turn(client, "note it")
        updates = [frame["data"] for frame in client.events() if frame["event"] == "approvals.updated"]
        assert updates == [{"sessionKey": "s"}] * 2


def audit_calls(*days: tuple[int, str]) -> list[AddAudit]:
    """Entries about calls of a tool on a day of January 2026."""
    first = 1_767_225_600_000
    entries = [{"timestamp": first + (day - 1) * 86_400_000, "entityId": tool, "success": True} for day, tool in days]
    return [AddAudit(json.dumps(entry).encode()) for entry in entries]


async def test_tool_calls_are_counted_in_pages_of_whole_days_latest_first(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serve_and_connect(tmp_path, atlas(store=store)) as client:
        await store.commit("default", audit_calls((1, "a"), (1, "b"), (2, "a"), (2, "a"), (3, "a"), (3, "b"), (3, "c")))
        pages, cursor = list[Any](), None
        while True:
            page = await client.get("usage.tools", limit=2, **({} if cursor is None else {"cursor": cursor}))
            pages.append([f"{row['day'][-1]}{row['name']}{row['calls']}" for row in page["rows"]])
            if (cursor := page.get("nextCursor")) is None:
                break
        assert pages == [["3a1", "3b1", "3c1"], ["2a2"], ["1a1", "1b1"]]
        assert [row["day"] for row in (await client.get("usage.tools", to="2026-01-02", limit=1))["rows"]] == [
            "2026-01-02"
        ]


async def test_usage_of_one_session_is_found_among_many(tmp_path: Path) -> None:
    store = MemoryStore()
    async with serve_and_connect(tmp_path, atlas(says("1"), store=store)) as client:
        await run_turn(client, "one")
        heavy = [AddUsage(UsageRow("2026-01-01", f"other{n}", "a", "m", 10**6)) for n in range(20)]
        await store.commit("default", heavy)
        listed = await client.get("usage.summary", groupBy="session", limit=10)
        assert "s" not in {row["name"] for row in listed["rows"]} and listed["complete"] is False
        (row,) = (await client.get("usage.summary", groupBy="session", sessionKey="s"))["rows"]
        assert (row["name"], row["turns"]) == ("s", 1)
        assert (await client.get("usage.summary", groupBy="session", sessionKey="unknown"))["rows"] == []


async def test_audit_verify_names_a_changed_row(tmp_path: Path) -> None:
    store = MemoryStore()
    replies = [calls("note", text="a"), says("1"), calls("note", text="no"), says("2")]
    async with serve_and_connect(tmp_path, atlas(*replies, store=store)) as client:
        await run_approved_turn(client, "one")
        await run_approved_turn(client, "two")
        assert await client.get("audit.verify") == {"rows": 2}
        used = (await client.get("usage.tools"))["rows"]
        assert [(row["name"], row["calls"], row["failed"]) for row in used] == [("note", 2, 1)]
        assert (await client.get("usage.tools", to="2001-01-01"))["rows"] == []
        change_audit_row(store, 2)
        assert await client.get("audit.verify") == {
            "rows": 2,
            "broken": 2,
            "problem": "row 2 was changed after it was written",
        }


async def test_audit_verify_reports_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_PROGRESS_INTERVAL", -1.0)
    store = MemoryStore()
    await store.commit("default", [AddAudit(b"{}")] * 1200)
    async with serve_and_connect(tmp_path, atlas(store=store)) as client:
        assert await client.get("audit.verify") == {"rows": 1200}
        progress = [frame["data"] for frame in client.frames if frame.get("event") == "audit.progress"]
        assert [each["rows"] for each in progress] == [1000, 1200] and progress[0]["total"] == 1200


async def test_invalid_cursor_of_sessions_is_refused(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, atlas()) as client:
        for number in range(3):
            await client.get("sessions.create", sessionKey=f"s{number}")
        first = await client.get("sessions.list", limit=2)
        rest = await client.get("sessions.list", limit=2, cursor=first["nextCursor"])
        keys = [each["sessionKey"] for page in (first, rest) for each in page["sessions"]]
        assert keys == ["s2", "s1", "s0"] and "nextCursor" not in rest
        for cursor in ("", "x", "12345", "é", "MTIz", "LTEgeA", "MSAA"):
            error = (await client.request("sessions.list", cursor=cursor))["error"]
            assert error["data"]["kind"] == "INVALID_PARAMS" and "invalid cursor" in error["message"]


def change_audit_row(store: MemoryStore, seq: int) -> None:
    """Change an audit row directly in the database."""
    connection = store._connect()
    (entry,) = connection.execute("SELECT entry FROM audit WHERE seq = ?", (seq,)).fetchone()
    connection.execute("UPDATE audit SET entry = ? WHERE seq = ?", (entry.replace(b"not that", b"all well"), seq))


async def test_usage_is_summed_by_day_if_requested(tmp_path: Path) -> None:
    async with serve_and_connect(tmp_path, atlas(says("1"))) as client:
        await run_turn(client, "one")
        (row,) = (await client.get("usage.summary", groupBy="model", byDay=True))["rows"]
        assert row["name"] == "scripted" and len(row["day"]) == 10
        (row,) = (await client.get("usage.summary", groupBy="model"))["rows"]
        assert "day" not in row


async def test_usage_has_cache_writes_reasoning_and_what_caching_saved(tmp_path: Path) -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 30},
        "completion_tokens_details": {"reasoning_tokens": 40},
    }

    def model(_: Request) -> dict[str, Any]:
        return {"model": "m", "choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}], "usage": usage}

    prices = {"m": Price(1, 2, cached=0.1, cache_write=1.25)}
    counts = {"inputTokens": 100, "outputTokens": 50, "cachedTokens": 20, "cacheWriteTokens": 30, "reasoningTokens": 40}
    async with serve_and_connect(tmp_path, in_memory_atlas(model, store=MemoryStore(), prices=prices)) as client:
        await client.get("chat.send", sessionKey="s", message="one")
        assert (await client.until("chat.final"))["usage"] == counts
        (row,) = (await client.get("usage.summary", groupBy="model"))["rows"]
        assert counts.items() <= row.items()
        assert (row["costMicrocents"], row["savedMicrocents"]) == (18_950, 1050)
