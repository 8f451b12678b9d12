"""What a cluster says of itself: who is there and how they stand, at the doors of its processes and in its database."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from cluster_members import members

from atlas_agents.core.errors import ConfigError
from atlas_agents.dispatch.members import (
    Backlog,
    ClusterStatus,
    JobCounts,
    KeyCooldown,
    MemberStatus,
    TurnCounts,
    read_status,
)
from atlas_agents.storage.postgres import PostgresStore
from checks import until
from gateway.gateway_client import Client, http
from gateway.processes import Process, connect_process
from stores.postgres_server import PostgresServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
TAKEOVER = 40.0


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


async def look(server: PostgresServer) -> ClusterStatus:
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as line:
        return await read_status(line)


def of(status: ClusterStatus, process: Process) -> MemberStatus | None:
    return next((each for each in status.members if each.pid == process.pid), None)


async def asked(process: Any, path: str, **headers: str) -> tuple[int, str]:
    code, answer = await http(process, f"GET {path}", **headers)
    return code, answer.partition("\r\n\r\n")[2]


async def figures(process: Any) -> dict[str, float]:
    """What the door of a process counts."""
    _, text = await asked(process, "/metrics")
    lines = [line for line in text.splitlines() if line.startswith("atlas_") and "_created" not in line]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


async def question(client: Client, session: str) -> str:
    """A turn that waits for a person; its run."""
    run = (await client.get("chat.send", sessionKey=session, message="?pay"))["runId"]
    await client.until("exec.approval_request")
    return run


async def test_one_look_shows_who_is_there_who_leads_and_who_is_lost(server: PostgresServer, tmp_path: Path) -> None:
    async with AsyncExitStack() as up:
        front, first = await members(up, server, tmp_path, "gateway", "worker")
        (second,) = await members(up, server, tmp_path, "worker")
        client = await up.enter_async_context(connect_process(front))
        await question(client, "s")
        await client.get("chat.send", sessionKey="s", message="later")

        async def leading() -> ClusterStatus | None:
            found = await look(server)
            return found if any(each.leads for each in found.members) else None

        found = await until(leading)
        assert [each.role for each in found.members] == ["gateway", "worker", "worker"]
        assert found.turns == TurnCounts(open=2, running=0, waiting=1, queued=1)
        assert (found.queue, found.jobs, found.problems) == (Backlog(0, 1, 0.0), JobCounts(), ())
        gateway = of(found, front)
        assert gateway is not None and (gateway.capacity, gateway.leads, gateway.draining) == (0, False, False)
        assert gateway.door == f"http://127.0.0.1:{front.port}" and gateway.heard < 8
        leader = next(each for each in (first, second) if (row := of(found, each)) and row.leads)
        other = second if leader is first else first
        assert sum(each.at_hand for each in found.members) == 1

        async def tells() -> bool:
            told = await figures(leader)
            return told["atlas_cluster_leads"] == 1 and "atlas_cluster_queue_lag_seconds" in told

        await until(tells)
        assert "atlas_cluster_queue_lag_seconds" not in await figures(other)
        await leader.kill()
        lost = await taken_over(server, leader, other)
        assert not lost.leads and lost.at_hand == 0


async def taken_over(server: PostgresServer, lost: Process, heir: Process) -> MemberStatus:
    """How a member stands that was killed, once another one leads and has its turn."""
    async with asyncio.timeout(TAKEOVER):
        while True:
            found = await look(server)
            there, here = of(found, lost), of(found, heir)
            if there is not None and there.lost and here is not None and here.leads and here.at_hand == 1:
                return there
            await asyncio.sleep(0.2)


async def test_the_door_of_a_worker_tells_how_it_is_and_nothing_else(server: PostgresServer, tmp_path: Path) -> None:
    async with AsyncExitStack() as up:
        front, worker = await members(up, server, tmp_path, "gateway", "worker")
        assert (await asked(worker, "/healthz"))[0] == (await asked(worker, "/readyz"))[0] == 200
        assert (await asked(worker, "/healthz", Host="evil.example"))[0] == 421
        assert (await asked(worker, "/healthz", Origin="http://evil.example"))[0] == 403
        assert (await asked(worker, "/metrics", Authorization="Bearer wrong"))[0] == 401
        for path in ("/", "/ws", "/v1/models", "/protocol.json", "/mcp"):
            assert (await asked(worker, path))[0] == 404, path
        async with connect_process(front) as client:
            await client.get("chat.send", sessionKey="s", message="go")
            await client.until("chat.final")

        async def over() -> dict[str, float] | None:
            found = await figures(worker)
            return found if found["atlas_worker_finished_total"] else None

        found = await until(over)
        assert {name: found[name] for name in found if name.startswith("atlas_worker")} == {
            "atlas_worker_capacity": 64.0,
            "atlas_worker_runs": 0.0,
            "atlas_worker_heartbeat_age_seconds": found["atlas_worker_heartbeat_age_seconds"],
            "atlas_worker_taken_total": 1.0,
            "atlas_worker_finished_total": 1.0,
            "atlas_worker_given_back_total": 0.0,
        }
        assert found['atlas_runs_ended_total{how="done"}'] == 1 and found["atlas_draining"] == 0

        async def ready(code: int) -> None:
            async with asyncio.timeout(TAKEOVER):
                while (await asked(worker, "/readyz"))[0] != code:  # noqa: ASYNC110 - it is another process
                    await asyncio.sleep(0.05)

        server.stop()
        await ready(503)
        assert (await asked(worker, "/healthz"))[0] == 200
        server.start()
        await ready(200)


async def test_a_worker_that_drains_takes_nothing_new_ends_what_it_can_and_leaves_the_rest(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRACE", "8")
    async with AsyncExitStack() as up:
        front, worker = await members(up, server, tmp_path, "gateway", "worker")
        client = await up.enter_async_context(connect_process(front))
        waits = await question(client, "waits")
        ends = (await client.get("chat.send", sessionKey="ends", message="ends"))["runId"]
        await client.until("tool.result")
        stopping = asyncio.create_task(worker.stop())

        async def draining() -> bool:
            return (await asked(worker, "/readyz")) == (503, '{"status":"draining"}')

        await until(draining)
        new = (await client.get("chat.send", sessionKey="new", message="new"))["runId"]
        final = await client.until("chat.final")
        assert final["runId"] == ends
        found = await look(server)
        member = of(found, worker)
        assert member is not None and member.draining and not member.leads
        assert any("No worker is running" in words for words in found.problems)
        assert await stopping == 0
        found = await look(server)
        assert of(found, worker) is None and found.queue.waiting == 2 and found.queue.lag > 0
        await members(up, server, tmp_path, "worker")
        final = await client.until("chat.final")
        assert final["runId"] == new
        assert (await client.get("chat.abort", runId=waits))["aborted"] == [waits]


@pytest.mark.parametrize("role", ["worker", "all"])
async def test_told_twice_to_stop_a_member_waits_for_no_turn(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    monkeypatch.setenv("GRACE", "100")
    async with AsyncExitStack() as up:
        front, busy = await members(up, server, tmp_path, "gateway", role)
        client = await up.enter_async_context(connect_process(front))
        await question(client, "s")
        os.kill(busy.pid, signal.SIGTERM)

        async def draining() -> bool:
            member = of(await look(server), busy)
            return member is not None and member.draining

        await until(draining)
        assert await busy.stop() == 0
        found = await look(server)
        assert (of(found, busy), found.queue.waiting) == (None, 1)


async def test_a_gateway_that_stops_says_so_and_another_one_tells_the_rest(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with AsyncExitStack() as up:
        front, other, _ = await members(up, server, tmp_path, "gateway", "gateway", "worker")
        async with connect_process(front) as client:
            run = (await client.get("chat.send", sessionKey="s", message="go"))["runId"]
            await client.until("tool.result")
            stopping = asyncio.create_task(front.stop())
            await client.until("server.shutdown")
            begun = client.events(run)
            assert await stopping == 0
        async with connect_process(other) as again:
            await again.get("sessions.subscribe", sessionKey="s", runs={run: begun[-1]["data"]["seq"]})
            await again.until("chat.final")
            numbers = [frame["data"]["seq"] for frame in [*begun, *again.events(run)]]
        assert numbers == list(range(1, len(numbers) + 1))
        assert [each.role for each in (await look(server)).members] == ["gateway", "worker"]


async def test_a_process_that_does_both_counts_a_turn_once_and_tells_the_lag_of_all(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with AsyncExitStack() as up:
        (both,) = await members(up, server, tmp_path, "all")
        async with connect_process(both) as client:
            await client.get("chat.send", sessionKey="s", message="go")
            await client.until("chat.final")

        async def counted() -> dict[str, float] | None:
            found = await figures(both)
            return (
                found if found["atlas_worker_finished_total"] and "atlas_cluster_queue_lag_seconds" in found else None
            )

        found = await until(counted)
        assert found['atlas_runs_ended_total{how="done"}'] == found["atlas_worker_taken_total"] == 1


async def test_where_no_cluster_has_worked_the_look_says_what_to_do(server: PostgresServer) -> None:
    with pytest.raises(ConfigError, match="Atlas has never used this database; start a member"):
        await look(server)
    store = PostgresStore(server.url)
    await store.open()
    await store.close()
    with pytest.raises(ConfigError, match="a cluster has never used this database; start a member"):
        await look(server)


async def test_keys_that_rest_are_named_by_what_does_not_give_them_away(server: PostgresServer, tmp_path: Path) -> None:
    async with AsyncExitStack() as up:
        await members(up, server, tmp_path, "gateway")
        async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as line:
            put = "INSERT INTO atlas.records VALUES ('default', 'pace', %s, convert_to(%s, 'UTF8'), 1)"
            body = '{"requests": 0, "tokens": 0, "rest": %s}'
            await line.execute(put, ("openai:1", body % "32503680000"))
            await line.execute(put, ("openai:2", body % "1"))
            (found,) = (await read_status(line)).keys
            assert isinstance(found, KeyCooldown) and found.name == "openai:1" and found.seconds > 0
