"""What a user saw live is also stored: partial answers, tool output, durations, images and reasons of denials."""

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
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from checks import ShiftedClock

DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="


@tool(confirm=True)
async def wipe(path: str) -> str:
    """Remove something."""
    return f"removed {path}"


async def test_partial_answer_of_a_cancelled_turn_is_in_every_view(tmp_path: Path) -> None:
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


async def test_steering_message_has_a_terminal_event_after_a_crash() -> None:
    reached, release, store = asyncio.Event(), asyncio.Event(), MemoryStore()

    @tool(effect="pure")
    async def wait() -> str:
        """Wait."""
        reached.set()
        await release.wait()
        return "done"

    async with in_memory_atlas(Scripted(calls("wait"), says("Both.")), [wait], store=store) as atlas:
        first = atlas.send("1", session="s")
        await reached.wait()
        steering = atlas.send("2", session="s", when_busy="steer")
        await steering.accepted()
        release.set()
        await steering.reply()
    row = await store.run("default", steering.stream_id)
    assert row is not None
    await finalize_run(store, "default", row)
    (event,) = await store.events("default", steering.stream_id)
    assert f'"enteredRunId":"{first.stream_id}"' in event.body.decode()


async def _remove_terminal_event(store: MemoryStore, row: RunRow) -> None:
    """Remove the terminal event, as after a crash between the end of the run and its event; then finalize the run."""
    last = "SELECT max(e.id) FROM runs r JOIN event_rows e ON e.id >> 31 = r.number AND r.id = ?"
    store._connect().execute(f"DELETE FROM event_rows WHERE id = ({last})", (row.id,))
    await finalize_run(store, "default", row)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [("not on a Sunday", {"cancelled": True, "reason": "not on a Sunday"}), (" ", {"cancelled": True})],
)
async def test_model_receives_the_reason_of_a_denial(reason: str, expected: dict[str, Any], tmp_path: Path) -> None:
    model = Scripted(calls("wipe", path="/"), says("I see."))
    atlas = in_memory_atlas(model, [wipe], store=MemoryStore(), approve=Approvals(wait=True))
    async with serve_and_connect(tmp_path, atlas) as client:
        await client.get("chat.send", sessionKey="s", message="wipe it")
        approval = await client.until("exec.approval_request")
        await client.get("approvals.resolve", approvalId=approval["approvalId"], decision="deny", reason=reason)
        await client.until("chat.final")
    (result,) = model.requests[1].messages[-1].tool_results
    assert (result.error, result.result) == ("declined", expected)


async def test_duration_and_image_of_a_call_are_the_same_live_and_stored(tmp_path: Path) -> None:
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
            for message in (await _read_fork(client))["messages"]
            for part in message["parts"]
            if part["type"] == "tool_result"
        ]
    assert 50 <= live["durationMs"] < 30_000
    assert stored["durationMs"] == copy["durationMs"] == live["durationMs"]
    assert abs(line["entry"]["meta"]["duration_ms"] - live["durationMs"]) <= 1
    picture = {"type": "image", "media_type": "image/png", "data": DOT}
    assert live["result"] == stored["result"] == {"title": "a dot", "plot": picture}


async def _read_fork(client: Any) -> Any:
    key = (await client.get("sessions.fork", sessionKey="s"))["sessionKey"]
    return await client.get("chat.history", sessionKey=key)


async def test_duration_of_a_call_excludes_the_wait_for_approval(tmp_path: Path) -> None:
    model, clock = Scripted(calls("wipe", path="/"), says("Done.")), ShiftedClock()
    atlas = in_memory_atlas(model, [wipe], store=MemoryStore(), approve=Approvals(wait=True), clock=clock)
    async with serve_and_connect(tmp_path, atlas) as client:
        await client.get("chat.send", sessionKey="s", message="wipe it")
        approval = await client.until("exec.approval_request")
        clock.ahead += 60
        await client.get("approvals.resolve", approvalId=approval["approvalId"], decision="allow-once")
        assert (await client.until("tool.result"))["durationMs"] < 60_000


async def test_snapshot_contains_the_recent_output_of_a_tool(tmp_path: Path) -> None:
    released = asyncio.Event()

    @tool
    async def count(context: ToolContext) -> str:
        """Count."""
        for number in range(3000):
            context.progress(f"line {number} {'.' * 20}")
        await released.wait()
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
            released.set()
            await other.until("chat.final")
            assert (await other.get("sessions.subscribe", sessionKey="s"))["runs"] == []
