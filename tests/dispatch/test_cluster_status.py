"""Cluster status in the database, and health and metrics endpoints of its processes."""

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from gateway_client import Client, http
from member_processes import members
from processes import Process, connect_process

from atlas_agents.app.serve import Operations
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Secret
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
from checks import TIMEOUT, wait_until
from stores.postgres_server import PostgresServer

pytestmark = pytest.mark.slow


async def read(server: PostgresServer) -> ClusterStatus:
    async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
        return await read_status(connection)


def find_member(status: ClusterStatus, process: Process) -> MemberStatus | None:
    return next((each for each in status.members if each.pid == process.pid), None)


async def get(process: Any, path: str, **headers: str) -> tuple[int, str]:
    code, answer = await http(process, f"GET {path}", **headers)
    return code, answer.partition("\r\n\r\n")[2]


async def read_metrics(process: Any) -> dict[str, float]:
    """Read the metrics of a process."""
    _, text = await get(process, "/metrics")
    lines = [
        connection
        for connection in text.splitlines()
        if connection.startswith("atlas_") and "_created" not in connection
    ]
    return {connection.rpartition(" ")[0]: float(connection.rpartition(" ")[2]) for connection in lines}


async def start_waiting_turn(client: Client, session: str) -> str:
    """Start a turn that waits for an approval and return its run id."""
    run = (await client.get("chat.send", sessionKey=session, message="?pay"))["runId"]
    await client.until("exec.approval_request")
    return run


async def test_status_shows_members_leader_and_lost_members(server: PostgresServer, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        front, first = await members(stack, server, tmp_path, "gateway", "worker")
        (second,) = await members(stack, server, tmp_path, "worker")
        client = await stack.enter_async_context(connect_process(front))
        await start_waiting_turn(client, "s")
        await client.get("chat.send", sessionKey="s", message="later")

        async def leading() -> ClusterStatus | None:
            found = await read(server)
            return found if any(each.leads for each in found.members) else None

        found = await wait_until(leading)
        assert [each.role for each in found.members] == ["gateway", "worker", "worker"]
        assert found.turns == TurnCounts(open=2, running=0, waiting=1, queued=1)
        assert (found.queue, found.jobs, found.problems) == (Backlog(0, 1, 0.0), JobCounts(), ())
        gateway = find_member(found, front)
        assert gateway is not None and (gateway.capacity, gateway.leads, gateway.draining) == (0, False, False)
        assert gateway.address == f"http://127.0.0.1:{front.port}" and gateway.heartbeat_age < 8
        leader = next(each for each in (first, second) if (row := find_member(found, each)) and row.leads)
        other = second if leader is first else first
        assert sum(each.runs for each in found.members) == 1

        async def leader_has_lag() -> bool:
            metrics = await read_metrics(leader)
            return metrics["atlas_cluster_leads"] == 1 and "atlas_cluster_queue_lag_seconds" in metrics

        await wait_until(leader_has_lag)
        assert "atlas_cluster_queue_lag_seconds" not in await read_metrics(other)
        await leader.kill()
        lost = await wait_for_takeover(server, leader, other)
        assert not lost.leads and lost.runs == 0


async def test_operations_view_has_the_figures_of_all_workers(server: PostgresServer, tmp_path: Path) -> None:
    """The gateway executes nothing: latencies, outcomes and models come from the workers, each turn once."""
    turns = 6
    async with AsyncExitStack() as stack:
        front, *workers = await members(stack, server, tmp_path, "gateway", "worker", "worker")
        client = await stack.enter_async_context(connect_process(front))
        runs = [
            (await client.get("chat.send", sessionKey=f"s{number}", message="go"))["runId"] for number in range(turns)
        ]
        for run in runs:
            await client.get("chat.wait", runId=run)

        async def reported() -> dict[str, Any] | None:
            live = (await client.get("ops.status"))["live"]
            return live if live["ended"]["done"] == turns else None

        live = await wait_until(reported, 0.1)
        assert (live["ended"]["failed"], live["duration"]["count"], live["firstOutput"]["count"]) == (0, turns, turns)
        assert 0.75 <= live["duration"]["p50"] <= live["duration"]["p99"], "three calls take a quarter second each"
        (model,) = live["models"]
        assert (model["requests"], model["failures"], model["firstChunk"]["count"]) == (4 * turns, 0, 4 * turns)
        found = await read(server)
        assert {each.pid for each in found.members if each.figures} == {each.pid for each in workers}
        assert sum(each.figures.done for each in found.members if each.figures) == turns
        await workers[0].kill()

        async def without_the_lost_one() -> bool:
            alive = [each for each in (await read(server)).members if not each.lost and each.figures]
            live = (await client.get("ops.status"))["live"]
            return len(alive) == 1 and live["ended"]["done"] == sum(each.figures.done for each in alive if each.figures)

        await wait_until(without_the_lost_one, 0.2)


async def test_status_needs_no_connection_of_its_own(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a connection was opened")

    async with AsyncExitStack() as stack:
        await members(stack, server, tmp_path, "gateway")
        store = PostgresStore(server.url)
        await store.open()
        stack.push_async_callback(store.close)
        settings = Settings(home=tmp_path, workspace=tmp_path, role="gateway", database_url=Secret(server.url))
        operations = Operations(settings, store)
        await operations.cluster()
        monkeypatch.setattr(psycopg.AsyncConnection, "connect", refuse)
        for _ in range(5):
            found = await operations.cluster()
            assert found is not None and [each.role for each in found.members] == ["gateway"]


async def wait_for_takeover(server: PostgresServer, lost: Process, successor: Process) -> MemberStatus:
    """Wait until `successor` leads and has the turn of the killed member, and return the status of the latter."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            found = await read(server)
            old, new = find_member(found, lost), find_member(found, successor)
            if old is not None and old.lost and new is not None and new.leads and new.runs == 1:
                return old
            await asyncio.sleep(0.2)


async def test_worker_serves_only_health_and_metrics(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(PostgresServer())
        front, worker = await members(stack, server, tmp_path, "gateway", "worker")
        assert (await get(worker, "/healthz"))[0] == (await get(worker, "/readyz"))[0] == 200
        assert (await get(worker, "/healthz", Host="evil.example"))[0] == 421
        assert (await get(worker, "/healthz", Origin="http://evil.example"))[0] == 403
        assert (await get(worker, "/metrics", Authorization="Bearer wrong"))[0] == 401
        for path in ("/", "/ws", "/v1/models", "/protocol.json", "/mcp"):
            assert (await get(worker, path))[0] == 404, path
        async with connect_process(front) as client:
            await client.get("chat.send", sessionKey="s", message="go")
            await client.until("chat.final")

        async def finished() -> dict[str, float] | None:
            found = await read_metrics(worker)
            return found if found["atlas_worker_finished_total"] else None

        found = await wait_until(finished)
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
            async with asyncio.timeout(TIMEOUT):
                while (await get(worker, "/readyz"))[0] != code:  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.05)

        server.stop()
        await ready(503)
        assert (await get(worker, "/healthz"))[0] == 200
        server.start()
        await ready(200)


async def test_draining_worker_finishes_its_turns_and_releases_the_rest(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRACE", "8")
    async with AsyncExitStack() as stack:
        front, worker = await members(stack, server, tmp_path, "gateway", "worker")
        client = await stack.enter_async_context(connect_process(front))
        waits = await start_waiting_turn(client, "waits")
        ends = (await client.get("chat.send", sessionKey="ends", message="ends"))["runId"]
        await client.until("tool.result")
        stopping = asyncio.create_task(worker.stop())

        async def draining() -> bool:
            return (await get(worker, "/readyz")) == (503, '{"status":"draining"}')

        await wait_until(draining)
        new = (await client.get("chat.send", sessionKey="new", message="new"))["runId"]
        final = await client.until("chat.final")
        assert final["runId"] == ends
        found = await read(server)
        member = find_member(found, worker)
        assert member is not None and member.draining and not member.leads
        assert any("No worker is running" in problem for problem in found.problems)
        assert await stopping == 0
        found = await read(server)
        assert find_member(found, worker) is None and found.queue.waiting == 2 and found.queue.lag > 0
        await members(stack, server, tmp_path, "worker")
        final = await client.until("chat.final")
        assert final["runId"] == new
        assert (await client.get("chat.abort", runId=waits))["aborted"] == [waits]


@pytest.mark.parametrize("role", ["worker", "all"])
async def test_second_signal_stops_a_member_at_once(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    monkeypatch.setenv("GRACE", "100")
    async with AsyncExitStack() as stack:
        front, busy = await members(stack, server, tmp_path, "gateway", role)
        client = await stack.enter_async_context(connect_process(front))
        await start_waiting_turn(client, "s")
        os.kill(busy.pid, signal.SIGTERM)

        async def draining() -> bool:
            member = find_member(await read(server), busy)
            return member is not None and member.draining

        await wait_until(draining)
        assert await busy.stop() == 0
        found = await read(server)
        assert (find_member(found, busy), found.queue.waiting) == (None, 1)


async def test_stopping_gateway_notifies_clients_that_continue_at_another(
    server: PostgresServer, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        front, other, _ = await members(stack, server, tmp_path, "gateway", "gateway", "worker")
        async with connect_process(front) as client:
            run = (await client.get("chat.send", sessionKey="s", message="go"))["runId"]
            await client.until("tool.result")
            stopping = asyncio.create_task(front.stop())
            await client.until("server.shutdown")
            before = client.events(run)
            assert await stopping == 0
        async with connect_process(other) as second:
            await second.get("sessions.subscribe", sessionKey="s", runs={run: before[-1]["data"]["seq"]})
            await second.until("chat.final")
            numbers = [frame["data"]["seq"] for frame in [*before, *second.events(run)]]
        assert numbers == list(range(1, len(numbers) + 1))
        assert [each.role for each in (await read(server)).members] == ["gateway", "worker"]


async def test_process_with_both_roles_counts_a_turn_once(server: PostgresServer, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        (process,) = await members(stack, server, tmp_path, "all")
        async with connect_process(process) as client:
            await client.get("chat.send", sessionKey="s", message="go")
            await client.until("chat.final")

        async def counted() -> dict[str, float] | None:
            found = await read_metrics(process)
            return (
                found if found["atlas_worker_finished_total"] and "atlas_cluster_queue_lag_seconds" in found else None
            )

        found = await wait_until(counted)
        assert found['atlas_runs_ended_total{how="done"}'] == found["atlas_worker_taken_total"] == 1


async def test_status_of_a_database_without_a_cluster_is_an_error(server: PostgresServer) -> None:
    with pytest.raises(ConfigError, match="Atlas has never used this database; start a member"):
        await read(server)
    store = PostgresStore(server.url)
    await store.open()
    await store.close()
    with pytest.raises(ConfigError, match="a cluster has never used this database; start a member"):
        await read(server)


async def test_status_names_provider_keys_in_cooldown_by_hash(server: PostgresServer, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        await members(stack, server, tmp_path, "gateway")
        async with await psycopg.AsyncConnection.connect(server.url, autocommit=True) as connection:
            insert = "INSERT INTO atlas.records VALUES ('default', 'pace', %s, convert_to(%s, 'UTF8'), 1)"
            body = '{"requests": 0, "tokens": 0, "cooldown_end": %s}'
            await connection.execute(insert, ("openai:1", body % "32503680000"))
            await connection.execute(insert, ("openai:2", body % "1"))
            (found,) = (await read_status(connection)).keys
            assert isinstance(found, KeyCooldown) and found.name == "openai:1" and found.seconds > 0
