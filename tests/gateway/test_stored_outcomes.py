"""What a person saw stays to be seen: of a stopped turn, of a tool at work, of an answer that said why not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from gateway_client import connect_client, serve_and_connect, serve_gateway
from paced_model import Paced

from atlas_agents import Approvals, Atlas, Image, ToolContext, tool
from atlas_agents.core.store import RunRow
from atlas_agents.gateway.protocol.events import read_event_name
from atlas_agents.gateway.runs import finalize_run
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from checks import ShiftedClock

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


@tool(confirm=True)
async def wipe(path: str) -> str:
    """Remove something."""
    return f"removed {path}"


async def test_what_a_stopped_turn_said_is_in_every_view_of_the_session(tmp_path: Path) -> None:
    model, store = Paced(says("one two three four " * 50), pause=0.02), MemoryStore()
    async with serve_and_connect(tmp_path, in_memory_atlas(model, store=store)) as client:
        run_id = (await client.get("chat.send", sessionKey="s", message="count"))["runId"]
        for _ in range(2):
            await client.until("chat.delta")
        await client.get("chat.abort", runId=run_id)
        await client.until("chat.final")
        text = "".join(event["data"]["text"] for event in client.events() if event["event"] == "chat.delta")
        outcome = {"runId": run_id, "status": "cancelled", "parts": [{"type": "text", "text": text}]}
        assert text and (await client.get("sessions.subscribe", sessionKey="s"))["outcomes"] == [outcome]
        history = await client.get("chat.history", sessionKey="s")
        assert (history["outcomes"], [each["role"] for each in history["messages"]]) == ([outcome], ["user"])
    row = await store.run("default", run_id)
    assert row is not None
    await _remove_terminal_event(store, row)
    events = [read_event_name(event.body) for event in await store.events("default", run_id)][-3:]
    assert events == ["chat.reset", "chat.delta", "chat.final"]


async def _remove_terminal_event(store: MemoryStore, row: RunRow) -> None:
    """As if everything had stopped between the end and its last word."""
    last = "DELETE FROM events WHERE run_id = ? AND seq = (SELECT max(seq) FROM events WHERE run_id = ?)"
    store._connected().execute(last, (row.id, row.id))  # pyright: ignore[reportPrivateUsage]
    await finalize_run(store, "default", row)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("not on a Sunday", {"cancelled": True, "reason": "not on a Sunday"}), (" ", {"cancelled": True})],
)
async def test_the_model_is_told_why_a_person_said_no(reason: str, expected: dict[str, Any], tmp_path: Path) -> None:
    model = Scripted(calls("wipe", path="/"), says("I see."))
    atlas = in_memory_atlas(model, [wipe], store=MemoryStore(), approve=Approvals(wait=True))
    async with serve_and_connect(tmp_path, atlas) as client:
        await client.get("chat.send", sessionKey="s", message="wipe it")
        asked = await client.until("exec.approval_request")
        await client.get("approvals.resolve", approvalId=asked["approvalId"], decision="deny", reason=reason)
        await client.until("chat.final")
    (result,) = model.requests[1].messages[-1].tool_results
    assert (result.error, result.result) == ("declined", expected)


async def test_how_long_a_call_took_and_its_picture_are_the_same_live_and_later(tmp_path: Path) -> None:
    clock = ShiftedClock()

    @tool
    async def draw(context: ToolContext) -> dict[str, Any]:
        """Draw a dot."""
        context.progress("drawing")
        clock.ahead += 0.05
        return {"title": "a dot", "plot": Image("image/png", DOT)}

    atlas = in_memory_atlas(Scripted(calls("draw"), says("Drawn.")), [draw], store=MemoryStore(), clock=clock)
    async with serve_and_connect(tmp_path, atlas) as client:
        await client.get("chat.send", sessionKey="s", message="draw")
        live = await client.until("tool.result")
        await client.until("chat.final")
        messages = (await client.get("chat.history", sessionKey="s"))["messages"]
        (stored,) = [part for message in messages for part in message["parts"] if part["type"] == "tool_result"]
        (line,) = (await client.get("audit.list"))["entries"]
        (copy,) = [
            part
            for message in (await _copied(client))["messages"]
            for part in message["parts"]
            if part["type"] == "tool_result"
        ]
    assert 50 <= live["durationMs"] < 5000
    assert stored["durationMs"] == copy["durationMs"] == live["durationMs"]
    assert abs(line["entry"]["meta"]["duration_ms"] - live["durationMs"]) <= 1
    picture = {"type": "image", "media_type": "image/png", "data": DOT}
    assert live["result"] == stored["result"] == {"title": "a dot", "plot": picture}


async def _copied(client: Any) -> Any:
    key = (await client.get("sessions.fork", sessionKey="s"))["sessionKey"]
    return await client.get("chat.history", sessionKey=key)


async def test_the_wait_for_a_person_is_not_the_tools_time(tmp_path: Path) -> None:
    model, clock = Scripted(calls("wipe", path="/"), says("Done.")), ShiftedClock()
    atlas = in_memory_atlas(model, [wipe], store=MemoryStore(), approve=Approvals(wait=True), clock=clock)
    async with serve_and_connect(tmp_path, atlas) as client:
        await client.get("chat.send", sessionKey="s", message="wipe it")
        asked = await client.until("exec.approval_request")
        clock.ahead += 60
        await client.get("approvals.resolve", approvalId=asked["approvalId"], decision="allow-once")
        assert (await client.until("tool.result"))["durationMs"] < 60_000


async def test_who_comes_in_the_middle_hears_what_a_tool_has_said(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    @tool
    async def count(context: ToolContext) -> str:
        """Count."""
        for number in range(3000):
            context.progress(f"line {number} {'.' * 20}")
        await go_on.wait()
        return "counted"

    atlas: Atlas = in_memory_atlas(Scripted(calls("count"), says("Done.")), [count], store=MemoryStore())
    async with serve_gateway(tmp_path, atlas) as gateway, connect_client(gateway) as client:
        await client.get("chat.send", sessionKey="s", message="count")
        while (await client.until("tool.progress"))["message"][:9] != "line 2999":
            pass
        async with connect_client(gateway) as other:
            (position,) = (await other.get("sessions.subscribe", sessionKey="s"))["runs"]
            ((_, lines),) = position["progress"].items()
            assert lines[-1].startswith("line 2999 ") and 20_000 < sum(map(len, lines)) <= 32 * 1024
            go_on.set()
            await other.until("chat.final")
            assert (await other.get("sessions.subscribe", sessionKey="s"))["runs"] == []
