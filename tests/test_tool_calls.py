"""Pipeline of a tool call: find, permit, validate, confirm, run. The model always gets exactly one result."""

import asyncio
import os
import sqlite3
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pydantic
import pytest

from atlas_agents import (
    Agent,
    Atlas,
    BadTool,
    Conversation,
    File,
    Image,
    Message,
    Metadata,
    NotPermitted,
    Question,
    Request,
    Tool,
    ToolContext,
    ToolFailed,
    Transient,
    tool,
)
from atlas_agents.testing import Scripted, VirtualClock, calls, in_memory_atlas, says
from checks import TIMEOUT, collect_events, ignore_cancellation, is_paired, monitor_loop, summarize_events

NEUTRAL = "Tool execution failed. The error has been logged for investigation."


async def outcome(made: Any, *, approve: Any = None, **arguments: Any) -> tuple[str, Any, Any]:
    """Return (status, kind, result) of one call, and check that the turn continues after it."""
    name = made.name if isinstance(made, Tool) else made.__name__
    async with in_memory_atlas(Scripted(calls(name, **arguments), says("Done.")), [made], approve=approve) as atlas:
        events = await collect_events(atlas.send("go"))
        assert atlas.conversation().messages[-1].text == "Done."
        assert is_paired(atlas.conversation().messages)
    (result,) = [event for event in events if event.type == "tool:result"]
    return result.status, result.error, result.result


# Unusual results


class Weird:
    def __repr__(self) -> str:
        return "x" * 100_000_000


class Endless(Exception):
    def __str__(self) -> str:
        return "x" * 50_000_000


class BrokenMessage(ToolFailed):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unusual(BaseException):
    """Neither an Exception nor one of the three that end a program."""


def cycle() -> Any:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def raises(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


AWKWARD: list[tuple[str, Callable[[], Any], str, str]] = [
    ("NaN", lambda: float("nan"), "failed", "nan is not JSON"),
    ("infinity inside", lambda: {"a": [float("inf")]}, "failed", "inf is not JSON"),
    ("cycle", cycle, "failed", "the result contains itself or is nested too deeply"),
    ("100 MB", lambda: "x" * 100_000_000, "failed", "the result is 100,000,000 characters long"),
    ("100 MB inside", lambda: ["x" * 100_000_000], "failed", "the result is 100,000,004 characters long"),
    ("object", object, "failed", "object is not a JSON type"),
    ("object of huge repr", Weird, "failed", "Weird is not a JSON type"),
    ("key that is not text", lambda: {(1, 2): 3}, "failed", "the result cannot be encoded as JSON"),
    ("half a surrogate pair inside", lambda: ["\ud83d"], "failed", "the result cannot be encoded as JSON"),
    ("SystemExit", raises(SystemExit(3)), "internal", NEUTRAL),
    ("KeyboardInterrupt", raises(KeyboardInterrupt()), "internal", NEUTRAL),
    ("GeneratorExit", raises(GeneratorExit()), "internal", NEUTRAL),
    ("StopIteration", raises(StopIteration(1)), "internal", NEUTRAL),
    ("CancelledError", raises(asyncio.CancelledError()), "failed", "act cancelled itself"),
    ("another BaseException", raises(Unusual()), "internal", NEUTRAL),
    ("a bug", raises(ZeroDivisionError("secret")), "internal", NEUTRAL),
    ("exception of huge text", raises(Endless()), "internal", NEUTRAL),
    ("fault of huge text", raises(ToolFailed("y" * 50_000_000)), "failed", "yyyyyyyyyy"),
    ("fault without text", raises(BrokenMessage()), "failed", "BrokenMessage"),
    ("fault", raises(ToolFailed("no such city")), "failed", "no such city"),
    ("fault of another kind", raises(NotPermitted("not yours")), "not_permitted", "not yours"),
]


@pytest.mark.parametrize(("name", "act", "kind", "words"), AWKWARD, ids=[case[0] for case in AWKWARD])
@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "in_process"])
async def test_odd_result_or_error_becomes_an_error_for_the_model(
    name: str, act: Callable[[], Any], kind: str, words: str, in_thread: bool
) -> None:
    async def act_async() -> Any:
        return act()

    made = tool(name="act", in_process=True)(act if in_thread else act_async)
    status, error, result = await outcome(made)
    assert (status, error) == ("error", kind)
    assert words in result
    assert len(result) < 12_000


class Words(str):
    """A subclass of str."""


class Choice(str, Enum):  # noqa: UP042 - people write it
    YES = "yes"


PNG = b"\x89PNG\r\n\x1a\n"
FINE: list[tuple[str, Any, Any]] = [
    ("nothing", None, None),
    ("text", "ünï\U0001f600", "ünï\U0001f600"),
    ("half a surrogate pair", "a\ud83d", "a\ufffd"),
    ("a large number", 2**100, 2**100),
    ("a fraction", 0.1, 0.1),
    ("a date", date(2026, 1, 2), "2026-01-02"),
    ("a decimal", Decimal("1.10"), "1.10"),
    ("a tuple", (1, "a"), [1, "a"]),
    ("a text of one's own kind", Words("hi"), "hi"),
    ("a choice", Choice.YES, "yes"),
    ("keys that are numbers", {1: "a"}, {"1": "a"}),
    ("a set", {5}, [5]),
    ("bytes of a text", {"a": [bytearray("ü".encode())]}, {"a": ["ü"]}),
    ("bytes of an image", PNG, {"type": "image", "media_type": "image/png", "data": "iVBORw0KGgo="}),
    ("an image", [Image.of(PNG)], [{"type": "image", "media_type": "image/png", "data": "iVBORw0KGgo="}]),
    (
        "other bytes",
        b"\x00\xff",
        {"type": "file", "name": "result.bin", "media_type": "application/octet-stream", "data": "AP8="},
    ),
    (
        "a file",
        File.of(b"x", "x.pdf"),
        {"type": "file", "name": "x.pdf", "media_type": "application/pdf", "data": "eA=="},
    ),
    ("a path", PurePosixPath("a/b"), "a/b"),
]


@pytest.mark.parametrize(("name", "value", "read"), FINE, ids=[case[0] for case in FINE])
async def test_plain_values_are_returned_unchanged(name: str, value: Any, read: Any) -> None:
    async def act() -> Any:
        return value

    status, error, result = await outcome(act)
    assert (status, error, result) == ("ok", None, read)
    assert type(result) is type(read)


@dataclass
class Report:
    title: str
    pages: list[int]


class Model(pydantic.BaseModel):
    when: date


async def test_dataclasses_and_models_become_json_objects() -> None:
    async def report() -> Report:
        return Report("R", [1])

    async def model() -> dict[str, Model]:
        return {"m": Model(when=date(2026, 1, 2))}

    assert await outcome(report) == ("ok", None, {"title": "R", "pages": [1]})
    assert await outcome(model) == ("ok", None, {"m": {"when": "2026-01-02"}})


class Point(NamedTuple):
    x: int
    y: int


async def test_named_tuples_are_json_arrays_as_arguments_and_as_results() -> None:
    @tool
    async def mirror(points: list[Point]) -> dict[str, Point]:
        """Mirror points."""
        return {"mirrored": Point(points[0].y, points[0].x)}

    model = Scripted(calls("mirror", points=[[1, 2]]), says("Done."))
    async with in_memory_atlas(model, [mirror]) as atlas:
        (step,) = (await atlas.run("go")).steps
    assert (step.status, step.output) == ("ok", {"mirrored": [2, 1]})


def count(until: int) -> Generator[str, None, int]:
    """Count."""
    for number in range(1, until + 1):
        yield f"{number} of {until}"
    return until


def count_on(until: int) -> Generator[Any, None, None]:
    """Count without a return value."""
    yield "one"
    yield {"count": until}


async def count_async(until: int) -> AsyncGenerator[Any, None]:
    """Count without a return value."""
    yield "one"
    yield {"count": until}


@pytest.mark.parametrize(
    ("made", "progress", "result"),
    [
        (tool(count), ["1 of 2", "2 of 2"], 2),
        (tool(in_process=True)(count), ["1 of 2", "2 of 2"], 2),
        (tool(count_on), ["one", '{"count": 2}'], {"count": 2}),
        (tool(count_async), ["one", '{"count": 2}'], {"count": 2}),
    ],
    ids=["worker", "thread", "without a return value", "async"],
)
async def test_yields_of_a_generator_are_progress(made: Any, progress: list[str], result: Any) -> None:
    async with in_memory_atlas(Scripted(calls(made.name, until=2), says("ok")), [made]) as atlas:
        events = await collect_events(atlas.send("go"))
    assert [event.message for event in events if event.type == "tool:progress"] == progress
    assert [event.result for event in events if event.type == "tool:result"] == [result]


async def test_generator_that_times_out_is_closed() -> None:
    clock, started, closed = VirtualClock(), asyncio.Event(), list[int]()

    @tool(timeout=1)
    async def endless() -> AsyncGenerator[str, None]:
        """Never end."""
        try:
            yield "started"
            started.set()
            await asyncio.Event().wait()
        finally:
            closed.append(1)

    model = Scripted(calls("endless"), says("ok"))
    async with in_memory_atlas(model, [endless], clock=clock) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go")
        await started.wait()
        await clock.advance(2)
        (result,) = [event for event in await collect_events(stream) if event.type == "tool:result"]
    assert (result.status, result.error, closed) == ("unknown", "timeout", [1])


async def test_generator_in_a_thread_is_stopped_at_its_next_yield() -> None:
    clock, loop, started = VirtualClock(), asyncio.get_running_loop(), asyncio.Event()
    release, closed, steps = threading.Event(), threading.Event(), list[int]()

    @tool(timeout=1, in_process=True)
    def endless() -> Generator[str, None, None]:
        """Never end."""
        try:
            while True:
                yield "working"
                loop.call_soon_threadsafe(started.set)
                release.wait(TIMEOUT)
                steps.append(1)
        finally:
            closed.set()

    model = Scripted(calls("endless"), says("ok"))
    async with in_memory_atlas(model, [endless], clock=clock) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go")
        await started.wait()
        await clock.advance(2)
        (result,) = [event for event in await collect_events(stream) if event.type == "tool:result"]
        release.set()
        assert await asyncio.to_thread(closed.wait, TIMEOUT)
    assert (result.status, result.error, steps) == ("unknown", "timeout", [1])


async def test_error_of_a_bug_is_logged_and_not_shown_to_the_model(caplog: pytest.LogCaptureFixture) -> None:
    async def act() -> None:
        raise ZeroDivisionError("secret detail")

    assert await outcome(act) == ("error", "internal", NEUTRAL)
    assert "secret detail" in caplog.text
    assert "tool failed: tool=act" in caplog.text


async def test_tool_may_modify_its_arguments_without_changing_history() -> None:
    async def typed(items: list[Any], box: dict[str, Any]) -> str:
        items[0].append("more")
        box["x"].clear()
        return "ok"

    async def plain(items: list[Any], box: dict[str, Any]) -> str:
        return await typed(items, box)

    for made in (tool(typed), Tool("plain", plain, parameters={"items": list, "box": dict})):
        model = Scripted(calls(made.name, items=[["one"]], box={"x": [1]}), says("ok"))
        async with in_memory_atlas(model, [made]) as atlas:
            result = await atlas.run("go")
        assert result.steps[0].status == "ok"
        assert result.intermediate[0].tool_calls[0].arguments == {"items": [["one"]], "box": {"x": [1]}}


def sender_of(arguments: dict[str, Any]) -> str:
    return "mail: " + arguments["sender"]


async def async_sender_of(arguments: dict[str, Any]) -> str:
    return sender_of(arguments)


@pytest.mark.parametrize("function", [sender_of, async_sender_of])
async def test_source_of_a_result_comes_from_a_function_and_its_failure_counts_as_untrusted(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @tool(untrusted=function)
    async def read_mail(id: int, sender: str | None = None) -> str:
        """Read a mail."""
        return f"mail {id}"

    model = Scripted(calls("read_mail", id=1, sender="eve"), calls("read_mail", id=2), says("ok"))
    async with in_memory_atlas(model, [read_mail]) as atlas:
        result = await atlas.run("go")
        rows = await atlas.audit.records("default")
    assert [step.status for step in result.steps] == ["ok", "ok"]
    assert [row.entry.meta["untrusted"] for row in rows] == ["mail: eve", "read_mail"]
    assert "untrusted failed: tool=read_mail" in caplog.text and "KeyError" in caplog.text


# Parallel calls


async def test_each_of_eight_parallel_calls_gets_its_own_result_in_order() -> None:
    clock = VirtualClock()
    slow_started, quick_done = asyncio.Event(), asyncio.Event()

    async def good(n: int) -> str:
        await asyncio.sleep(0)
        return f"good {n}"

    async def fails(n: int) -> str:
        raise ToolFailed("cannot")

    @tool(timeout=5)
    async def hangs(n: int) -> str:
        slow_started.set()
        await asyncio.Event().wait()
        return "never"

    async def breaks(n: int) -> str:
        raise RuntimeError("bug")

    async def waits(n: int) -> str:
        await quick_done.wait()
        return "waited"

    script = (
        calls("good", n=1)
        + calls("fails", n=2)
        + calls("hangs", n=3)
        + calls("nowhere", n=4)
        + calls("good", n="five")
        + calls("breaks", n=6)
        + calls("waits", n=7)
        + calls("good", n=8)
    )
    atlas = in_memory_atlas(Scripted(script, says("All read.")), [good, fails, hangs, breaks, waits], clock=clock)
    async with atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go")
        await slow_started.wait()
        quick_done.set()
        await clock.advance(5)
        assert (await stream.reply()).text == "All read."
        messages = atlas.conversation().messages
    assert is_paired(messages)
    results = messages[2].tool_results
    assert [call.id for call in messages[1].tool_calls] == [result.call_id for result in results]
    known = "breaks, fails, good, hangs, waits"
    assert [(result.status, result.error, result.result) for result in results] == [
        ("ok", None, "good 1"),
        ("error", "failed", "cannot"),
        ("unknown", "timeout", "hangs took longer than 5 s and was stopped; it may have happened"),
        ("error", "not_found", f"Unknown tool 'nowhere'. Available tools: {known}."),
        ("error", "bad_arguments", 'n: "five" is not of type "integer"'),
        ("error", "internal", NEUTRAL),
        ("ok", None, "waited"),
        ("ok", None, "good 8"),
    ]


@pytest.mark.parametrize("parallel", [True, False])
async def test_calls_of_one_round_run_in_parallel_or_in_sequence(parallel: bool) -> None:
    running = most = 0

    async def work(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1
        return n

    model = Scripted(calls("work", n=1) + calls("work", n=2) + calls("work", n=3), says("ok"))
    async with in_memory_atlas(model, [work], agent={"parallel_tools": parallel}) as atlas:
        result = await atlas.run("go")
    assert [step.output for step in result.steps] == [1, 2, 3]
    assert most == (3 if parallel else 1)


async def test_all_calls_are_checked_before_the_first_one_runs() -> None:
    happened: list[str] = []

    @tool(confirm=True)
    async def act(n: int) -> int:
        happened.append(f"act {n}")
        return n

    def approve(question: Question) -> bool:
        happened.append(f"ask {question.arguments['n']}")
        return question.arguments["n"] != 2

    model = Scripted(calls("act", n=1) + calls("act", n=2) + calls("act", n=3), says("ok"))
    async with in_memory_atlas(model, [act], approve=approve) as atlas:
        result = await atlas.run("go")
    assert happened == ["ask 1", "ask 2", "ask 3", "act 1", "act 3"]
    assert [step.output for step in result.steps] == [1, {"cancelled": True}, 3]


# Timeout and retry


@pytest.mark.parametrize(
    ("effect", "status", "tries"), [("pure", "error", 4), ("keyed", "unknown", 4), ("unsafe", "unknown", 1)]
)
async def test_tool_that_times_out_is_stopped(effect: Any, status: str, tries: int) -> None:
    clock, started, stopped = VirtualClock(), asyncio.Event(), list[float]()

    @tool(timeout=2.5, effect=effect)
    async def slow() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(clock.monotonic())

    async with (
        in_memory_atlas(Scripted(calls("slow"), says("ok")), [slow], clock=clock) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        stream = atlas.send("go")
        await started.wait()
        await clock.advance(2.4)
        assert stopped == []
        await clock.advance(0.1)
        assert stopped == [2.5]
        await clock.advance(60)
        (result,) = [event for event in await collect_events(stream) if event.type == "tool:result"]
    assert len(stopped) == tries
    assert (result.status, result.error) == (status, "timeout")
    assert result.result.startswith("slow took longer than 2.5 s and was stopped")
    assert ("may have happened" in result.result) is (status == "unknown")


async def test_tool_that_ignores_its_timeout_is_abandoned() -> None:
    release = asyncio.Event()

    @tool(timeout=0.05)
    async def stubborn() -> str:
        await ignore_cancellation(release)
        return "late"

    async with asyncio.timeout(TIMEOUT):
        assert (await outcome(stubborn))[:2] == ("unknown", "timeout")
    release.set()


async def test_tool_that_raises_transient_is_retried() -> None:
    clock, tries = VirtualClock(), list[tuple[float, str]]()

    @tool
    async def flaky(context: ToolContext) -> str:
        tries.append((clock.monotonic(), context.idempotency_key))
        if len(tries) < 4:
            raise Transient("busy", retry_after=5 if len(tries) == 2 else None)
        return "at last"

    async with (
        in_memory_atlas(Scripted(calls("flaky"), says("ok")), [flaky], clock=clock) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        stream = atlas.send("go")
        await clock.advance(60)
        (result,) = [event for event in await collect_events(stream) if event.type == "tool:result"]
    assert (result.status, result.result) == ("ok", "at last")
    first, second, third, last = [moment for moment, _ in tries]
    assert first == 0
    assert 1 <= second <= 1.2
    assert third == second + 5
    assert 9 <= last - third <= 10.8
    assert {key for _, key in tries} == {f"{stream.stream_id}:{result.call_id}"}


async def test_result_after_three_retries_suggests_another_approach() -> None:
    clock, tries = VirtualClock(), list[int]()

    @tool
    async def down() -> None:
        tries.append(1)
        raise Transient("busy")

    async with (
        in_memory_atlas(Scripted(calls("down"), says("ok")), [down], clock=clock) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        stream = atlas.send("go")
        await clock.advance(60)
        (result,) = [event for event in await collect_events(stream) if event.type == "tool:result"]
    assert (result.status, result.error) == ("error", "failed")
    assert result.result == "busy (tried 4 times; try again later, or use another approach)"
    assert len(tries) == 4


class ServerError(Exception):
    status_code = 502


RETRIED = "(tried 4 times; try again later, or use another approach)"


@pytest.mark.parametrize(
    ("effect", "error", "text"),
    [
        ("keyed", ServerError(), f"The server answered HTTP 502 while act ran; it may have happened {RETRIED}"),
        ("keyed", ConnectionError(), f"The connection was lost while act ran; it may have happened {RETRIED}"),
        (
            "unsafe",
            ServerError(),
            "The server answered HTTP 502 while act ran; it may have happened. It was not retried.",
        ),
    ],
)
async def test_unknown_outcome_says_what_happened_and_whether_it_was_retried(
    effect: Any, error: Exception, text: str
) -> None:
    clock = VirtualClock()

    @tool(effect=effect)
    async def act() -> None:
        raise error

    async with (
        in_memory_atlas(Scripted(calls("act"), says("ok")), [act], clock=clock) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        stream = atlas.send("go")
        await clock.advance(60)
        (result,) = [event for event in await collect_events(stream) if event.type == "tool:result"]
    assert (result.status, result.result) == ("unknown", text)


# Permissions and confirmation


async def test_tool_with_a_permission_requires_a_grant() -> None:
    ran: list[str] = []

    @tool(permissions=["file:read"])
    async def read(path: str) -> None:
        ran.append(path)

    words = "read is not permitted for assistant: it requires file:read, and no policy grants that."
    assert await outcome(read, path="x") == ("error", "not_permitted", words)
    assert ran == []


async def yes(question: Question) -> bool:
    return True


async def once(question: Question) -> str:
    return "once"


def plain_yes(question: Question) -> bool:
    return True


async def no(question: Question) -> bool:
    return False


async def perhaps(question: Question) -> Any:
    return 1


async def fails_to_ask(question: Question) -> bool:
    raise ConnectionError("the screen is gone")


@pytest.mark.parametrize("approve", [yes, once, plain_yes])
async def test_approved_tool_runs(approve: Any) -> None:
    @tool(confirm=True)
    async def wipe(path: str) -> str:
        return f"wiped {path}"

    assert await outcome(wipe, approve=approve, path="/") == ("ok", None, "wiped /")


@pytest.mark.parametrize("approve", [None, no, perhaps, fails_to_ask])
async def test_any_other_answer_denies_the_call(approve: Any) -> None:
    ran: list[str] = []

    @tool(confirm=True)
    async def wipe(path: str) -> None:
        ran.append(path)

    assert await outcome(wipe, approve=approve, path="/") == ("error", "declined", {"cancelled": True})
    assert ran == []


async def test_question_has_the_tool_and_its_exact_arguments() -> None:
    asked: list[Question] = []

    @tool(confirm=True)
    async def wipe(path: str, deep: bool = False) -> None: ...

    await outcome(wipe, approve=asked.append, path=" /\u200b")
    (question,) = asked
    assert (question.title, question.message) == ("Confirm execution of wipe", "About to execute:")
    assert (question.tool, question.arguments, question.agent_id) == ("wipe", {"path": " /\u200b"}, "assistant")
    assert question.call_id and question.run_id


def dangerous(arguments: dict[str, Any]) -> bool:
    return arguments["path"].startswith("/")


async def dangerous_async(arguments: dict[str, Any]) -> bool:
    return arguments["path"].startswith("/")


def broken(arguments: dict[str, Any]) -> bool:
    raise KeyError("typo")


@pytest.mark.parametrize("confirm", [dangerous, dangerous_async])
async def test_confirmation_may_depend_on_the_arguments(confirm: Any) -> None:
    @tool(confirm=confirm)
    async def wipe(path: str) -> str:
        return "wiped"

    assert (await outcome(wipe, path="/etc"))[:2] == ("error", "declined")
    assert await outcome(wipe, path="tmp") == ("ok", None, "wiped")


async def test_failing_confirm_predicate_denies_the_call() -> None:
    @tool(confirm=broken)
    async def wipe(path: str) -> str:
        return "wiped"

    assert await outcome(wipe, path="tmp") == ("error", "declined", {"cancelled": True})


async def test_arguments_are_validated_before_a_person_is_asked() -> None:
    asked: list[Question] = []

    @tool(confirm=True)
    async def wipe(path: str) -> None: ...

    assert (await outcome(wipe, approve=asked.append, path=7))[:2] == ("error", "bad_arguments")
    assert asked == []


# The context of a call


def seen_in(context: ToolContext) -> dict[str, Any]:
    context.progress("half way")
    return {
        "agent": context.agent.id,
        "role": context.agent.role,
        "run_id": context.run_id,
        "call_id": context.call_id,
        "tenant": context.tenant_id,
        "metadata": context.metadata.get("user"),
        "key": context.idempotency_key,
        "received": [message.text for message in context.conversation.messages],
        "conversation": context.conversation.id,
    }


@tool
async def look_async(context: ToolContext, deep: bool) -> dict[str, Any]:
    """Look around."""
    return seen_in(context)


@tool(in_process=True)
def look_in_thread(deep: bool, context: ToolContext) -> dict[str, Any]:
    """Look around."""
    return seen_in(context)


@tool(in_process=False)
def look_in_worker(deep: bool, context: ToolContext) -> dict[str, Any]:
    """Look around."""
    return {**seen_in(context), "elsewhere": os.getpid()}


@pytest.mark.parametrize("made", [look_async, look_in_thread, look_in_worker], ids=lambda made: made.name)
async def test_tool_receives_its_context_and_the_model_does_not_see_it(made: Tool) -> None:
    assert made.parameters["properties"] == {"deep": {"type": "boolean"}}
    model = Scripted(calls(made.name, deep=True), says("ok"))
    agent = Agent("a", model=model, tools=[made], role="clerk", metadata={"user": "Al"})
    async with Atlas([agent], tenant="acme") as atlas:
        stream = atlas.send("look", session="s")
        events = await collect_events(stream)
    (called,) = [event for event in events if event.type == "tool:called"]
    (result,) = [event for event in events if event.type == "tool:result"]
    assert result.status == "ok", result
    if made is look_in_worker:
        assert result.result.pop("elsewhere") != os.getpid()
    assert result.result == {
        "agent": "a",
        "role": "clerk",
        "run_id": stream.stream_id,
        "call_id": called.call_id,
        "tenant": "acme",
        "metadata": "Al",
        "key": f"{stream.stream_id}:{called.call_id}",
        "received": ["look", ""],
        "conversation": "s",
    }
    kinds = [event.type for event in events if event.type.startswith("tool:")]
    assert kinds == ["tool:called", "tool:progress", "tool:result"]
    assert ("tool:progress", made.name, "half way") in summarize_events(events)


async def test_async_tool_receives_the_same_agent_and_conversation() -> None:
    seen: list[Any] = []

    async def look(context: ToolContext) -> None:
        seen.extend([context.agent, context.conversation])

    model = Scripted(calls("look"), says("ok"))
    agent, conversation = Agent("a", model=model, tools=[look]), Conversation()
    async with Atlas([agent]) as atlas:
        await atlas.ask("go", session=conversation)
    assert seen == [agent, conversation]


async def test_progress_from_a_thread_reaches_listeners_before_the_result() -> None:
    received: list[str] = []

    @tool(in_process=True)
    def work(context: ToolContext) -> str:
        for step in range(3):
            context.progress(f"step {step}")
        return "done"

    async with in_memory_atlas(Scripted(calls("work"), says("ok")), [work]) as atlas:
        atlas.on("tool:progress", lambda event: received.append(event.message))
        events = await collect_events(atlas.send("go"))
    steps = ["step 0", "step 1", "step 2"]
    assert received == steps
    tools = [entry[-1] for entry in summarize_events(events) if entry[0] in ("tool:progress", "tool:result")]
    assert tools == [*steps, "done"]


async def test_abandoned_tool_emits_no_progress() -> None:
    release, late = asyncio.Event(), asyncio.Event()

    @tool(timeout=0.05)
    async def stubborn(context: ToolContext) -> None:
        await ignore_cancellation(release)
        context.progress("still here")
        late.set()

    async with in_memory_atlas(Scripted(calls("stubborn"), says("ok")), [stubborn]) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go")
        before = await collect_events(stream)
        release.set()
        await late.wait()
        assert await collect_events(stream) == before


# Where sync functions run


async def test_in_process_sync_tool_does_not_block_the_event_loop() -> None:
    async with monitor_loop() as monitor:

        @tool(in_process=True)
        def work() -> bool:
            return monitor.keeps_running() and threading.current_thread() is not threading.main_thread()

        assert await outcome(work) == ("ok", None, True)


marked: ContextVar[str] = ContextVar("marked", default="no")


async def test_context_variables_reach_functions_in_threads() -> None:
    @tool(in_process=True)
    def work() -> str:
        return marked.get()

    marked.set("yes")
    assert await outcome(work) == ("ok", None, "yes")


async def test_sync_tool_runs_in_another_process_and_cannot_end_this_one() -> None:
    @tool
    def where() -> int:
        """Return the id of the process."""
        return os.getpid()

    @tool
    def exit_politely() -> None:
        """End the process."""
        sys.exit(3)

    def leave() -> None:
        """End the process at once."""
        os._exit(1)

    tools = [where, exit_politely, tool(leave), tool(name="leave_quietly", effect="pure")(leave)]
    tools.append(tool(name="leave_keyed", effect="keyed")(leave))
    script = calls("where") + calls("exit_politely") + calls("leave") + calls("leave_quietly") + calls("leave_keyed")
    async with in_memory_atlas(Scripted(script, says("ok")), tools) as atlas:
        await atlas.ask("go")
        here, *others = atlas.conversation().messages[2].tool_results
    assert (here.status, here.result != os.getpid()) == ("ok", True)
    assert [(other.status, other.error, other.result) for other in others] == [
        ("error", "internal", NEUTRAL),
        ("unknown", "unknown", "The process ended while leave ran; it may have happened. It was not retried."),
        ("error", "internal", NEUTRAL),
        ("unknown", "unknown", "The process ended while leave_keyed ran; it may have happened. It was not retried."),
    ]


async def test_sync_tool_gets_copies_of_captured_state() -> None:
    box: list[int] = [1]

    @tool
    def add(n: int) -> list[int]:
        """Add to the box."""
        box.append(n)
        return box

    assert await outcome(add, n=2) == ("ok", None, [1, 2])
    assert box == [1]


async def test_sync_tool_over_objects_that_cannot_be_sent_runs_in_a_thread() -> None:
    database = sqlite3.connect(":memory:", check_same_thread=False)

    @tool(effect="pure")
    def query(number: int) -> list[int]:
        """Query the database."""
        return [os.getpid(), *database.execute("SELECT ?", (number,)).fetchone()]

    class Shop:
        def __init__(self) -> None:
            self.lock, self.sold = threading.Lock(), 0

        def sell(self, count: int) -> int:
            """Sell some."""
            with self.lock:
                self.sold += count
            return self.sold

    shop = Shop()
    model = Scripted(*[calls("query", number=3) + calls("sell", count=2)] * 2, says("ok"))
    async with in_memory_atlas(model, [query, shop.sell]) as atlas:
        result = await atlas.run("go")
    database.close()
    assert [step.output for step in result.steps] == [[os.getpid(), 3], 2, [os.getpid(), 3], 4]


async def test_sync_tool_reads_deps_and_sets_metadata() -> None:
    @tool
    def use(context: ToolContext[Any]) -> int:
        """Use the database."""
        context.metadata.set("used", True)
        context.note("seen", "yes")
        return context.deps["database"].execute("SELECT 7").fetchone()[0]

    database = sqlite3.connect(":memory:", check_same_thread=False)
    model = Scripted(calls("use"), says("ok"))
    async with in_memory_atlas(model, [use], agent={"metadata": {"lock": threading.Lock()}}) as atlas:
        await atlas.ask("go", deps={"database": database})
        assert atlas.conversation().metadata == {"used": True}
        assert atlas.conversation().messages[2].tool_results[0].result == 7
    database.close()


@pytest.mark.parametrize("effect", ["pure", "keyed", "unsafe"])
async def test_timeout_of_a_tool_in_a_thread_says_that_it_may_still_run(effect: Any) -> None:
    clock, loop, release, starts = VirtualClock(), asyncio.get_running_loop(), threading.Event(), asyncio.Queue[int]()

    @tool(timeout=2.5, effect=effect)
    def hang() -> None:
        """Hang."""
        loop.call_soon_threadsafe(starts.put_nowait, 1)
        release.wait(TIMEOUT)

    model = Scripted(calls("hang"), says("ok"))
    async with in_memory_atlas(model, [hang], clock=clock) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go")
        await starts.get()
        await clock.advance(60)
        (result,) = [event for event in await collect_events(stream) if event.type == "tool:result"]
    release.set()
    assert (result.status, result.error) == ("error" if effect == "pure" else "unknown", "timeout")
    assert starts.empty()  # not retried while the first try may still run
    assert result.result.startswith("hang took longer than 2.5 s; it runs in a thread, which cannot be stopped")


def test_tool_that_must_run_in_a_worker_is_refused_if_it_cannot_be_sent() -> None:
    lock = threading.Lock()

    def hold() -> None:
        """Hold the lock."""
        with lock:
            pass

    class Holder:
        def __init__(self) -> None:
            self.lock = lock

        def hold(self) -> None:
            """Hold the lock."""

    for function, what in ((hold, "'lock' cannot be pickled"), (Holder().hold, "'self' cannot be pickled")):
        with pytest.raises(BadTool, match=rf"tool 'hold' .* {what}: .*set in_process=True .* or make it async"):
            tool(in_process=False)(function)


async def test_context_that_cannot_be_sent_to_a_worker_is_named_with_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = Scripted(calls("look_in_worker", deep=True), says("ok"))
    async with in_memory_atlas(model, [look_in_worker], agent={"metadata": {"lock": threading.Lock()}}) as atlas:
        (step,) = (await atlas.run("go")).steps
    assert (step.status, step.output) == ("error", NEUTRAL)
    assert "cannot send argument 'context' of look_in_worker to a worker" in caplog.text
    assert "set in_process=True" in caplog.text


async def test_database_of_another_thread_is_explained_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    database = sqlite3.connect(":memory:")

    def query() -> Any:
        """Query the database."""
        return database.execute("SELECT 1").fetchone()

    assert await outcome(query) == ("error", "internal", NEUTRAL)
    database.close()
    assert "check_same_thread=False" in caplog.text


# Invalid calls of the model


async def test_unknown_tool_is_reported_and_may_be_corrected() -> None:
    async def search(query: str) -> str:
        return f"found {query}"

    model = Scripted(calls("serach", query="x"), calls("search", query="x"), says("Found."))
    async with in_memory_atlas(model, [search]) as atlas:
        result = await atlas.run("go")
    assert [(step.tool, step.status, step.output) for step in result.steps] == [
        ("serach", "error", "Unknown tool 'serach'. Available tools: search."),
        ("search", "ok", "found x"),
    ]
    assert result.answer == "Found."


def completion(name: str, arguments: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}


def saying(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}


MALFORMED: list[tuple[str, str]] = [
    ('{"to": "bob", "amount": 100', "Expecting ',' delimiter"),
    ("not json", "Expecting value at character 0"),
    ("[1, 2]", "expected a JSON object, got an array"),
    ("null", "expected a JSON object, got null"),
    ('{"a": NaN}', "NaN is not valid JSON"),
    ('{"a": 1, "a": 2}', "duplicate key 'a'"),
    ('{"a": 1e999}', "too large"),
    ('{"a": 123456789012345678901234567890}', "does not fit into 64 bits"),
    ("[" * 100_000, "nested too deeply"),
]


@pytest.mark.parametrize(("written", "why"), MALFORMED, ids=[why for _, why in MALFORMED])
async def test_arguments_that_are_not_json_are_stored_unchanged_and_never_run(written: str, why: str) -> None:
    ran: list[Any] = []

    async def pay(a: Any = None) -> None:
        ran.append(a)

    answers = iter([completion("pay", written), saying("Sorry.")])

    def model(request: Request) -> Any:
        return next(answers)

    async with in_memory_atlas(model, [pay]) as atlas:
        reply = await atlas.ask("pay")
        messages: list[Message] = atlas.conversation().messages
    assert reply.text == "Sorry."
    assert ran == []
    assert messages[1].tool_calls[0].malformed == written
    (result,) = messages[2].tool_results
    assert (result.status, result.error) == ("error", "bad_arguments")
    assert why in result.result and result.result.startswith("The arguments are not valid JSON (")


def test_tool_context_can_be_created_with_metadata() -> None:
    context = ToolContext(
        conversation=Conversation(), agent=None, run_id="r", call_id="c", tenant_id="t", metadata=Metadata()
    )
    context.progress("ignored")
    assert context.idempotency_key == "r:c"
