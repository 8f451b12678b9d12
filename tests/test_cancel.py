"""Cancellation: at every point a turn ends within half a second and leaves a valid history."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from atlas_agents import (
    Atlas,
    AtlasStream,
    Cancelled,
    Interceptor,
    Limits,
    Message,
    ProviderError,
    Question,
    Request,
    Rule,
    Transient,
    tool,
)
from atlas_agents.testing import Scripted, VirtualClock, calls, fails, in_memory_atlas, says
from checks import (
    TIMEOUT,
    PausedProvider,
    collect_events,
    ignore_cancellation,
    is_paired,
    measure_loop_time,
    roles,
    run_ready_tasks,
    scaled,
    summarize_events,
    wait_until,
)

SOON = 0.5
CUT = ("unknown", "unknown", "The turn was cancelled while this call ran; it may have happened. It was not retried.")
NEVER = ("error", "declined", "The turn was cancelled before this call ran; nothing happened.")


async def cancel_and_check(stream: AtlasStream, atlas: Atlas) -> list[Any]:
    """Cancel a turn, check how it ended, and return its events."""
    stream.cancel()
    async with measure_loop_time() as spent, asyncio.timeout(TIMEOUT):
        async for event in stream:
            if event.type == "stream:end":
                assert spent.seconds < scaled(SOON)
                assert event.cancelled
    events = await collect_events(stream)
    assert events[-1].type == "stream:end"
    with pytest.raises(Cancelled):
        await stream.reply()
    assert is_paired(atlas.conversation().messages)
    return events


async def check_next_turn(atlas: Atlas) -> None:
    """Check that the next turn in the same conversation works."""
    async with asyncio.timeout(TIMEOUT):
        assert (await atlas.ask("Still there?")).text == "Yes."


@asynccontextmanager
async def wait_forever(reach: Callable[[], Awaitable[object]], *args: Any, **named: Any) -> AsyncGenerator[Any, None]:
    """Wait until the turn of an Atlas has reached the point at which it is cancelled."""
    async with in_memory_atlas(*args, **named) as atlas:
        stream = atlas.send("go")
        await asyncio.wait_for(reach(), TIMEOUT)
        yield atlas, stream


def results(atlas: Atlas) -> list[tuple[Any, ...]]:
    found = [result for message in atlas.conversation().messages for result in message.tool_results]
    return [(result.status, result.error, result.result) for result in found]


class Point:
    """A point that reports when it is reached and then blocks."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()

    async def wait(self) -> None:
        self.reached.set()
        await asyncio.Event().wait()


# Every point of a turn


async def test_cancel_before_the_turn_starts() -> None:
    model = Scripted(says("Yes."), says("Yes."))
    async with in_memory_atlas(model) as atlas:
        stream = atlas.send("go")
        events = await cancel_and_check(stream, atlas)
        assert [event.type for event in events] == ["message:sent", "stream:start", "stream:end"]
        assert (stream.text, roles(atlas.conversation().messages)) == ("", ["user"])
        await check_next_turn(atlas)


async def test_cancel_in_the_middle_of_the_text() -> None:
    model = PausedProvider(Scripted(says("One two three"), says("Yes.")), after=2)
    async with wait_forever(model.reached.wait, model) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        assert stream.text == "One two "
        assert model.closed == 1
        assert roles(atlas.conversation().messages) == ["user"]
        model.go.set()
        await check_next_turn(atlas)


async def test_cancel_while_the_model_is_silent() -> None:
    model = PausedProvider(Scripted(says("One"), says("Yes.")))
    async with wait_forever(model.reached.wait, model) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        assert model.closed == 1
        model.go.set()
        await check_next_turn(atlas)


async def test_cancel_while_a_callable_model_runs() -> None:
    point = Point()
    answers = iter([point.wait])

    async def model(request: Request) -> Any:
        for wait in answers:
            await wait()
        return {"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}]}

    async with wait_forever(point.reached.wait, model) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        await check_next_turn(atlas)


async def test_cancel_while_a_tool_runs() -> None:
    point, ended = Point(), asyncio.Event()

    async def slow() -> None:
        try:
            await point.wait()
        finally:
            ended.set()

    model = Scripted(says("Let me. ") + calls("slow"), says("Yes."))
    async with wait_forever(point.reached.wait, model, [slow]) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        assert ended.is_set()
        assert stream.text == "Let me. "
        assert results(atlas) == [CUT]
        await check_next_turn(atlas)
    assert len(model.requests) == 2


async def test_cancel_while_a_pure_tool_runs() -> None:
    point = Point()

    @tool(effect="pure")
    async def look() -> None:
        await point.wait()

    async with wait_forever(point.reached.wait, Scripted(calls("look"), says("Yes.")), [look]) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        assert results(atlas) == [("error", "declined", "The turn was cancelled while this call ran.")]
        await check_next_turn(atlas)


async def test_cancel_keeps_the_results_of_finished_tools() -> None:
    point, done = Point(), asyncio.Event()

    async def quick() -> str:
        done.set()
        return "done"

    async def slow() -> None:
        await done.wait()
        await point.wait()

    model = Scripted(calls("slow") + calls("quick") + calls("slow"), says("Yes."))
    async with wait_forever(point.reached.wait, model, [quick, slow]) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        assert results(atlas) == [CUT, ("ok", None, "done"), CUT]
        await check_next_turn(atlas)


async def test_cancel_starts_no_further_tool_of_a_sequential_round() -> None:
    point, started = Point(), list[int]()

    async def work(n: int) -> int:
        started.append(n)
        if n == 2:
            await point.wait()
        return n

    model = Scripted(calls("work", n=1) + calls("work", n=2) + calls("work", n=3), says("Yes."))
    settings = {"parallel_tools": False}
    async with wait_forever(point.reached.wait, model, [work], agent=settings) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        assert results(atlas) == [("ok", None, 1), CUT, NEVER]
        await check_next_turn(atlas)
    assert started == [1, 2]


async def test_cancel_while_approval_is_pending() -> None:
    point, ran = Point(), list[int]()

    @tool(confirm=True)
    async def wipe(n: int) -> None:
        ran.append(n)

    async def approve(question: Question) -> bool:
        await point.wait()
        return True

    model = Scripted(calls("wipe", n=1) + calls("wipe", n=2), says("Yes."))
    async with wait_forever(point.reached.wait, model, [wipe], approve=approve) as (atlas, stream):
        events = await cancel_and_check(stream, atlas)
        assert results(atlas) == [NEVER, NEVER]
        called = [event.call_id for event in events if event.type == "tool:called"]
        assert [event.call_id for event in events if event.type == "tool:result"] == called
        await check_next_turn(atlas)
    assert ran == []


async def test_cancel_while_the_turn_waits_for_its_session() -> None:
    model = PausedProvider(Scripted(says("First."), says("Yes.")))
    async with wait_forever(model.reached.wait, model) as (atlas, first):
        second = atlas.send("me too")
        events = await cancel_and_check(second, atlas)
        assert [event.type for event in events] == ["stream:end"]
        model.go.set()
        assert (await first.reply()).text == "First."
        assert [message.text for message in atlas.conversation().messages] == ["go", "First."]
        await check_next_turn(atlas)


async def test_cancel_while_the_turn_waits_for_a_provider_retry() -> None:
    clock = VirtualClock()
    model = Scripted(fails(ProviderError("busy", "rate_limit", retry_after=20)), says("Yes."))

    async def provider_calls() -> None:
        await clock.advance(1)
        assert len(model.requests) == 1

    async with wait_forever(provider_calls, model, clock=clock) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        assert roles(atlas.conversation().messages) == ["user"]
        await check_next_turn(atlas)


async def test_cancel_while_a_tool_waits_for_a_retry() -> None:
    clock, tries = VirtualClock(), list[int]()

    async def busy() -> None:
        tries.append(1)
        raise Transient("busy", retry_after=20)

    async def attempts() -> None:
        await clock.advance(1)
        assert tries == [1]

    async with wait_forever(attempts, Scripted(calls("busy"), says("Yes.")), [busy], clock=clock) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        assert results(atlas) == [NEVER]
        await check_next_turn(atlas)


@pytest.mark.parametrize("where", ["outgoing", "incoming", "request"])
async def test_cancel_while_an_interceptor_runs(where: str) -> None:
    point, busy = Point(), [True]

    async def stay(*_: Any) -> None:
        if busy:
            await point.wait()

    hooks: dict[str, Any] = {where: stay}
    interceptors = [Interceptor(**hooks)]
    model = Scripted(*[says("Yes.")] * 2)
    async with wait_forever(point.reached.wait, model, interceptors=interceptors) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        busy.clear()
        assert roles(atlas.conversation().messages) == ([] if where == "outgoing" else ["user"])
        await atlas.ask("Still there?")


async def test_cancel_while_a_rule_condition_runs() -> None:
    point, busy = Point(), [True]

    async def when(context: Any) -> bool:
        if busy:
            await point.wait()
        return True

    model = Scripted(says("Yes."))
    async with wait_forever(point.reached.wait, model, agent={"rules": [Rule("x", when=when)]}) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        busy.clear()
        await check_next_turn(atlas)


# Tools that ignore cancellation


async def test_tool_that_ignores_cancellation_is_abandoned() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        started.set()
        await ignore_cancellation(release)
        return "too late"

    async with wait_forever(started.wait, Scripted(calls("stubborn"), says("Yes.")), [stubborn]) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        assert results(atlas) == [CUT]
        await check_next_turn(atlas)
        release.set()
        await asyncio.sleep(0)
        assert results(atlas) == [CUT]


async def test_eight_tools_that_ignore_cancellation_take_no_longer_than_one() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def stubborn(n: int) -> None:
        if n == 8:
            started.set()
        await ignore_cancellation(release)

    script = calls("stubborn", n=1)
    for n in range(2, 9):
        script += calls("stubborn", n=n)
    limits = Limits(at_once=8)
    async with wait_forever(started.wait, Scripted(script, says("Yes.")), [stubborn], limits=limits) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        assert results(atlas) == [CUT] * 8
        await check_next_turn(atlas)
        release.set()


async def test_cancelled_tool_may_clean_up() -> None:
    point, tidied = Point(), list[str]()

    async def careful() -> None:
        try:
            await point.wait()
        finally:
            await run_ready_tasks()
            tidied.append("yes")

    async with wait_forever(point.reached.wait, Scripted(calls("careful"), says("Yes.")), [careful]) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        assert tidied == ["yes"]
        await check_next_turn(atlas)


async def test_cancel_does_not_wait_for_an_in_process_sync_tool() -> None:
    started, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @tool(in_process=True)
    def block() -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait(TIMEOUT)

    async with wait_forever(started.wait, Scripted(calls("block"), says("Yes.")), [block]) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        assert results(atlas) == [CUT]
        await check_next_turn(atlas)
        release.set()


async def test_cancel_kills_a_sync_tool_in_a_worker_process(tmp_path: Any) -> None:
    started, finished = tmp_path / "started", tmp_path / "finished"

    @tool
    def block() -> None:
        """Write, wait, write."""
        started.write_text(str(os.getpid()))
        threading.Event().wait(1)
        finished.touch()

    async def reached() -> None:
        await wait_until(lambda: started.exists() and started.read_text())

    async with wait_forever(reached, Scripted(calls("block"), says("Yes.")), [block]) as (atlas, stream):
        await cancel_and_check(stream, atlas)
        assert results(atlas) == [CUT]
        await check_next_turn(atlas)
        with pytest.raises(ProcessLookupError):
            os.kill(int(started.read_text()), 0)
        assert not finished.exists()


async def test_hanging_tool_does_not_delay_other_sessions() -> None:
    point = Point()

    async def hang() -> None:
        await point.wait()

    model = Scripted(calls("hang"), says("Yes."))
    async with wait_forever(point.reached.wait, model, [hang]) as (atlas, stream):
        async with asyncio.timeout(TIMEOUT):
            assert (await atlas.ask("hello", session="other")).text == "Yes."
        await cancel_and_check(stream, atlas)


# Repeated, late and concurrent cancellation


async def test_second_cancel_has_no_effect() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def stubborn(n: int) -> None:
        started.set()
        await ignore_cancellation(release)

    model = Scripted(calls("stubborn", n=1) + calls("stubborn", n=2), says("Yes."))
    async with wait_forever(started.wait, model, [stubborn]) as (atlas, stream):
        stream.cancel()
        await run_ready_tasks()  # it is being stopped
        stream.cancel()
        await cancel_and_check(stream, atlas)
        assert results(atlas) == [CUT, CUT]
        await check_next_turn(atlas)
        release.set()


async def test_cancel_of_an_ended_turn_has_no_effect() -> None:
    async with in_memory_atlas(Scripted(says("Yes."))) as atlas:
        stream = atlas.send("go")
        before = await collect_events(stream)
        stream.cancel()
        assert (await stream.reply()).text == "Yes."
        assert await collect_events(stream) == before


async def test_cancel_after_the_end_keeps_the_answer() -> None:
    async def slow(event: Any) -> None:
        await asyncio.Event().wait()

    async with in_memory_atlas(Scripted(says("Yes."))) as atlas, asyncio.timeout(TIMEOUT):
        atlas.on("message:received", slow)
        stream = atlas.send("go")
        async for event in stream:
            if event.type == "message:received":
                stream.cancel()
                break
        assert (await stream.reply()).text == "Yes."


async def test_cancel_affects_one_turn_only() -> None:
    model = PausedProvider(Scripted(says("One"), says("Two")))
    async with wait_forever(model.reached.wait, model) as (atlas, stream):
        other = atlas.send("hello", session="other")
        await cancel_and_check(stream, atlas)
        model.go.set()
        assert (await other.reply()).text in ("One", "Two")


async def test_cancelled_wait_for_the_reply_does_not_cancel_the_turn() -> None:
    model = PausedProvider(Scripted(says("Yes.")))
    async with wait_forever(model.reached.wait, model) as (_, stream):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.reply(), 0.01)
        model.go.set()
        assert (await asyncio.wait_for(stream.reply(), TIMEOUT)).text == "Yes."


async def test_subscriber_can_cancel_the_stream() -> None:
    model = PausedProvider(Scripted(says("One two three"), says("Yes.")), after=2)
    received: list[str] = []
    async with in_memory_atlas(model) as atlas, asyncio.timeout(TIMEOUT):

        async def stop(event: Any) -> None:
            received.append(event.text)
            stream.cancel()

        atlas.on("stream:chunk", stop)
        stream = atlas.send("go")
        with pytest.raises(Cancelled):
            await stream.reply()
        model.go.set()
        await check_next_turn(atlas)


@pytest.mark.parametrize("seed", range(25))
async def test_cancel_at_any_point_keeps_the_history_valid(seed: int) -> None:
    """Cancel after a number of event-loop rounds, wherever the turn is."""

    async def work(n: int) -> int:
        for _ in range(n):
            await asyncio.sleep(0)
        return n

    model = Scripted(
        says("Let me see. ") + calls("work", n=1) + calls("work", n=4),
        calls("work", n=2),
        says("One two three four"),
        *[says("Yes.")] * 4,
    )
    async with (
        in_memory_atlas(model, [work], agent={"parallel_tools": bool(seed % 2)}) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        stream = atlas.send("go")
        for _ in range(seed):
            await asyncio.sleep(0)
        stream.cancel()
        events = await collect_events(stream)
        messages: list[Message] = atlas.conversation().messages
        assert is_paired(messages)
        assert ("stream:end", "cancelled") in summarize_events(events) or ("stream:end",) in summarize_events(events)
        called = [event.call_id for event in events if event.type == "tool:called"]
        assert sorted(called) == sorted(event.call_id for event in events if event.type == "tool:result")
        await atlas.ask("Still there?")
        assert is_paired(messages)
