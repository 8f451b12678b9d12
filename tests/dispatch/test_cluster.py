"""Cluster dispatcher: one process accepts a run, another executes it, and any process cancels or answers it."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import psycopg
import pytest
from in_process_members import member
from procrastinate.jobs import Job

from atlas_agents import (
    Agent,
    Approvals,
    Atlas,
    Cancelled,
    Chunk,
    Compaction,
    ConfigError,
    History,
    Request,
    assistant,
    user,
)
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.errors import StoreLost
from atlas_agents.core.store import AcceptRun, AddMessage, Chain, JobRow, PutSession, RunRow, Schedule, Write
from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.dispatch.locks import LeaderElection, hold_shared_lock, lock_key
from atlas_agents.dispatch.notifications import CONNECTION_OPTIONS, Notification
from atlas_agents.dispatch.queue import Queue
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from atlas_agents.tools.tool import tool
from checks import TIMEOUT, measure_loop_time, scaled, wait_until
from stores.postgres_server import PostgresServer

pytestmark = pytest.mark.slow
COMPACTING = History(compaction=Compaction(window=1500))


class Summarising(Scripted):
    """A model that answers at length, and writes a summary where one is requested. `gate` holds back its answers."""

    def __init__(self, gate: asyncio.Event | None = None) -> None:
        super().__init__()
        self.gate = gate
        self.summaries: list[str] = []
        self.answering = asyncio.Event()

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        if "You compress the history" in request.system:
            self.summaries.append(f"Summary {len(self.summaries)}")
            reply = says(f"<summary>{self.summaries[-1]}</summary>")
        else:
            self.requests.append(request)
            self.answering.set()
            if self.gate is not None:
                await self.gate.wait()
            reply = says(f"Answer to {request.messages[-1].text[:2]}: " + "y" * 600)
        async for chunk in Scripted(reply).stream(request):
            yield chunk


async def test_message_accepted_by_one_process_is_answered_by_another(url: str, schema: str) -> None:
    answers = Scripted(says("One."), says("Two."), says("Three."))
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False) as front,
        member(url, schema, answers) as back,
    ):
        streams = [front.atlas.send(text, session="s") for text in ("a", "b", "c")]
        assert [(await stream.reply()).text for stream in streams] == ["One.", "Two.", "Three."]
        assert back.executed == [stream.stream_id for stream in streams]
        assert len(answers.requests[2].messages) == 5


async def test_workers_share_a_session_and_see_its_whole_history(url: str, schema: str) -> None:
    async with asyncio.timeout(TIMEOUT), member(url, schema, Scripted(), executes_runs=False) as front:
        for number in range(3):
            model = Scripted(says(f"{number}."))
            async with member(url, schema, model):
                assert (await front.atlas.ask("go", session="s")).text == f"{number}."
                assert len(model.requests[0].messages) == 2 * number + 1


async def test_run_leaves_the_queue_in_the_commit_that_ends_it(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[int | None] = []

    async def finish(_: Queue, job: Job) -> None:
        finished.append(job.id)

    monkeypatch.setattr(Queue, "finish", finish)
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False) as front,
        member(url, schema, Scripted(says("One."), says("Two."))) as back,
    ):
        for _ in range(2):
            await front.atlas.ask("go", session="s")

        async def is_over() -> bool:
            return back.cluster.worker is not None and back.cluster.worker.finished == 2

        await wait_until(is_over)
        async with await psycopg.AsyncConnection.connect(url) as connection:
            jobs = await connection.execute(f"SELECT id FROM {schema}.procrastinate_jobs".encode())
            assert await jobs.fetchall() == []
    assert not finished


async def test_turn_is_cancelled_from_another_process_within_half_a_second(url: str, schema: str) -> None:
    running = asyncio.Event()

    @tool
    async def forever() -> None:
        """Never ends."""
        running.set()
        await asyncio.Event().wait()

    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), [forever], executes_runs=False) as front,
        member(url, schema, Scripted(), [forever], executes_runs=False) as another,
        member(url, schema, Scripted(*[calls("forever")] * 3, says("Next.")), [forever]),
    ):
        first, queued, second, third, last = [front.atlas.send("go", session="s") for _ in range(5)]
        await last.accepted()
        assert await another.atlas.cancel(queued.stream_id)
        with pytest.raises(Cancelled):
            await queued.reply()
        took: list[float] = []
        for stream in (first, second, third):  # the fastest counts, because the machine may be busy
            await running.wait()
            running.clear()
            async with measure_loop_time() as spent:
                assert await another.atlas.cancel(stream.stream_id)
                with pytest.raises(Cancelled):
                    await stream.reply()
            took.append(spent.seconds)
        assert min(took) < scaled(0.5)
        assert (await last.reply()).text == "Next."
        assert not await another.atlas.cancel(first.stream_id)


async def test_approval_is_answered_from_another_process(url: str, schema: str) -> None:
    @tool(confirm=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), [pay], executes_runs=False, approve=Approvals(wait=True)) as front,
        member(url, schema, Scripted(calls("pay"), says("Paid.")), [pay], approve=Approvals(wait=True)),
    ):
        stream = front.atlas.send("pay", session="s")
        pending = await wait_until(front.atlas.pending)
        await front.atlas.answer(pending[0].id, "once")
        assert (await stream.reply()).text == "Paid."


async def test_message_accepted_elsewhere_steers_the_running_turn(url: str, schema: str) -> None:
    running, release = asyncio.Event(), asyncio.Event()

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        running.set()
        await release.wait()
        return "seen"

    model = Scripted(calls("look"), says("Both."), says("Next."))
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), [look], executes_runs=False) as front,
        member(url, schema, Scripted(), [look], executes_runs=False) as another,
        member(url, schema, model, [look]) as back,
    ):
        first = front.atlas.send("1", session="s")
        await running.wait()
        queued = front.atlas.send("later", session="s")
        await queued.accepted()
        steering = another.atlas.send("2", session="s", when_busy="steer", idempotency_key="k")
        assert (await steering.accepted()).status == "queued"
        release.set()
        assert [(await stream.reply()).text for stream in (first, steering)] == ["Both.", "Both."]
        assert (await queued.reply()).text == "Next."
        assert [message.text for message in model.requests[1].messages if message.role == "user"] == ["1", "2"]
        assert back.executed == [first.stream_id, queued.stream_id]
        repeated = front.atlas.ask("2", session="s", when_busy="steer", idempotency_key="k")
        assert (await repeated).text == "Both."


async def test_stopping_worker_releases_its_turns_to_others(url: str, schema: str) -> None:
    running = asyncio.Event()

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        if not running.is_set():
            running.set()
            await asyncio.Event().wait()
        return "seen"

    async with asyncio.timeout(TIMEOUT), member(url, schema, Scripted(), [look], executes_runs=False) as front:
        async with member(url, schema, Scripted(calls("look")), [look]):
            stream = front.atlas.send("look", session="s")
            await running.wait()
        async with member(url, schema, Scripted(says("Seen.")), [look]) as other:
            assert (await stream.reply()).text == "Seen."
            assert other.executed == [stream.stream_id]


async def test_workers_share_the_summaries_of_a_session(url: str, schema: str) -> None:
    models, replies = [Summarising() for _ in range(3)], list[str]()
    async with asyncio.timeout(TIMEOUT), member(url, schema, Scripted(), executes_runs=False) as front:
        for worker, model in enumerate(models):
            async with member(url, schema, model, history=COMPACTING):
                texts = [f"{n:02} " + "x" * 600 for n in range(4 * worker, 4 * worker + 4)]
                streams = [front.atlas.send(text, session="s") for text in texts]
                replies += [(await stream.reply()).text[:12] for stream in streams]
        stored = await front.atlas.sessions.history("s")
        used = await front.store.usage("default")
    assert replies == [f"Answer to {n:02}" for n in range(12)]
    summaries = [message for message in stored if "summary" in message.metadata]
    assert len(summaries) == len([each for model in models for each in model.summaries]) > 2
    questions = [message.text[:2] for message in stored if message.role == "user" and not message.metadata]
    assert questions == [f"{n:02}" for n in range(12)]
    longest = max(sum(len(each.text) for each in request.messages) for model in models for request in model.requests)
    assert longest < 3 * 1500
    assert sum(row.turns for row in used) == 12


async def test_summary_of_a_turn_that_is_taken_over_is_not_written_again(url: str, schema: str) -> None:
    first, second = Summarising(asyncio.Event()), Summarising()
    past = [user("x" * 3000), assistant("y" * 3000)]
    async with asyncio.timeout(TIMEOUT), member(url, schema, Scripted(), executes_runs=False) as front:
        writes: list[Write] = [AddMessage("s", message.id, message.to_json()) for message in past]
        await front.store.commit("default", [PutSession("s"), *writes])
        async with member(url, schema, first, history=COMPACTING):
            stream = front.atlas.send("42?", session="s")
            await first.answering.wait()
        async with member(url, schema, second, history=COMPACTING):
            assert (await stream.reply()).text.startswith("Answer to 42")
        stored = await front.atlas.sessions.history("s")
    assert first.summaries and not second.summaries
    assert [message.text for message in second.requests[0].messages] == [stored[-2].text, "42?"]
    assert "Summary 0" in stored[-2].text and len(stored) == len(past) + 3


async def test_more_urgent_runs_start_first(url: str, schema: str) -> None:
    async with asyncio.timeout(TIMEOUT), member(url, schema, Scripted(), executes_runs=False) as front:
        streams = [
            front.atlas.send("go", session=f"s{urgency}", chain=Chain(urgency=urgency)) for urgency in (0, 3, 1, 2)
        ]
        for stream in streams:
            await stream.accepted()
        async with member(url, schema, Scripted(*[says("Done.")] * 4), concurrency=1) as back:
            for stream in streams:
                await stream.reply()
            rows = [await front.store.run("default", id) for id in back.executed]
            assert [row.urgency for row in rows if row is not None] == [3, 2, 1, 0]


async def test_only_the_leader_runs_jobs_and_schedules(url: str, schema: str) -> None:
    models = [Scripted(*[says("Done.")] * 4) for _ in range(2)]
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False) as front,
        member(url, schema, models[0]),
        member(url, schema, models[1]),
    ):
        jobs = front.atlas.jobs
        agent = front.atlas.agents[0].id
        await jobs.schedules.add(Schedule("daily", "0 0 * * *", agent, "Tidy up."))
        asked = [await jobs.schedules.run("daily"), await jobs.add(JobRow("j1", "schedule", agent, "Look.", "s"))]
        ended = [await jobs.ended(job.id) for job in asked]
        assert [(job.state, job.result, job.attempts) for job in ended] == [("done", "Done.", 1)] * 2
        for job in asked:
            assert len(await front.store.runs("default", job.session)) == 1
        assert sum(len(model.requests) for model in models) == 2


async def test_released_turns_are_fetched_without_waiting_for_the_next_poll(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlas_agents.dispatch.queue._POLL_INTERVAL", 3600.0)
    running = asyncio.Event()

    @tool
    async def forever() -> None:
        """Never ends."""
        running.set()
        await asyncio.Event().wait()

    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), [forever], executes_runs=False) as front,
        AsyncExitStack() as up,
    ):
        async with member(url, schema, Scripted(calls("forever")), [forever], concurrency=1):
            stream = front.atlas.send("go", session="s")
            await running.wait()
            model = Scripted(says("First."), says("Done."))
            idle = await up.enter_async_context(member(url, schema, model, [forever]))
            assert (await front.atlas.ask("go", session="t")).text == "First."
        assert (await stream.reply()).text == "Done." and idle.executed[1:] == [stream.stream_id]


def test_cluster_of_another_tenant_is_rejected_when_the_atlas_is_built(url: str, schema: str) -> None:
    agents = [Agent("assistant", model=Scripted())]
    with pytest.raises(ConfigError, match=r"the tenant of the Atlas is 't0', .* use Cluster\(…, tenant='t0'\)"):
        Atlas(agents, tenant="t0", dispatcher=Cluster(url, schema=schema))
    Atlas(agents, tenant="t0", dispatcher=Cluster(url, schema=schema, tenant="t0"))


@asynccontextmanager
async def orphaned_run(url: str, schema: str) -> AsyncGenerator[tuple[AtlasStream, psycopg.AsyncConnection]]:
    """Accept a turn and remove its job from the queue; yields a connection to the tables as well."""
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False) as front,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        stream = front.atlas.send("go", session="s")
        await stream.accepted()
        await connection.execute(f"SET search_path = {schema}".encode())
        await connection.execute("DELETE FROM procrastinate_jobs")
        yield stream, connection


async def test_new_leader_reassigns_runs_before_a_heartbeat_could_be_missed(url: str, schema: str) -> None:
    async with (
        orphaned_run(url, schema) as (stream, _),
        member(url, schema, Scripted(says("Done.")), heartbeat_timeout=10 * TIMEOUT),
    ):
        assert (await stream.reply()).text == "Done."


async def test_worker_that_died_after_a_crash_of_postgres_does_not_delay_orphaned_runs(url: str, schema: str) -> None:
    async with orphaned_run(url, schema) as (stream, connection):
        await connection.execute("INSERT INTO queue_starts VALUES (now())")
        await connection.execute("INSERT INTO procrastinate_workers DEFAULT VALUES")
        async with member(url, schema, Scripted(says("Done.")), heartbeat_timeout=10 * TIMEOUT):
            assert (await stream.reply()).text == "Done."


async def test_worker_without_its_lock_is_dead_after_a_shorter_time(url: str, schema: str) -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False),
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as alive,
    ):
        await connection.execute(f"SET search_path = {schema}".encode())
        silent = "INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - interval '4 s') RETURNING id"
        locked, killed = [(await (await connection.execute(silent)).fetchone() or (0,))[0] for _ in range(2)]
        queue = Queue(url, schema, "default")
        await alive.execute("SELECT pg_advisory_lock_shared(%s)", (queue.worker_lock(locked),))
        assert await queue.find_dead_workers(connection, 3.0) == [killed]
        assert await queue.find_dead_workers(connection, queue.heartbeat_timeout) == []
        await connection.execute("UPDATE procrastinate_workers SET last_heartbeat = now() - interval '7 s'")
        assert sorted(await queue.find_dead_workers(connection, 3.0)) == [locked, killed]


async def test_recovery_by_another_member_leaves_runs_with_a_live_worker(url: str, schema: str) -> None:
    running, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        """Waits."""
        running.set()
        await may_end.wait()
        return "over"

    model = Scripted(calls("slow"), says("Done."))
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False) as front,
        member(url, schema, model, [slow], heartbeat_timeout=10 * TIMEOUT),
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        stream = front.atlas.send("go", session="s")
        await running.wait()
        await connection.execute(f"SET search_path = {schema}".encode())
        await connection.execute(
            "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '9 s'"
        )  # an outage
        before = await read_jobs(url, schema)
        assert await front.atlas.recover() == []
        assert await read_jobs(url, schema) == before
        may_end.set()
        assert (await stream.reply()).text == "Done."


async def test_leader_deletes_workers_that_died_long_ago(url: str, schema: str) -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False),
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        await connection.execute(f"SET search_path = {schema}".encode())
        await connection.execute(
            """INSERT INTO procrastinate_workers (last_heartbeat)
            SELECT now() - age FROM unnest('{1 day, 2 hours, 10 minutes}'::interval[]) AS age"""
        )

        async def left() -> list[int]:
            rows = await connection.execute("SELECT id FROM procrastinate_workers ORDER BY id")
            return [id for (id,) in await rows.fetchall()]

        died_recently = (await left())[-1]
        async with member(url, schema, Scripted()) as leader:

            async def only_others_left() -> bool:
                worker = leader.cluster.worker
                return worker is not None and await left() == [died_recently, worker.id]

            await wait_until(only_others_left)


async def check_verdict_is_discarded(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch, mislead: Callable[[], None]
) -> None:
    """Check that a leader takes no run from a live worker: its first verdict while the run executes is that all workers
    are dead, because of what `mislead` does."""
    running, may_end, judged_again = asyncio.Event(), asyncio.Event(), asyncio.Event()
    find, verdicts = Queue.find_dead_workers, 0

    @tool
    async def slow() -> str:
        """Waits."""
        running.set()
        await may_end.wait()
        return "over"

    async def find_all(
        queue: Queue, connection: psycopg.AsyncConnection[tuple[object, ...]], unlocked_timeout: float
    ) -> list[int]:
        nonlocal verdicts
        verdicts += running.is_set()
        if verdicts != 1:
            if verdicts > 2:
                judged_again.set()
            return await find(queue, connection, unlocked_timeout)
        mislead()
        ids = await connection.execute(f"SELECT id FROM {schema}.procrastinate_workers".encode())
        return [id for (id,) in await ids.fetchall() if isinstance(id, int)]

    monkeypatch.setattr(Queue, "find_dead_workers", find_all)
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False) as front,
        member(url, schema, Scripted(calls("slow"), says("Done.")), [slow], heartbeat_timeout=2.0),
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        stream = front.atlas.send("go", session="s")
        await judged_again.wait()
        released = await connection.execute(f"SELECT attempts FROM {schema}.procrastinate_jobs".encode())
        assert await released.fetchall() == [(0,)]
        may_end.set()
        assert (await stream.reply()).text == "Done."


async def test_verdict_of_a_leader_that_was_suspended_meanwhile_is_discarded(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def suspend() -> None:
        time.sleep(1.6)  # the process is suspended, and no heartbeat is sent meanwhile

    await check_verdict_is_discarded(url, schema, monkeypatch, suspend)


async def test_no_run_is_taken_from_a_live_worker_when_the_clock_of_the_database_is_set_forward(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_clock, ahead = Queue.read_clock, 0.0

    async def read_later_clock(queue: Queue, connection: psycopg.AsyncConnection[tuple[object, ...]]) -> float:
        return await read_clock(queue, connection) + ahead

    def set_clock() -> None:
        nonlocal ahead
        ahead = 60.0  # the heartbeats are a minute old now

    monkeypatch.setattr(Queue, "read_clock", read_later_clock)
    await check_verdict_is_discarded(url, schema, monkeypatch, set_clock)


async def test_leader_whose_connection_is_not_answered_loses_leadership(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlas_agents.dispatch.locks._TICK_TIMEOUT", 0.5)
    lost = asyncio.Event()

    async def hang(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
        await connection.execute("SELECT pg_sleep(3600)")

    async def nothing() -> None: ...

    async def note() -> None:
        lost.set()

    election = asyncio.create_task(LeaderElection(url, 9, nothing, hang, note).run())
    async with asyncio.timeout(TIMEOUT):
        await lost.wait()
    election.cancel()
    await asyncio.gather(election, return_exceptions=True)


async def test_worker_releases_its_lock_although_its_runs_cannot_be_stopped(url: str, schema: str) -> None:
    async def fail(*_: object) -> None:
        raise StoreLost("stopping fails")

    store = PostgresStore(url, schema=schema)
    await store.open()
    await store.close()
    cluster = Cluster(url, schema=schema)
    in_memory_atlas(Scripted(), dispatcher=cluster)
    locks = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = %s"
    key = lock_key("worker", schema) >> 32 & 0xFFFFFFFF
    async with asyncio.timeout(TIMEOUT), await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:

        async def is_held() -> bool:
            return bool(await (await connection.execute(locks.encode(), (key,))).fetchall())

        with pytest.raises(StoreLost, match="stopping fails"):
            async with cluster.join(), cluster.run_worker(fail, fail):
                await wait_until(is_held)
        assert not await is_held()


async def test_turn_that_is_cancelled_while_a_worker_resumes_it_ends_at_once(
    url: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlas_agents.dispatch.cluster._POLL_INTERVAL", 3600.0)
    read, go_on, stopped = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @tool
    async def forever() -> None:
        """Never ends."""
        await asyncio.Event().wait()

    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), [forever], executes_runs=False) as front,
        member(url, schema, Scripted(calls("forever")), [forever]) as back,
    ):
        run_row = back.cluster._executor.run_row

        async def wait_after_reading(run_id: str) -> RunRow | None:
            row = await run_row(run_id)
            read.set()
            await go_on.wait()
            return row

        monkeypatch.setattr(back.cluster._executor, "run_row", wait_after_reading)
        back.cluster.subscribe(lambda each: stopped.set() if each.kind == "stop" else None)
        stream = front.atlas.send("go", session="s")
        await read.wait()
        await front.atlas.cancel(stream.stream_id)
        await stopped.wait()
        go_on.set()
        with pytest.raises(Cancelled):
            await stream.reply()


async def test_cluster_uses_a_schema_with_capital_letters(url: str, schema: str) -> None:
    async with asyncio.timeout(TIMEOUT), member(url, schema.upper(), Scripted(says("Done."))) as worker:
        assert (await worker.atlas.ask("go", session="s")).text == "Done."


async def test_cluster_rejects_a_schema_that_is_too_long_for_its_channels(url: str) -> None:
    longest = "ä" + 51 * "s"  # 53 bytes
    with pytest.raises(
        ConfigError, match="too long for a Cluster: expected at most 53 bytes, got 54; choose a shorter"
    ):
        Cluster(url, schema=longest + "s")
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, longest, Scripted(), executes_runs=False) as front,
        member(url, longest, Scripted(says("Done."))),
    ):
        assert (await front.atlas.ask("go", session="s")).text == "Done."


async def test_worker_holds_its_lock_until_it_has_finished(url: str, schema: str) -> None:
    held = """SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted
    AND (classid::bigint << 32 | objid::bigint) = %s"""
    async with (
        asyncio.timeout(TIMEOUT),
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):

        async def holders() -> list[int]:
            return [pid for (pid,) in await (await connection.execute(held.encode(), (key,))).fetchall()]

        async with member(url, schema, Scripted()) as worker:
            await wait_until(lambda: worker.cluster.worker is not None and worker.cluster.worker.id is not None)
            assert worker.cluster.worker is not None and worker.cluster.worker.id is not None
            key = Queue(url, schema, "default").worker_lock(worker.cluster.worker.id)
            await wait_until(holders)
            (first,) = await holders()
            await connection.execute("SELECT pg_terminate_backend(%s)", (first,))

            async def is_held_again() -> bool:
                return bool(await holders()) and first not in await holders()

            await wait_until(is_held_again)
        assert await holders() == []


async def test_log_of_a_lost_worker_lock_does_not_speak_of_the_database_lock(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = Queue(url, "atlas", "default").worker_lock(1)
    async with asyncio.timeout(TIMEOUT), await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute("SELECT pg_advisory_lock(%s)", (key,))
        holding = asyncio.create_task(hold_shared_lock(url, key))
        await wait_until(lambda: "lock lost" in caplog.text)
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
    assert "database" not in caplog.text


async def test_orphaned_runs_wait_for_workers_without_a_heartbeat_since_a_crash_of_postgres(
    url: str, schema: str
) -> None:
    async with (
        asyncio.timeout(TIMEOUT),
        member(url, schema, Scripted(), executes_runs=False) as front,
        await psycopg.AsyncConnection.connect(url, autocommit=True) as connection,
    ):
        stream = front.atlas.send("go", session="s")
        await stream.accepted()
        await connection.execute(f"SET search_path = {schema}".encode())
        await connection.execute("INSERT INTO procrastinate_workers DEFAULT VALUES")
        await connection.execute("TRUNCATE procrastinate_jobs, queue_starts CASCADE")  # as a crash does
        queue = Queue(url, schema, "default")
        for _ in range(2):
            dead = await queue.find_dead_workers(connection, queue.heartbeat_timeout)
            assert dead == [] == await queue.enqueue_orphans(connection, dead)
        await connection.execute("UPDATE procrastinate_workers SET last_heartbeat = now()")
        assert await queue.enqueue_orphans(connection, []) == [stream.stream_id]


async def test_crash_of_postgres_leaves_turns_with_their_workers_and_starts_those_that_waited(schema: str) -> None:
    running, may_end = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        """Waits."""
        running.set()
        await may_end.wait()
        return "over"

    model = Scripted(calls("slow"), says("Done."))
    with PostgresServer() as server:
        url = server.url
        async with (
            asyncio.timeout(TIMEOUT),
            member(url, schema, Scripted(), executes_runs=False) as front,
            member(url, schema, model, [slow], concurrency=1) as back,
        ):
            held = front.atlas.send("go", session="s")
            await running.wait()
            waiting = front.atlas.send("go", session="t")
            await waiting.accepted()
            before = await read_jobs(url, schema)
            async with server.gone():
                pass

            async def is_restored() -> bool:
                return [status for _, _, status in await read_jobs(url, schema)] == ["doing", "todo"]

            await wait_until(is_restored)
            after = await read_jobs(url, schema)
            assert before[0] == after[0] and before[0][1] == held.stream_id and after[1][1] == waiting.stream_id
            other = Scripted(says("Elsewhere."))
            async with member(url, schema, other, [slow]) as idle:
                assert (await waiting.reply()).text == "Elsewhere."
                may_end.set()
                assert (await held.reply()).text == "Done."
                assert idle.executed == [waiting.stream_id] and back.executed == [held.stream_id]
            outcomes = [
                step
                for step in await back.store.journal("default", held.stream_id)
                if step.kind in ("resumed", "outcome")
            ]
            assert [step.kind for step in outcomes] == ["outcome"] and b'"status":"ok"' in outcomes[0].payload
            assert await read_jobs(url, schema) == []


async def read_jobs(url: str, schema: str) -> list[tuple[int, str, str]]:
    query = f"SELECT id, args->>'run_id', status::text FROM {schema}.procrastinate_jobs ORDER BY id"
    async with await psycopg.AsyncConnection.connect(url) as connection:
        return await (await connection.execute(query.encode())).fetchall()


async def test_election_ends_although_a_broken_connection_replaces_the_cancellation(url: str) -> None:
    elected = asyncio.Event()

    async def break_when_cancelled() -> None:
        elected.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise psycopg.OperationalError("the connection is lost") from None

    async def nothing(*_: object) -> None: ...

    election = asyncio.create_task(LeaderElection(url, 7, break_when_cancelled, nothing, nothing).run())
    await asyncio.wait_for(elected.wait(), TIMEOUT)
    election.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(election, TIMEOUT)
    assert election.cancelled()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such option")
async def test_connection_ends_seconds_after_packets_were_lost(url: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, **CONNECTION_OPTIONS) as connection:
        with socket.socket(fileno=os.dup(connection.fileno())) as connected:
            assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000


async def test_leader_that_is_paused_inside_a_transaction_is_replaced(url: str) -> None:
    elected = [asyncio.Event(), asyncio.Event()]

    async def pause(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
        async with connection.transaction():
            await connection.execute("SELECT 1")
            await asyncio.Event().wait()

    async def nothing() -> None: ...

    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as group:
        elections: list[asyncio.Task[None]] = []
        for event in elected:

            async def note(event: asyncio.Event = event) -> None:
                event.set()

            elections.append(group.create_task(LeaderElection(url, 8, note, pause, nothing).run()))
            await elected[0].wait()
        await elected[1].wait()
        for election in elections:
            election.cancel()


async def test_process_without_clients_receives_only_what_concerns_its_runs(url: str, schema: str) -> None:
    received: dict[bool, list[Notification]] = {True: [], False: []}
    store = PostgresStore(url, schema=schema)
    await store.open()
    await store.close()
    async with asyncio.timeout(TIMEOUT), AsyncExitStack() as stack:
        for has_clients, found in received.items():
            cluster = Cluster(url, schema=schema)
            in_memory_atlas(Scripted(), dispatcher=cluster)
            cluster.subscribe(found.append)
            await stack.enter_async_context(cluster.join(has_clients=has_clients))
        this = await stack.enter_async_context(member(url, schema, Scripted(), executes_runs=False))
        sessions = [PutSession(f"s{n}", label="x" * 50) for n in range(200)]  # more than one message can contain
        runs: list[Write] = [AcceptRun(f"r{n}", f"s{n}", "a") for n in range(200)]
        await this.store.commit("default", [*sessions, *runs])

        async def all_received() -> bool:
            return all(sum(each.kind == "begun" for each in found) == 200 for found in received.values())

        await wait_until(all_received)
    assert {each.kind for each in received[False]} == {"begun"}
    assert [each.session for each in received[True] if each.kind == "session"] == [f"s{n}" for n in range(200)]
