"""Cluster of real processes: gateways, workers and Postgres, some of which are killed."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from chaos import chaos
from gateway_client import Client
from member_processes import members
from processes import connect_process

from checks import TIMEOUT, wait_until
from stores.postgres_server import PostgresServer

pytestmark = pytest.mark.slow
"""Seconds; the target is 15, but the machine may be busy."""


def effects(home: Path) -> Counter[str]:
    """Count the side effects."""
    path = home / "effects"
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter([line.split(" ", 1)[1] for line in lines])


async def wait_for_effects(home: Path, count: int) -> None:
    """Wait for this many side effects."""

    async def enough_effects() -> bool:
        return sum(effects(home).values()) >= count

    await wait_until(enough_effects)


async def wait_for_events(client: Client, event: str, count: int) -> None:
    """Wait until a client has received this event `count` times."""
    while [frame["event"] for frame in client.events()].count(event) < count:
        await client.next()


async def receive_all(client: Client, run_ids: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the frames of these runs, up to the terminal event of each."""
    ended: set[str] = {e["data"]["runId"] for e in client.events() if e["event"] in ("chat.final", "chat.error")}
    while not ended >= set(run_ids):
        frame = json.loads(await asyncio.wait_for(client.socket.recv(), TIMEOUT))
        client.frames.append(frame)
        if frame.get("event") in ("chat.final", "chat.error"):
            ended.add(frame["data"]["runId"])
    return {id: client.events(id) for id in run_ids}


def numbers(frames: list[dict[str, Any]]) -> list[int]:
    return [frame["data"]["seq"] for frame in frames]


async def test_turns_of_a_killed_worker_continue_without_repeated_effects(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        front, other, first, _ = await members(stack, server, tmp_path, "gateway", "gateway", "worker", "worker")
        client = await stack.enter_async_context(connect_process(front))
        sent = [await client.get("chat.send", sessionKey=f"s{n}", message=f"turn{n}") for n in range(6)]
        ids = [each["runId"] for each in sent]
        await wait_for_effects(tmp_path, 4)
        await first.kill()
        received = await receive_all(client, ids)
        assert {frames[-1]["event"] for frames in received.values()} == {"chat.final"}
        for n, id in enumerate(ids):
            assert "".join(_text(received[id])).endswith(f"All 3 of turn{n}.")
            assert numbers(received[id]) == sorted(set(numbers(received[id])))
        assert set(effects(tmp_path).values()) == {1}
        missing = {f"turn{n} {step}" for n in range(6) for step in (1, 2, 3)} - effects(tmp_path).keys()
        results = [frame["data"] for frames in received.values() for frame in frames if frame["event"] == "tool.result"]
        unknown = [
            result for result in results if result["status"] == "unknown"
        ]  # killed before or after the side effect
        assert len(missing) <= len(unknown) <= 6
        reconnected = await stack.enter_async_context(connect_process(other))
        for n, id in enumerate(ids):
            await reconnected.get("sessions.subscribe", sessionKey=f"s{n}", runs={id: 0})
        replayed = await receive_all(reconnected, ids)
        assert replayed == received


async def test_client_that_moves_to_another_gateway_receives_exactly_the_rest(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        front, other, _ = await members(stack, server, tmp_path, "gateway", "gateway", "worker")
        other_client = await stack.enter_async_context(connect_process(other))
        await other_client.get("sessions.subscribe", sessionKey="s")
        async with connect_process(front) as client:
            run = (await client.get("chat.send", sessionKey="s", message="go"))["runId"]
            await client.until("tool.result")
            before = client.events(run)
            await front.kill()
        await other_client.until("tool.result")
        reconnected = await stack.enter_async_context(connect_process(other))
        await reconnected.get("sessions.subscribe", sessionKey="s", runs={run: before[-1]["data"]["seq"]})
        rest = await receive_all(reconnected, [run])
        whole = await receive_all(other_client, [run])
        assert [*before, *rest[run]] == whole[run]
        assert numbers(whole[run]) == list(range(1, len(whole[run]) + 1))


async def test_gateway_answers_approvals_and_cancels_turns_of_a_worker(server: PostgresServer, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        front, other, _ = await members(stack, server, tmp_path, "gateway", "all", "worker")
        client = await stack.enter_async_context(connect_process(front))
        person = await stack.enter_async_context(connect_process(other))
        await person.get("sessions.subscribe", sessionKey="s")
        run = (await client.get("chat.send", sessionKey="s", message="?pay"))["runId"]
        request = await person.until("exec.approval_request")
        await person.get("approvals.resolve", approvalId=request["approvalId"], decision="allow-once")
        await wait_for_events(client, "tool.result", 1)
        await wait_for_events(person, "exec.approval_request", 2)
        assert (await person.get("chat.abort", runId=run))["aborted"] == [run]
        final = await client.until("chat.final")
        assert final["cancelled"]
        assert effects(tmp_path) == {"?pay 1": 1}
        await person.get("sessions.list")
        await client.get("sessions.update", sessionKey="s", label="Bills")
        while (await person.until("session.updated"))["session"]["label"] != "Bills":
            pass


def _text(frames: list[dict[str, Any]]) -> list[str]:
    """Return the text deltas that were not withdrawn."""
    texts: list[str] = []
    for frame in frames:
        if frame["event"] == "chat.delta":
            texts.append(frame["data"]["text"])
        elif frame["event"] == "chat.reset":
            texts.clear()
    return texts


async def test_random_kills_lose_and_repeat_nothing() -> None:
    report = await chaos(24, seed=2, kills=4, delay=1.5)
    assert (report.lost, report.repeated, report.orphaned, report.silent, report.failed) == (0, 0, 0, 0, []), report
