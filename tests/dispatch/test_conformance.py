"""Dispatcher conformance: the same cases on `inline` and on a cluster, with real processes and databases.

Each case is checked against the invariants of the crash tests: stored rows, side effects recorded outside of the
database, and what a client received that reconnects whenever its connection is lost.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from conformance_checks import check_invariants, statuses
from conformance_client import ReconnectingClient
from conformance_processes import DispatcherSetup, ProcessGroup, start_processes
from processes import connect_process

from atlas_agents.core.messages import new_id
from atlas_agents.tools.journal import MAX_RESUMES_WITHOUT_PROGRESS
from checks import wait_until
from stores.postgres_server import PostgresServer

Kind: TypeAlias = Literal["inline", "inline on Postgres", "cluster"]
Make: TypeAlias = Callable[..., DispatcherSetup]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
on_all = pytest.mark.parametrize("kind", ["inline", "inline on Postgres", "cluster"])
on_both = pytest.mark.parametrize("kind", ["inline", "cluster"])
OUTAGE = float(os.environ.get("OUTAGE_SECONDS", "8"))
TIMEOUT = 120.0 + OUTAGE
"""Seconds; exceeded only by a defect."""


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Return a function that configures a dispatcher with its own database."""

    def build(kind: Kind, **more: Any) -> DispatcherSetup:
        if kind == "inline":
            return DispatcherSetup(str(tmp_path / "atlas.db"), tmp_path, **more)
        server: PostgresServer = request.getfixturevalue("postgres_server")
        name = "c" + new_id().replace("-", "")
        return DispatcherSetup(server.made(name), tmp_path, inline=kind != "cluster", **more)

    return build


@asynccontextmanager
async def run_dispatcher(
    setup: DispatcherSetup, *roles: str
) -> AsyncGenerator[tuple[ProcessGroup, ReconnectingClient], None]:
    """Run a dispatcher, with a client."""
    async with (
        asyncio.timeout(TIMEOUT),
        start_processes(setup, *(roles or ("gateway", "worker", "worker"))) as processes,
    ):
        client = ReconnectingClient(processes)
        try:
            yield processes, client
        finally:
            await client.close()


@on_all
async def test_turns_of_a_killed_process_continue_without_repeated_effects(kind: Kind, make: Make) -> None:
    setup = make(kind)
    async with run_dispatcher(setup) as (processes, client):
        for n in range(4):
            await client.send("three rounds", f"s{n}")
        await processes.kill(await processes.wait_for_effects(3))
        await client.wait_all()
        evidence = await check_invariants(setup, client)
        assert {trace.row.status for trace in evidence.traces.values()} == {"done"}
        assert statuses(evidence).get("unknown", 0) <= 4  # at most the call during which each turn was killed


async def test_suspended_process_that_continues_changes_nothing(make: Make) -> None:
    setup = make("cluster")  # an inline process that is suspended still holds its database
    async with run_dispatcher(setup, "gateway", "worker") as (processes, client), AsyncExitStack() as stack:
        acting = await client.send("three rounds", "s0")
        zombie = await processes.wait_for_effects(1)
        speaking = await client.send("text", "s1")
        await wait_until(lambda: client.has_event(speaking, "chat.delta"))
        listeners = [await stack.enter_async_context(connect_process(each)) for each in processes.gateways]
        for listener in listeners:
            await listener.get("sessions.subscribe", sessionKey="s1", runs={speaking: 0})
        processes.suspend(zombie)
        await processes.start("worker")
        await client.wait_all()
        os.kill(zombie.pid, signal.SIGCONT)
        before = {run: list(client.received[run]) for run in (acting, speaking)}
        await client.send("three rounds", "s0")  # gives the other one time to write
        await client.wait_all()
        assert not zombie.ended
        evidence = await check_invariants(setup, client)
        assert {run: client.received[run] for run in before} == before
        for listener in listeners:
            final = await listener.until("chat.final")
            assert (final["runId"], final["seq"]) == (speaking, before[speaking][-1]["data"]["seq"])
        assert {trace.row.status for trace in evidence.traces.values()} == {"done"}


@on_both
async def test_turns_of_a_session_stay_in_order_when_a_process_is_killed(kind: Kind, make: Make) -> None:
    setup = make(kind)
    async with run_dispatcher(setup) as (processes, client):
        for n in range(9):
            await client.send("keyed" if n % 2 else "three rounds", f"s{n % 3}")
        await processes.kill(await processes.wait_for_effects(2))
        await client.wait_all()
        evidence = await check_invariants(setup, client)
        for session in ("s0", "s1", "s2"):
            runs = [run for run, where in client.runs.items() if where == session]
            acted = [entry.run for entry in evidence.entries if entry.what == "effect" and entry.run in runs]
            assert list(dict.fromkeys(acted)) == runs
            assert acted == sorted(acted, key=runs.index)


@on_both
async def test_turn_that_crashes_every_process_fails_and_its_session_continues(kind: Kind, make: Make) -> None:
    setup = make(kind, poison=True)
    async with run_dispatcher(setup) as (processes, client):
        watching = asyncio.create_task(processes.replace_dead())
        try:
            poisoned = await client.send("poison", "s")
            await client.send("text", "s")
            await client.wait_all()
        finally:
            watching.cancel()
        evidence = await check_invariants(setup, client)
        assert [trace.row.status for trace in evidence.traces.values()] == ["failed", "done"]
        last = client.received[poisoned][-1]
        assert last["event"] == "chat.error" and "not resumed" in last["data"]["message"]
        deaths = [entry for entry in evidence.entries if entry.who == "points"]
        assert len(deaths) == MAX_RESUMES_WITHOUT_PROGRESS + 1


@on_both
async def test_job_past_its_deadline_is_cancelled_and_reported(kind: Kind, make: Make) -> None:
    setup = make(kind)
    async with run_dispatcher(setup) as (_, client):
        asked = await client.send("hand late", "s")
        await client.wait_all()
        client.expect_cancel(asked)
        evidence = await check_invariants(setup, client)
        (job,) = evidence.tables.jobs
        assert job.state == "expired"
        ends = {trace.row.session: trace.row.status for trace in evidence.traces.values()}
        assert ends == {"s": "done", job.session: "cancelled"}


@on_both
async def test_stopped_process_exits_cleanly_and_its_turns_continue_at_once(kind: Kind, make: Make) -> None:
    setup = make(kind, heartbeat_timeout=600.0)  # longer than the client waits
    async with run_dispatcher(setup) as (processes, client):
        for n in range(4):
            await client.send("three rounds", f"s{n}")
        assert await processes.stop(await processes.wait_for_effects(3)) == 0
        await client.wait_all()
        assert statuses(await check_invariants(setup, client)) == {"ok": 16}


@on_both
async def test_turn_is_cancelled_from_another_gateway_and_the_next_one_starts(kind: Kind, make: Make) -> None:
    setup = make(kind)
    async with run_dispatcher(setup, "gateway", "gateway", "worker", "worker") as (processes, client):
        stopped = await client.send("stopped later", "s")
        waiting = await client.send("stopped", "s")
        await client.send("text", "s")
        await processes.wait_for_effects(2)
        await client.abort(waiting)
        await client.abort(stopped)
        await client.wait_all()
        evidence = await check_invariants(setup, client)
        assert [trace.row.status for trace in evidence.traces.values()] == ["cancelled", "cancelled", "done"]


async def test_turns_continue_over_restarts_of_postgres(tmp_path: Path) -> None:
    with PostgresServer() as server:
        setup = DispatcherSetup(server.url, tmp_path, inline=False)
        async with run_dispatcher(setup, "gateway", "gateway", "worker", "worker") as (processes, client):
            sending = asyncio.create_task(_send_turns(client, 8))
            for count in range(3):
                await processes.wait_for_effects(5 * count + 2)
                async with server.gone():
                    pass
            await sending
            await client.wait_all()
            assert statuses(await check_invariants(setup, client)) == {"ok": 32}


async def test_turns_wait_during_a_postgres_outage_and_then_continue(tmp_path: Path) -> None:
    with PostgresServer() as server:
        setup = DispatcherSetup(server.url, tmp_path, inline=False)
        async with run_dispatcher(setup) as (processes, client):
            await _send_turns(client, 4)
            await processes.wait_for_effects(3)
            gone = time.monotonic()
            async with server.gone(), connect_process(processes.any_gateway()) as other:
                answer = await other.request("chat.send", sessionKey="new", message="text #0", idempotencyKey="0")
                assert answer["error"]["data"]["kind"] == "UNAVAILABLE", answer
                await asyncio.sleep(max(0.0, OUTAGE - 4.0 - (time.monotonic() - gone)))
                starting = asyncio.create_task(processes.start("worker"))  # a process that starts meanwhile waits, too
                await asyncio.sleep(4.0)
                assert not starting.done() and all(not member.ended for _, member in processes.all)
            await starting
            await client.send("text", "new")
            await client.wait_all()
            assert statuses(await check_invariants(setup, client)) == {"ok": 16}


async def test_rolling_restart_loses_nothing_while_clients_listen(make: Make) -> None:
    setup = make("cluster", heartbeat_timeout=60.0)
    async with run_dispatcher(setup, "gateway", "gateway", "worker", "worker") as (processes, client):
        replacing = asyncio.create_task(_replace_all(processes))
        while not replacing.done():
            await client.send("three rounds", f"s{len(client.runs) // 2}")
            await asyncio.wait([replacing], timeout=0.5)
        assert await replacing == [0] * 4
        await client.wait_all()
        assert statuses(await check_invariants(setup, client)) == {"ok": 4 * len(client.runs)}


async def _replace_all(processes: ProcessGroup) -> list[int]:
    """Start a replacement for each process, stop the old one, and return the exit codes."""
    codes: list[int] = []
    for role, member in list(processes.all):
        await processes.start(role)
        codes.append(await member.stop())
    return codes


async def test_two_clusters_share_a_database_and_reject_an_inline_process(make: Make, tmp_path: Path) -> None:
    first = make("cluster")
    (tmp_path / "second").mkdir()
    second = DispatcherSetup(first.where, tmp_path / "second", inline=False, schema="another")
    async with run_dispatcher(first, "all") as (processes, client), run_dispatcher(second, "all") as (_, other):
        for n in range(3):
            await client.send("keyed", f"s{n}")
            await other.send("pure", f"s{n}")
        with pytest.raises(AssertionError, match="a cluster uses this database; connect to one of its gateways"):
            await processes.start("alone")
        await client.wait_all()
        await other.wait_all()
        for setup, each in ((first, client), (second, other)):
            assert statuses(await check_invariants(setup, each)) == {"ok": 3}


async def _send_turns(client: ReconnectingClient, count: int) -> None:
    """Send this many turns, two per session."""
    for n in range(count):
        await client.send("three rounds", f"s{n // 2}")
