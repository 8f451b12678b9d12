"""What every dispatcher must stand: the same cases on `inline` and on a cluster, with real processes and databases.

Each case is judged by the invariants of the crash cases, from rows, from a file outside of the database and from what a
client heard that comes back whenever its line breaks.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from conform_judge import judged, statuses
from conform_listener import Listener
from conform_troupe import Setting, Troupe, troupe

from atlas_agents.core.messages import new_id
from atlas_agents.tools.journal import MAX_RESUMES_WITHOUT_PROGRESS
from checks import until
from gateway.processes import inside
from stores.postgres_server import PostgresServer

Kind: TypeAlias = Literal["inline", "inline on Postgres", "cluster"]
Make: TypeAlias = Callable[..., Setting]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
everywhere = pytest.mark.parametrize("kind", ["inline", "inline on Postgres", "cluster"])
on_both = pytest.mark.parametrize("kind", ["inline", "cluster"])
OUTAGE = float(os.environ.get("OUTAGE_SECONDS", "15"))
PATIENCE = 120.0 + OUTAGE
"""Seconds; reached only by what is broken."""


@pytest.fixture(scope="module")
def databases() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A place of its own for one kind of dispatcher."""

    def made(kind: Kind, **more: Any) -> Setting:
        if kind == "inline":
            return Setting(str(tmp_path / "atlas.db"), tmp_path, **more)
        server: PostgresServer = request.getfixturevalue("databases")
        name = "c" + new_id().replace("-", "")
        return Setting(server.made(name), tmp_path, inline=kind != "cluster", **more)

    return made


@asynccontextmanager
async def playing(setting: Setting, *roles: str) -> AsyncGenerator[tuple[Troupe, Listener], None]:
    """A dispatcher at work, and a client of it."""
    async with asyncio.timeout(PATIENCE), troupe(setting, *(roles or ("gateway", "worker", "worker"))) as here:
        listener = Listener(here)
        try:
            yield here, listener
        finally:
            await listener.close()


@everywhere
async def test_turns_of_a_process_that_is_killed_go_on_and_nothing_happens_twice(kind: Kind, make: Make) -> None:
    setting = make(kind)
    async with playing(setting) as (here, client):
        for n in range(4):
            await client.say("three rounds", f"s{n}")
        await here.lose(await here.happened(3))
        await client.all()
        evidence = await judged(setting, client)
        assert {trace.row.status for trace in evidence.traces.values()} == {"done"}
        assert statuses(evidence).get("unknown", 0) <= 4  # of each turn the call that it was killed in


@on_both
async def test_a_process_that_was_stopped_and_comes_back_changes_nothing(kind: Kind, make: Make) -> None:
    setting = make(kind)
    async with playing(setting, "gateway", "worker") as (here, client):
        acting = await client.say("three rounds", "s0")
        zombie = await here.happened(1)
        speaking = await client.say("text", "s1")
        await until(lambda: client.said(speaking, "chat.delta"))
        await here.freeze(zombie)
        await here.start("alone" if setting.inline else "worker")
        await client.all()
        os.kill(zombie.pid, signal.SIGCONT)
        before = {run: list(client.heard[run]) for run in (acting, speaking)}
        await client.say("three rounds", "s0")  # time enough for the other to say what it had to say
        await client.all()
        assert not zombie.ended
        evidence = await judged(setting, client)
        assert {run: client.heard[run] for run in before} == before
        assert {trace.row.status for trace in evidence.traces.values()} == {"done"}


@on_both
async def test_turns_of_a_session_happen_one_after_the_other_whoever_is_killed(kind: Kind, make: Make) -> None:
    setting = make(kind)
    async with playing(setting) as (here, client):
        for n in range(9):
            await client.say("keyed" if n % 2 else "three rounds", f"s{n % 3}")
        await here.lose(await here.happened(2))
        await client.all()
        evidence = await judged(setting, client)
        for session in ("s0", "s1", "s2"):
            runs = [run for run, where in client.runs.items() if where == session]
            acted = [note.run for note in evidence.notes if note.what == "effect" and note.run in runs]
            assert list(dict.fromkeys(acted)) == runs
            assert acted == sorted(acted, key=runs.index)


@on_both
async def test_a_turn_that_ends_every_process_is_given_up_and_its_session_goes_on(kind: Kind, make: Make) -> None:
    setting = make(kind, poison=True, heartbeat_timeout=1.0)
    async with playing(setting) as (here, client):
        watching = asyncio.create_task(here.replace_the_dead())
        try:
            poisoned = await client.say("poison", "s")
            await client.say("text", "s")
            await client.all()
        finally:
            watching.cancel()
        evidence = await judged(setting, client)
        assert [trace.row.status for trace in evidence.traces.values()] == ["failed", "done"]
        last = client.heard[poisoned][-1]
        assert last["event"] == "chat.error" and "not resumed" in last["data"]["message"]
        deaths = [note for note in evidence.notes if note.who == "points"]
        assert len(deaths) == MAX_RESUMES_WITHOUT_PROGRESS + 1


@on_both
async def test_a_job_that_is_not_done_by_its_deadline_is_stopped_and_its_asker_told(kind: Kind, make: Make) -> None:
    setting = make(kind)
    async with playing(setting) as (_, client):
        asked = await client.say("hand late", "s")
        await client.all()
        client.will_be_stopped(asked)
        evidence = await judged(setting, client)
        (job,) = evidence.tables.jobs
        assert job.state == "expired"
        ends = {trace.row.session: trace.row.status for trace in evidence.traces.values()}
        assert ends == {"s": "done", job.session: "cancelled"}


@on_both
async def test_a_process_that_is_told_to_stop_ends_well_and_its_turns_go_on_at_once(kind: Kind, make: Make) -> None:
    setting = make(kind, heartbeat_timeout=60.0)
    async with playing(setting) as (here, client):
        for n in range(4):
            await client.say("three rounds", f"s{n}")
        assert await here.end(await here.happened(3)) == 0
        stopped = time.monotonic()
        await client.all()
        assert time.monotonic() - stopped < setting.heartbeat_timeout / 2
        assert statuses(await judged(setting, client)) == {"ok": 16}


@on_both
async def test_a_turn_is_stopped_from_elsewhere_and_the_next_one_begins(kind: Kind, make: Make) -> None:
    setting = make(kind)
    async with playing(setting, "gateway", "gateway", "worker", "worker") as (here, client):
        stopped = await client.say("stopped later", "s")
        waiting = await client.say("stopped", "s")
        await client.say("text", "s")
        await here.happened(2)
        await client.abort(waiting)
        await client.abort(stopped)
        await client.all()
        evidence = await judged(setting, client)
        assert [trace.row.status for trace in evidence.traces.values()] == ["cancelled", "cancelled", "done"]


async def test_turns_go_on_over_seven_restarts_of_postgres(tmp_path: Path) -> None:
    with PostgresServer() as server:
        setting = Setting(server.url, tmp_path, inline=False)
        async with playing(setting, "gateway", "gateway", "worker", "worker") as (here, client):
            saying = asyncio.create_task(_say_on(client, 14))
            for count in range(7):
                await here.happened(5 * count + 2)
                async with server.gone():
                    pass
            await saying
            await client.all()
            assert statuses(await judged(setting, client)) == {"ok": 56}


async def test_turns_wait_while_postgres_is_gone_and_go_on_when_it_is_back(tmp_path: Path) -> None:
    with PostgresServer() as server:
        setting = Setting(server.url, tmp_path, inline=False)
        async with playing(setting) as (here, client):
            await _say_on(client, 4)
            await here.happened(3)
            gone = time.monotonic()
            async with server.gone(), inside(here.front()) as other:
                answer = await other.ask("chat.send", sessionKey="new", message="text #0", idempotencyKey="0")
                assert answer["error"]["data"]["kind"] == "UNAVAILABLE", answer
                await asyncio.sleep(max(0.0, OUTAGE - 4.0 - (time.monotonic() - gone)))
                starting = asyncio.create_task(here.start("worker"))  # who comes meanwhile waits as well
                await asyncio.sleep(4.0)
                assert not starting.done() and all(not member.ended for _, member in here.all)
            await starting
            await client.say("text", "new")
            await client.all()
            assert statuses(await judged(setting, client)) == {"ok": 16}


async def test_a_cluster_is_replaced_process_by_process_while_clients_listen(make: Make) -> None:
    setting = make("cluster", heartbeat_timeout=60.0)
    async with playing(setting, "gateway", "gateway", "worker", "worker") as (here, client):
        replacing = asyncio.create_task(_replace_all(here))
        while not replacing.done():
            await client.say("three rounds", f"s{len(client.runs) // 2}")
            await asyncio.wait([replacing], timeout=0.5)
        assert await replacing == [0] * 4
        await client.all()
        assert statuses(await judged(setting, client)) == {"ok": 4 * len(client.runs)}


async def _replace_all(here: Troupe) -> list[int]:
    """For each process a new one, then the old one is told to stop; how they ended."""
    codes: list[int] = []
    for role, member in list(here.all):
        await here.start(role)
        codes.append(await member.stop())
    return codes


async def test_two_clusters_on_one_database_are_kept_apart_and_nobody_works_alone_there(
    make: Make, tmp_path: Path
) -> None:
    first = make("cluster")
    (tmp_path / "second").mkdir()
    second = Setting(first.where, tmp_path / "second", inline=False, schema="another")
    async with playing(first, "all") as (here, client), playing(second, "all") as (_, other):
        for n in range(3):
            await client.say("keyed", f"s{n}")
            await other.say("pure", f"s{n}")
        with pytest.raises(AssertionError, match="a cluster uses this database; connect to one of its gateways"):
            await here.start("alone")
        await client.all()
        await other.all()
        for setting, each in ((first, client), (second, other)):
            assert statuses(await judged(setting, each)) == {"ok": 3}


async def _say_on(client: Listener, count: int) -> None:
    """So many turns, in sessions of two."""
    for n in range(count):
        await client.say("three rounds", f"s{n // 2}")
