"""Runs on many processes: taken in by one, run by another, stopped and answered from anywhere, in order."""

import asyncio
from contextlib import AsyncExitStack

import pytest
from members import member

from atlas_agents import Approvals, Cancelled
from atlas_agents.core.store import Chain, JobRow, Schedule
from atlas_agents.testing import Scripted, calls, says
from atlas_agents.tools.tool import tool
from checks import PATIENCE, until

pytestmark = pytest.mark.slow


async def test_a_message_that_one_process_takes_in_is_answered_by_another(url: str, schema: str) -> None:
    answers = Scripted(says("One."), says("Two."), says("Three."))
    async with (
        asyncio.timeout(PATIENCE),
        member(url, schema, Scripted(), works=False) as front,
        member(url, schema, answers) as back,
    ):
        streams = [front.atlas.send(text, session="s") for text in ("a", "b", "c")]
        assert [(await stream.reply()).text for stream in streams] == ["One.", "Two.", "Three."]
        assert back.taken == [stream.stream_id for stream in streams]
        assert len(answers.requests[2].messages) == 5


async def test_two_workers_share_a_session_and_each_sees_all_of_it(url: str, schema: str) -> None:
    async with asyncio.timeout(2 * PATIENCE), member(url, schema, Scripted(), works=False) as front:
        for number in range(3):
            model = Scripted(says(f"{number}."))
            async with member(url, schema, model):
                assert (await front.atlas.ask("go", session="s")).text == f"{number}."
                assert len(model.requests[0].messages) == 2 * number + 1


async def test_a_turn_is_stopped_from_another_process_within_half_a_second(url: str, schema: str) -> None:
    running = asyncio.Event()

    @tool
    async def forever() -> None:
        """Never ends."""
        running.set()
        await asyncio.Event().wait()

    async with (
        asyncio.timeout(PATIENCE),
        member(url, schema, Scripted(), [forever], works=False) as front,
        member(url, schema, Scripted(), [forever], works=False) as another,
        member(url, schema, Scripted(*[calls("forever")] * 3, says("Next.")), [forever]),
    ):
        first, queued, second, third, last = [front.atlas.send("go", session="s") for _ in range(5)]
        await last.accepted()
        assert await another.atlas.cancel(queued.stream_id)
        with pytest.raises(Cancelled):
            await queued.reply()
        took: list[float] = []
        for stream in (first, second, third):  # the quickest counts: a machine may have something else to do
            await running.wait()
            running.clear()
            begun = asyncio.get_running_loop().time()
            assert await another.atlas.cancel(stream.stream_id)
            with pytest.raises(Cancelled):
                await stream.reply()
            took.append(asyncio.get_running_loop().time() - begun)
        assert min(took) < 0.5
        assert (await last.reply()).text == "Next."
        assert not await another.atlas.cancel(first.stream_id)


async def test_a_question_is_answered_from_another_process(url: str, schema: str) -> None:
    @tool(confirm=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async with (
        asyncio.timeout(PATIENCE),
        member(url, schema, Scripted(), [pay], works=False, approve=Approvals(wait=True)) as front,
        member(url, schema, Scripted(calls("pay"), says("Paid.")), [pay], approve=Approvals(wait=True)),
    ):
        stream = front.atlas.send("pay", session="s")
        pending = await until(front.atlas.pending)
        await front.atlas.answer(pending[0].id, "once")
        assert (await stream.reply()).text == "Paid."


async def test_a_worker_that_stops_hands_its_turns_to_others_at_once(url: str, schema: str) -> None:
    running = asyncio.Event()

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        if not running.is_set():
            running.set()
            await asyncio.Event().wait()
        return "seen"

    async with asyncio.timeout(PATIENCE), member(url, schema, Scripted(), [look], works=False) as front:
        async with member(url, schema, Scripted(calls("look")), [look]):
            stream = front.atlas.send("look", session="s")
            await running.wait()
        async with member(url, schema, Scripted(says("Seen.")), [look]) as other:
            assert (await stream.reply()).text == "Seen."
            assert other.taken == [stream.stream_id]


async def test_what_is_more_urgent_is_begun_first(url: str, schema: str) -> None:
    async with asyncio.timeout(PATIENCE), member(url, schema, Scripted(), works=False) as front:
        streams = [
            front.atlas.send("go", session=f"s{urgency}", chain=Chain(urgency=urgency)) for urgency in (0, 3, 1, 2)
        ]
        for stream in streams:
            await stream.accepted()
        async with member(url, schema, Scripted(*[says("Done.")] * 4), concurrency=1) as back:
            for stream in streams:
                await stream.reply()
            rows = [await front.store.run("default", id) for id in back.taken]
            assert [row.urgency for row in rows if row is not None] == [3, 2, 1, 0]


async def test_jobs_and_schedules_are_seen_to_once_by_whoever_leads(url: str, schema: str) -> None:
    models = [Scripted(*[says("Done.")] * 4) for _ in range(2)]
    async with (
        asyncio.timeout(2 * PATIENCE),
        member(url, schema, Scripted(), works=False) as front,
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


async def test_turns_that_a_worker_leaves_are_taken_by_another_before_it_looks_by_itself(
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
        asyncio.timeout(2 * PATIENCE),
        member(url, schema, Scripted(), [forever], works=False) as front,
        AsyncExitStack() as up,
    ):
        async with member(url, schema, Scripted(calls("forever")), [forever], concurrency=1):
            stream = front.atlas.send("go", session="s")
            await running.wait()
            model = Scripted(says("First."), says("Done."))
            idle = await up.enter_async_context(member(url, schema, model, [forever]))
            assert (await front.atlas.ask("go", session="t")).text == "First."
        assert (await stream.reply()).text == "Done." and idle.taken[1:] == [stream.stream_id]
