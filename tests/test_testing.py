"""Test utilities: scripted models, a virtual clock, an in-memory Atlas."""

import asyncio
import os
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, DoneChunk, ProviderError, Request, RetryPolicy, TextChunk, ToolCall, user
from atlas_agents.testing import Scripted, ScriptExhausted, VirtualClock, calls, fails, in_memory_atlas, says, thinks
from checks import TIMEOUT, collect_events

# Scripted


async def test_each_argument_of_scripted_is_one_reply() -> None:
    async with in_memory_atlas(Scripted(says("One."), says("Two."))) as atlas:
        assert [(await atlas.ask("?")).text for _ in range(2)] == ["One.", "Two."]


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("One two three", ["One ", "two ", "three"]),
        ("  indented\n\nand more ", ["  indented\n\n", "and ", "more "]),
        ("word", ["word"]),
        (" \n", [" \n"]),
        ("", []),
    ],
)
async def test_text_is_streamed_in_several_chunks_and_nothing_is_lost(text: str, pieces: list[str]) -> None:
    async with in_memory_atlas(Scripted(says(text))) as atlas:
        stream = atlas.send("?")
        events = await collect_events(stream)
    assert [event.text for event in events if event.type == "stream:chunk"] == pieces
    assert stream.text == text


async def test_calls_may_be_joined_with_calls_and_text() -> None:
    async def look(name: str, at: int = 0) -> str:
        return f"{name} {at}"

    model = Scripted(
        thinks("Hm.") + says("Well. ") + calls("look", name="a", at=1) + calls("look", name="b"), says("ok")
    )
    async with in_memory_atlas(model, [look]) as atlas:
        result = await atlas.run("go")
    made = result.intermediate[0].tool_calls
    assert [(call.name, call.arguments) for call in made] == [("look", {"name": "a", "at": 1}), ("look", {"name": "b"})]
    assert len({call.id for call in made}) == 2 and all(isinstance(call, ToolCall) for call in made)
    assert [step.output for step in result.steps] == ["a 1", "b 0"]
    assert result.intermediate[0].metadata["stop_reason"] == "tool_calls"


async def test_scripted_model_fails_at_the_given_point() -> None:
    with pytest.raises(ProviderError, match="gone"):
        await in_memory_atlas(Scripted(fails("gone")), agent={"retry": RetryPolicy(retries=0)}).ask("?")
    with pytest.raises(LookupError, match="mine"):
        await in_memory_atlas(Scripted(says("Half") + fails(LookupError("mine")))).ask("?")


async def test_scripted_model_records_its_requests() -> None:
    model = Scripted(says("One."), says("Two."), id="mine")
    async with Atlas([Agent("a", model=model, system_prompt="Be brief.", temperature=0.5)]) as atlas:
        await atlas.ask("first")
        await atlas.ask("second")
    assert [[message.text for message in request.messages] for request in model.requests] == [
        ["first"],
        ["first", "One.", "second"],
    ]
    assert (model.requests[0].system, model.requests[0].settings.temperature) == ("Be brief.", 0.5)


async def test_exhausted_script_raises_and_is_not_retried() -> None:
    model = Scripted(says("One."))
    async with in_memory_atlas(model) as atlas:
        await atlas.ask("?")
        with pytest.raises(ScriptExhausted, match="the scripted model has 1 replies and was asked 2 times"):
            await atlas.ask("?")
    assert len(model.requests) == 2


async def test_concurrent_turns_share_the_script() -> None:
    model = Scripted(says("One."), says("Two."))
    async with in_memory_atlas(model) as atlas:
        first, second = atlas.send("?", session="a"), atlas.send("?", session="b")
        assert [(await first.reply()).text, (await second.reply()).text] == ["One.", "Two."]


# VirtualClock


async def test_virtual_time_stands_still_until_advanced() -> None:
    clock, rung = VirtualClock(start=1000), list[Any]()

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        rung.append((seconds, clock.monotonic(), clock.time()))

    tasks = [asyncio.create_task(sleeper(seconds)) for seconds in (3, 1, 2, 1)]
    await clock.advance(0.5)
    assert rung == []
    await clock.advance(1.5)
    assert rung == [(1, 1.0, 1001.0), (1, 1.0, 1001.0), (2, 2.0, 1002.0)]
    await clock.advance(10)
    assert rung[-1] == (3, 3.0, 1003.0)
    assert (clock.monotonic(), clock.time()) == (12, 1012)
    await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT)


async def test_woken_task_may_sleep_again_within_one_advance() -> None:
    clock, moments = VirtualClock(), list[float]()

    async def ticking() -> None:
        for _ in range(5):
            await clock.sleep(1)
            moments.append(clock.monotonic())

    task = asyncio.create_task(ticking())
    await clock.advance(5)
    assert moments == [1, 2, 3, 4, 5]
    await asyncio.wait_for(task, TIMEOUT)


async def test_alarm_can_be_cancelled() -> None:
    clock, rung = VirtualClock(), list[str]()
    alarm = clock.call_later(1, lambda: rung.append("no"))
    clock.call_later(1, lambda: rung.append("yes"))
    alarm.cancel()
    await clock.advance(2)
    assert rung == ["yes"]


async def test_cancelled_sleep_wakes_no_task() -> None:
    clock = VirtualClock()
    task = asyncio.create_task(clock.sleep(1))
    await clock.advance(0.5)
    task.cancel()
    await clock.advance(1)
    assert task.cancelled()


# in_memory_atlas


async def test_in_memory_atlas_has_one_agent_and_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "OPENAI_API_KEY", "sk-real")
    atlas = in_memory_atlas("openai/gpt-x", agent={"role": "clerk"}, tenant="acme")
    (agent,) = atlas.agents
    assert (agent.id, agent.role) == ("assistant", "clerk")
    with pytest.raises(Exception, match="OPENAI_API_KEY"):
        await atlas.ask("?")


async def test_provider_completes_a_request() -> None:
    model = Scripted(says("One two"))
    *text, done = await model.complete(Request([user("Count")]))
    assert [chunk.text for chunk in text if isinstance(chunk, TextChunk)] == ["One ", "two"]
    assert isinstance(done, DoneChunk)
