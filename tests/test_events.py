"""Events: which ones are emitted, in which order; a subscriber that fails or hangs does no harm."""

import asyncio
import gc
import logging
import threading
import weakref
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, ConfigError, Event, ProviderError, RetryPolicy, ToolFailed, Usage, tool
from atlas_agents.agents.hooks import Listener, Subscribers
from atlas_agents.core.events import StreamChunk
from atlas_agents.testing import Scripted, VirtualClock, calls, fails, in_memory_atlas, says
from checks import (
    TIMEOUT,
    PausedProvider,
    collect_events,
    ignore_cancellation,
    measure_loop_time,
    monitor_loop,
    summarize_events,
)

NEVER = "The turn was cancelled before this call ran; nothing happened."
CUT = "The turn was cancelled while this call ran; it may have happened. It was not retried."


@tool
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"Sunny in {city}"


# The order


async def test_turn_that_has_ended_is_freed_without_the_garbage_collector() -> None:
    model = Scripted(calls("weather", city="Rome"), says("Sunny."))
    async with in_memory_atlas(model, tools=[weather]) as atlas:
        gc.disable()
        try:
            stream = atlas.send("Hi")
            await stream.reply()
            run = weakref.ref(vars(stream)["_run"])
            await asyncio.sleep(0)  # its task ends
            del stream
            assert run() is None
        finally:
            gc.enable()


async def test_events_of_a_plain_answer() -> None:
    async with in_memory_atlas(Scripted(says("Hello there."))) as atlas:
        events = await collect_events(atlas.send("Hi"))
    assert summarize_events(events) == [
        ("message:sent", "Hi"),
        ("stream:start", "assistant"),
        ("stream:chunk", "Hello "),
        ("stream:chunk", "there."),
        ("stream:end",),
        ("message:received", "Hello there."),
    ]


async def test_events_of_one_tool_call() -> None:
    model = Scripted(says("Let me look. ") + calls("weather", city="Lima"), says("Sunny."))
    async with in_memory_atlas(model, [weather]) as atlas:
        events = await collect_events(atlas.send("Lima?"))
    assert summarize_events(events) == [
        ("message:sent", "Lima?"),
        ("stream:start", "assistant"),
        ("stream:chunk", "Let "),
        ("stream:chunk", "me "),
        ("stream:chunk", "look. "),
        ("tool:called", "weather", {"city": "Lima"}),
        ("tool:result", "weather", "ok", None, "Sunny in Lima"),
        ("stream:chunk", "Sunny."),
        ("stream:end",),
        ("message:received", "Sunny."),
    ]


async def test_events_of_parallel_tool_calls() -> None:
    async def broken(city: str) -> str:
        raise ToolFailed("no satellite")

    model = Scripted(calls("weather", city="Lima") + calls("broken", city="Oslo"), says("Half known."))
    async with in_memory_atlas(model, [weather, broken]) as atlas:
        events = await collect_events(atlas.send("Both?"))
    assert summarize_events(events)[2:6] == [
        ("tool:called", "weather", {"city": "Lima"}),
        ("tool:called", "broken", {"city": "Oslo"}),
        ("tool:result", "weather", "ok", None, "Sunny in Lima"),
        ("tool:result", "broken", "error", "failed", "no satellite"),
    ]


async def test_result_is_emitted_when_its_call_ends_whatever_the_order() -> None:
    release = asyncio.Event()

    async def slow() -> str:
        await release.wait()
        return "slow"

    async def quick() -> str:
        return "quick"

    async with in_memory_atlas(Scripted(calls("slow") + calls("quick"), says("ok")), [slow, quick]) as atlas:
        stream, order = atlas.send("go"), list[str]()
        async with asyncio.timeout(TIMEOUT):
            async for event in stream:
                if event.type == "tool:result":
                    order.append(event.name)
                    release.set()
        results = atlas.conversation().messages[2].tool_results
    assert order == ["quick", "slow"]
    assert [result.result for result in results] == ["slow", "quick"]


async def test_events_of_a_failover() -> None:
    one = Scripted(says("Half an") + fails(ProviderError("gone", "network")), id="one")
    two = Scripted(says("A whole answer."), id="two")
    retry = RetryPolicy(order="given", retries=0)
    async with Atlas([Agent("a", providers=[one, two], retry=retry)]) as atlas:
        stream = atlas.send("Hi")
        events = await collect_events(stream)
    assert summarize_events(events) == [
        ("message:sent", "Hi"),
        ("stream:start", "a"),
        ("stream:chunk", "Half "),
        ("stream:chunk", "an"),
        ("stream:reset",),
        ("stream:chunk", "A "),
        ("stream:chunk", "whole "),
        ("stream:chunk", "answer."),
        ("stream:end",),
        ("message:received", "A whole answer."),
    ]
    assert stream.text == "A whole answer."


async def test_events_of_a_failure() -> None:
    async with in_memory_atlas(Scripted(says("Half") + fails(ProviderError("no credit", "quota")))) as atlas:
        stream = atlas.send("Hi")
        events = await collect_events(stream)
    assert summarize_events(events) == [
        ("message:sent", "Hi"),
        ("stream:start", "assistant"),
        ("stream:chunk", "Half"),
        ("stream:reset",),
        ("stream:end", "no credit"),
        ("error", "quota", "no credit"),
    ]
    assert stream.text == ""


async def test_events_of_a_cancelled_answer() -> None:
    model = PausedProvider(Scripted(says("One two three")), after=2)
    async with in_memory_atlas(model) as atlas:
        stream = atlas.send("Count")
        await asyncio.wait_for(model.reached.wait(), TIMEOUT)
        stream.cancel()
        events = await collect_events(stream)
    assert summarize_events(events) == [
        ("message:sent", "Count"),
        ("stream:start", "assistant"),
        ("stream:chunk", "One "),
        ("stream:chunk", "two "),
        ("stream:end", "cancelled"),
    ]


async def test_events_of_a_cancelled_tool() -> None:
    started = asyncio.Event()

    async def slow(n: int) -> None:
        started.set()
        await asyncio.Event().wait()

    model = Scripted(calls("slow", n=1) + calls("slow", n=2), says("never"))
    async with in_memory_atlas(model, [slow], agent={"parallel_tools": False}) as atlas:
        stream = atlas.send("go")
        await asyncio.wait_for(started.wait(), TIMEOUT)
        stream.cancel()
        events = await collect_events(stream)
    assert summarize_events(events) == [
        ("message:sent", "go"),
        ("stream:start", "assistant"),
        ("tool:called", "slow", {"n": 1}),
        ("tool:called", "slow", {"n": 2}),
        ("tool:result", "slow", "unknown", "unknown", CUT),
        ("tool:result", "slow", "error", "declined", NEVER),
        ("stream:end", "cancelled"),
    ]


async def test_events_at_the_round_limit() -> None:
    model = Scripted(says("Trying. ") + calls("weather", city="Lima"))
    async with in_memory_atlas(model, [weather], agent={"max_rounds": 1}) as atlas:
        events = await collect_events(atlas.send("Lima?"))
    assert summarize_events(events)[2:] == [
        ("stream:chunk", "Trying. "),
        ("tool:called", "weather", {"city": "Lima"}),
        ("tool:result", "weather", "ok", None, "Sunny in Lima"),
        ("stream:end",),
        ("message:received", "Trying. "),
    ]


async def test_retry_withdraws_streamed_text() -> None:
    clock = VirtualClock()
    model = Scripted(says("Half") + fails(ProviderError("gone", "network")), says("Whole"))
    async with in_memory_atlas(model, clock=clock) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("Hi")
        await clock.advance(10)
        events = await collect_events(stream)
    kinds = [entry for entry in summarize_events(events) if entry[0].startswith("stream:")]
    assert kinds[1:] == [("stream:chunk", "Half"), ("stream:reset",), ("stream:chunk", "Whole"), ("stream:end",)]


# Fields of events


async def test_events_have_the_specified_fields() -> None:
    model = Scripted(says("Hm. ") + calls("weather", city="Lima") + calls("weather", town="Lima"), says("Sunny."))
    async with in_memory_atlas(model, [weather]) as atlas:
        stream = atlas.send("Lima?")
        events = await collect_events(stream)
    by_type: dict[str, list[Any]] = {}
    for event in events:
        by_type.setdefault(event.type, []).append(event)
    assert by_type["stream:chunk"][0].text == "Hm. "
    called, answered = by_type["tool:called"], sorted(by_type["tool:result"], key=lambda event: event.call_id)
    assert [event.name for event in called] == ["weather", "weather"]
    assert [event.arguments for event in called] == [{"city": "Lima"}, {"town": "Lima"}]
    assert [event.call_id for event in called] == [event.call_id for event in answered]
    assert [event.arguments for event in answered] == [event.arguments for event in called]
    assert [(event.name, event.status, event.error) for event in answered] == [
        ("weather", "ok", None),
        ("weather", "error", "bad_arguments"),
    ]
    assert answered[0].result == "Sunny in Lima"
    (end,) = by_type["stream:end"]
    assert (end.cancelled, end.error, end.usage) == (False, None, Usage(1 + 3, 1 + 1))
    assert by_type["message:sent"][0].message.text == "Lima?"
    assert by_type["message:received"][0].message is await stream.reply()


# on and off


async def test_subscriber_gets_events_of_its_name_from_ask_and_send() -> None:
    received: list[str] = []

    async def on_chunk(event: Any) -> None:
        received.append(event.text)

    async with in_memory_atlas(Scripted(says("One two"), says("Three"))) as atlas:
        atlas.on("stream:chunk", on_chunk)
        await atlas.ask("Count")
        await atlas.send("on").reply()
    assert received == ["One ", "two", "Three"]


async def test_function_or_object_may_subscribe() -> None:
    received: list[str] = []

    class Listener:
        async def __call__(self, event: Event) -> None:
            received.append(f"object {event.type}")

    async with in_memory_atlas(Scripted(says("Hi"))) as atlas:
        atlas.on("stream:end", lambda event: received.append(f"function {event.type}"))
        atlas.on("stream:end", Listener())
        await atlas.ask("Hi")
    assert sorted(received) == ["function stream:end", "object stream:end"]


async def test_every_event_name_can_be_subscribed() -> None:
    received: list[str] = []
    model = Scripted(says("Half") + fails(ProviderError("gone", "network")), calls("weather", city="x"), says("ok"))
    clock = VirtualClock()
    async with in_memory_atlas(model, [weather], clock=clock) as atlas, asyncio.timeout(TIMEOUT):
        for name in ("message:sent", "stream:start", "stream:chunk", "stream:reset", "tool:called", "tool:result"):
            atlas.on(name, lambda event: received.append(event.type))
        atlas.on("stream:end", lambda event: received.append(event.type))
        atlas.on("message:received", lambda event: received.append(event.type))
        stream = atlas.send("go")
        await clock.advance(10)
        emitted = [event.type for event in await collect_events(stream)]
        await stream.reply()
    assert sorted(received) == sorted(emitted)


async def test_subscriber_gets_one_event_at_a_time_in_order() -> None:
    received: list[str] = []
    busy = 0

    async def slow(event: Any) -> None:
        nonlocal busy
        busy += 1
        assert busy == 1
        await asyncio.sleep(0)
        received.append(event.text)
        busy -= 1

    text = [f"{number} " for number in range(50)]
    async with in_memory_atlas(Scripted(says("".join(text)))) as atlas:
        atlas.on("stream:chunk", slow)
        await atlas.ask("Count")
    assert received == text


async def test_on_returns_an_unsubscribe_function() -> None:
    received: list[str] = []

    def listen(event: Any) -> None:
        received.append(event.text)

    async with in_memory_atlas(Scripted(says("1"), says("2"), says("3"), says("4"))) as atlas:
        remove = atlas.on("stream:chunk", listen)
        await atlas.ask("a")
        remove()
        remove()
        await atlas.ask("b")
        atlas.on("stream:chunk", listen)
        await atlas.ask("c")
        atlas.off("stream:chunk", listen)
        atlas.off("stream:chunk", listen)
        await atlas.ask("d")
    assert received == ["1", "3"]


def test_unknown_event_error_lists_the_known_names() -> None:
    atlas = in_memory_atlas(Scripted())
    for use in (atlas.on, atlas.off):
        with pytest.raises(ConfigError, match=r"unknown event 'tool:results', expected one of .*tool:result"):
            use("tool:results", print)  # pyrefly: ignore[bad-argument-type] - wrong on purpose
    with pytest.raises(ConfigError, match="expected a function that takes an event, got 7"):
        atlas.on("error", 7)  # pyrefly: ignore[bad-argument-type] - wrong on purpose


async def test_failed_turn_is_reported_to_error_subscribers() -> None:
    received: list[tuple[str, str]] = []
    async with in_memory_atlas(Scripted(fails(ProviderError("no credit", "quota")))) as atlas:
        atlas.on("error", lambda event: received.append((event.kind, event.message)))
        with pytest.raises(ProviderError):
            await atlas.ask("Hi")
    assert received == [("quota", "no credit")]


# Subscribers that fail or hang


def throws(event: Any) -> None:
    raise ValueError("mine")


async def throws_async(event: Any) -> None:
    raise ValueError("mine")


def exits(event: Any) -> None:
    raise SystemExit(3)


async def exits_async(event: Any) -> None:
    raise SystemExit(3)


async def gives_up(event: Any) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("listener", [throws, throws_async, exits, exits_async, gives_up])
async def test_subscriber_that_raises_does_no_harm(listener: Any, caplog: pytest.LogCaptureFixture) -> None:
    received: list[str] = []
    async with in_memory_atlas(Scripted(says("One two three"), says("Four"))) as atlas:
        atlas.on("stream:chunk", listener)
        atlas.on("stream:chunk", lambda event: received.append(event.text))
        assert (await atlas.ask("Count")).text == "One two three"
        assert (await atlas.ask("on")).text == "Four"
    assert received == ["One ", "two ", "three", "Four"]
    if listener is not gives_up:
        assert caplog.text.count("event=stream:chunk") == 4


async def hangs_async(event: Any) -> None:
    await asyncio.Event().wait()


def hangs(event: Any) -> None:
    threading.Event().wait(3)


async def hangs_and_ignores_it(event: Any) -> None:
    await ignore_cancellation(asyncio.Event(), 3)


class LogWaiter(logging.Handler):
    """Waits for a line in the log."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.seen = text, asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.seen.set()


@pytest.mark.slow
@pytest.mark.parametrize("listener", [hangs_async, hangs, hangs_and_ignores_it])
async def test_listener_that_hangs_does_no_harm(listener: Any) -> None:
    received: list[str] = []
    skipped = LogWaiter("skipped an event of a listener that timed out")
    logging.getLogger("atlas_agents").addHandler(skipped)
    async with in_memory_atlas(Scripted(says("One two"), says("Three"))) as atlas, asyncio.timeout(TIMEOUT):
        hanging = atlas.on("stream:chunk", listener)
        atlas.on("stream:chunk", lambda event: received.append(event.text))
        async with measure_loop_time() as spent:
            assert (await atlas.ask("Count")).text == "One two"
            assert spent.seconds < 0.8
        await skipped.seen.wait()
        async with measure_loop_time() as spent:
            assert (await atlas.ask("on")).text == "Three"
            assert spent.seconds < 0.8  # the one that timed out is not awaited
        assert hanging.skipped >= 2
    logging.getLogger("atlas_agents").removeHandler(skipped)
    assert received == ["One ", "two", "Three"]


def chunk(number: int) -> StreamChunk:
    return StreamChunk("s", str(number))


async def delivered(listener: Listener) -> None:
    """Wait until a listener has no event left."""
    while task := listener.running(background=False) or listener.running(background=True):
        await task


@pytest.mark.parametrize("is_sync", [False, True])
async def test_slow_listener_skips_events_and_receives_later_ones(
    is_sync: bool, caplog: pytest.LogCaptureFixture
) -> None:
    received: list[str] = []
    started, release = asyncio.Event(), threading.Event()

    async def slow(event: StreamChunk) -> None:
        received.append(event.text)
        if event.text == "1":
            await asyncio.Event().wait()

    def slow_sync(event: StreamChunk) -> None:
        received.append(event.text)
        if event.text == "1":
            release.wait(TIMEOUT)

    subscribers = Subscribers(str, timeout=0.01)
    listener = subscribers.on("stream:chunk", slow_sync if is_sync else slow)
    waiter = LogWaiter("skipped an event of a listener that timed out")
    waiter.seen = started
    logging.getLogger("atlas_agents").addHandler(waiter)
    for number in (1, 2, 3):
        subscribers.publish(chunk(number))
    async with asyncio.timeout(TIMEOUT):
        await started.wait()
        if is_sync:
            subscribers.publish(chunk(4))
            assert listener.skipped == 4
            release.set()
        if listener.late is not None:
            await asyncio.wait({listener.late})
        subscribers.publish(chunk(5))
        await delivered(listener)
    logging.getLogger("atlas_agents").removeHandler(waiter)
    assert received == ["1", "5"] and listener.skipped == (4 if is_sync else 3)
    assert caplog.text.count("event=stream:chunk skipped=3") == 1


async def test_listener_in_the_background_may_be_slow_and_is_not_awaited_by_turns() -> None:
    received: list[str] = []
    release = asyncio.Event()

    async def slow(event: Any) -> None:
        await release.wait()
        received.append(event.text)

    async with in_memory_atlas(Scripted(says("One two"))) as atlas, asyncio.timeout(TIMEOUT):
        listener = atlas.on("stream:chunk", slow, background=True)
        async with measure_loop_time() as spent:
            await atlas.ask("Count")
        assert spent.seconds < 0.2 and received == []
        release.set()
    assert received == ["One ", "two"] and listener.skipped == 0


async def test_full_queue_of_a_listener_skips_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    received: list[str] = []
    release = asyncio.Event()

    async def slow(event: StreamChunk) -> None:
        await release.wait()
        received.append(event.text)

    subscribers = Subscribers(str)
    listener = subscribers.on("stream:chunk", slow, background=True, max_queue=2)
    for number in range(5):
        subscribers.publish(chunk(number))
    release.set()
    await delivered(listener)
    assert received == ["3", "4"] and listener.skipped == 3
    assert caplog.text.count("skipping events of a listener whose queue is full") == 1
    with pytest.raises(ConfigError, match="max_queue must be at least 1, got 0"):
        subscribers.on("error", slow, background=True, max_queue=0)


async def test_sync_subscriber_does_not_block_the_event_loop() -> None:
    lived: list[bool] = []
    async with monitor_loop() as monitor, in_memory_atlas(Scripted(says("One two"))) as atlas:
        atlas.on("stream:chunk", lambda event: lived.append(monitor.keeps_running()))
        await atlas.ask("Count")
    assert lived == [True, True]


async def test_subscriber_may_call_the_atlas() -> None:
    answers: list[str] = []
    async with in_memory_atlas(Scripted(says("One"), says("Two"))) as atlas:

        async def ask_again(event: Any) -> None:
            if not answers:
                answers.append("")
                answers.append((await atlas.ask("more", session="other")).text)

        atlas.on("message:received", ask_again)
        await atlas.ask("Count")
    assert answers == ["", "Two"]


async def test_finished_streams_are_garbage_collected() -> None:
    async with in_memory_atlas(Scripted(*[says("Hi")] * 50)) as atlas:
        for _ in range(50):
            await atlas.send("Hi").reply()
        gc.collect()
        others = asyncio.all_tasks() - {asyncio.current_task()}
    assert others == set()


async def test_follower_gets_past_events_first_and_new_ones_at_once() -> None:
    async with in_memory_atlas(Scripted(says("one two"))) as atlas:
        stream, received = atlas.send("Go"), list[str]()
        async for event in stream:
            if event.type == "stream:chunk":
                break
        stream.follow(lambda event: received.append(event.type))
        assert received[-1] == "stream:chunk"
        await stream.reply()
        assert received == [event.type async for event in stream]
