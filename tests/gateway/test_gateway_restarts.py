"""A gateway that is killed or shut down and started again: nothing acknowledged is lost, and clients can resume."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from gateway_client import Client, text_of
from openai_client import MODEL, connect_openai
from processes import Process, connect_process, run_gateway
from websockets.exceptions import ConnectionClosed

from checks import TIMEOUT

pytestmark = pytest.mark.slow
WORDS = " ".join(f"word{n}" for n in range(60))


def numbers(frames: list[dict[str, Any]]) -> list[int]:
    return [frame["data"]["seq"] for frame in frames]


def effects(home: Path) -> list[str]:
    """Return what the tools did; empty if the process was killed before the first call."""
    path = home / "effects"
    return path.read_text().split() if path.exists() else []


def read_token(process: Process) -> str:
    return (process.home / "token").read_text().strip()


async def receive_until_cut(client: Client) -> None:
    try:
        while True:
            await client.next()
    except ConnectionClosed:
        pass


async def test_answer_continues_after_kill_9(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, WORDS) as first, connect_process(first) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        for _ in range(15):
            await client.until("chat.delta")
        await first.kill()
        await receive_until_cut(client)
        before = client.events(run_id)
    async with run_gateway(tmp_path, WORDS) as second, connect_process(second) as client:
        last = before[-1]["data"]["seq"]
        found = await client.get("sessions.subscribe", sessionKey="main", runs={run_id: last})
        assert [message["role"] for message in found["messages"]] == ["user"]
        await client.until("chat.final")
        after = client.events(run_id)
        assert after[0]["event"] == "chat.reset"
        assert numbers(after) == list(range(513, 513 + len(after)))
        assert numbers(before) == list(range(1, last + 1))
        assert text_of([*before, *after]) == WORDS
        history = (await client.get("chat.history", sessionKey="main"))["messages"]
        assert [message["role"] for message in history] == ["user", "assistant"]
        # a new client replays the same events from the log, without those that were not written before the kill
        async with connect_process(second) as other:
            await other.get("sessions.subscribe", sessionKey="main", runs={run_id: 0})
            await other.until("chat.final")
            logged = other.events(run_id)
            assert logged[-len(after) :] == after
            assert logged[: -len(after)] == before[: len(logged) - len(after)]
            assert text_of(logged) == WORDS


@pytest.mark.parametrize("at", ["tool.call", "tool.result", "chat.final"])
async def test_effect_happens_at_most_once_wherever_the_gateway_is_killed(at: str, tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "!one", WORDS, pause=0.002) as first, connect_process(first) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        await client.until(at)
        await first.kill()
        await receive_until_cut(client)
        before = client.events(run_id)
    async with run_gateway(tmp_path, *["Over."] * 2, pause=0.002) as second, connect_process(second) as client:
        await client.get("sessions.subscribe", sessionKey="main", runs={run_id: before[-1]["data"]["seq"]})
        assert (await client.get("chat.wait", runId=run_id))["status"] == "done"
        await client.get("health.check")
        frames = [*before, *client.events(run_id)]
        assert numbers(frames) == sorted(set(numbers(frames)))
        assert len([frame for frame in frames if frame["event"] == "chat.final"]) == 1
        assert effects(tmp_path) in ([], ["one"])
        roles = [message["role"] for message in (await client.get("chat.history", sessionKey="main"))["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant"]


async def test_approval_survives_a_kill_and_is_resolved_afterwards(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "?two") as first, connect_process(first) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        approval = await client.until("exec.approval_request")
        await first.kill()
    async with run_gateway(tmp_path, "Done.", pause=0.001) as second, connect_process(second) as client:
        (waiting,) = (await client.get("approvals.list"))["approvals"]
        assert waiting["approvalId"] == approval["approvalId"]
        await client.get("sessions.subscribe", sessionKey="main", runs={run_id: approval["seq"]})
        assert await client.get("exec.approve", approvalId=approval["approvalId"]) == {"ok": True}
        await client.until("chat.final")
        assert effects(tmp_path) == ["two"]


async def test_background_response_continues_after_kill_9(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "!one", WORDS) as first, connect_openai(first, read_token(first)) as client:
        queued = await client.responses.create(model=MODEL, input="Go.", background=True)
        stream = await client.responses.retrieve(queued.id, stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                break
        await stream.close()
        await first.kill()
    async with run_gateway(tmp_path, WORDS) as second, connect_openai(second, read_token(second)) as client:
        stream = await client.responses.retrieve(queued.id, stream=True)
        assert [event.type async for event in stream][-1] == "response.completed"
        response = await client.responses.retrieve(queued.id)
        kinds = [item.type for item in response.output]
        assert (response.status, response.output_text, kinds) == ("completed", WORDS, ["mcp_call", "message"])
        assert effects(tmp_path) == ["one"]


async def test_sigterm_lets_a_short_turn_finish_and_exits_with_0(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, "Soon over.", pause=0.05) as process, connect_process(process) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        await client.until("chat.started")
        stopping = asyncio.create_task(process.stop())
        assert await client.closed() == (1012, "the gateway is shutting down")
        assert await stopping == 0
        names = [frame["event"] for frame in client.events()]
        assert "server.shutdown" in names
        assert client.events(run_id)[-1]["event"] == "chat.final"


async def test_sigterm_leaves_a_long_turn_for_the_next_start(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, WORDS, pause=0.2) as process, connect_process(process) as client:
        run_id = (await client.get("chat.send", sessionKey="main", message="Go"))["runId"]
        await client.until("chat.delta")
        stopping = asyncio.create_task(process.stop())
        assert (await client.closed())[0] == 1012
        assert await asyncio.wait_for(stopping, TIMEOUT) == 0
        before = client.events(run_id)
        assert {"chat.final", "chat.error"}.isdisjoint(frame["event"] for frame in before)
    async with run_gateway(tmp_path, WORDS, pause=0.001) as second, connect_process(second) as client:
        last = before[-1]["data"]["seq"]
        await client.get("sessions.subscribe", sessionKey="main", runs={run_id: last})
        await client.until("chat.final")
        assert text_of([*before, *client.events(run_id)]) == WORDS


async def test_no_turn_starts_during_shutdown(tmp_path: Path) -> None:
    async with run_gateway(tmp_path, WORDS, "no", pause=0.1) as process, connect_process(process) as client:
        await client.get("chat.send", sessionKey="main", message="Go")
        stopping = asyncio.create_task(process.stop())
        await client.until("server.shutdown")
        refused = await client.request("chat.send", sessionKey="other", message="Me too")
        assert (refused["error"]["code"], refused["error"]["data"]["kind"]) == (-32004, "UNAVAILABLE")
        assert refused["error"]["data"]["retryable"] is True and refused["error"]["data"]["retryAfterMs"] > 0
        assert await stopping == 0


async def test_shutdown_is_limited_although_the_disk_hangs(tmp_path: Path) -> None:
    grace = {"GRACE": "1"}
    async with run_gateway(tmp_path, "!a", "Hi.", environment=grace) as process, connect_process(process) as client:
        await client.get("chat.send", sessionKey="main", message="Go")
        await client.until("tool.call")
        (tmp_path / "slow").write_text("600")  # longer than `stop` waits
        assert await process.stop() == 0
    (tmp_path / "slow").unlink()
    async with run_gateway(tmp_path, "Hi.", environment=grace) as process, connect_process(process) as client:
        await client.get("sessions.subscribe", sessionKey="main")
        await client.until("chat.final")
