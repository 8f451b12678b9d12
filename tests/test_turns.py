"""Turns: `ask` for the answer, `send` for a stream, `run` for the whole result; rounds, limits and errors."""

import asyncio
import inspect
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from atlas_agents import (
    Agent,
    AnthropicProvider,
    Atlas,
    AtlasError,
    Cancelled,
    ConfigError,
    Context,
    Conversation,
    Image,
    Message,
    ProviderError,
    Request,
    RetryPolicy,
    RunResult,
    Step,
    Text,
    Thinking,
    Tool,
    Usage,
    assistant,
    system,
    tool,
    user,
)
from atlas_agents.testing import Environment, Reply, Scripted, VirtualClock, calls, fails, in_memory_atlas, says, thinks
from checks import TIMEOUT, PausedProvider, collect_events, is_paired, monitor_loop, roles, summarize_events


@tool
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"Sunny in {city}"


ONE_SHOT = RetryPolicy(retries=0)


# ask


async def test_ask_returns_the_answer_as_a_message() -> None:
    async with in_memory_atlas(Scripted(says("Hello there."))) as atlas:
        reply = await atlas.ask("Hi")
        assert isinstance(reply, Message)
        assert (reply.role, reply.text, reply.parts) == ("assistant", "Hello there.", (Text("Hello there."),))
        sent, kept = atlas.conversation().messages
        assert (sent.role, sent.text) == ("user", "Hi")
        assert kept is reply


async def test_ask_accepts_a_message() -> None:
    model = Scripted(says("A cat."))
    message = user("What is this?", Image("image/png", "aGk="), source="phone")
    async with in_memory_atlas(model) as atlas:
        await atlas.ask(message)
        assert atlas.conversation().messages[0] is message
    assert model.requests[0].messages[0] is message


@pytest.mark.parametrize("wrong", [None, 7, b"hi", ["hi"]])
async def test_value_that_is_not_a_message_is_rejected(wrong: Any) -> None:
    async with in_memory_atlas(Scripted(says("x"))) as atlas:
        with pytest.raises(ConfigError, match="expected a text, a Message or a dict with role and content"):
            await atlas.ask(wrong)
        with pytest.raises(ConfigError, match="expected a text, a Message or a dict with role and content"):
            atlas.send(wrong)
        assert atlas.conversation().messages == []


async def test_model_and_tools_alternate_until_no_call_is_made() -> None:
    model = Scripted(calls("weather", city="Lima"), calls("weather", city="Oslo"), says("Both sunny."))
    async with in_memory_atlas(model, [weather]) as atlas:
        assert (await atlas.ask("Lima and Oslo?")).text == "Both sunny."
        messages = atlas.conversation().messages
    assert roles(messages) == ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert [roles(request.messages) for request in model.requests] == [roles(messages)[:n] for n in (1, 3, 5)]
    assert messages[2].tool_results[0].result == "Sunny in Lima"
    assert is_paired(messages)


async def test_reply_has_provider_usage_and_cost() -> None:
    async with in_memory_atlas(Scripted(says("Two words."))) as atlas:
        reply = await atlas.ask("Hi")
    timing = reply.metadata.pop("timing")
    assert 0 <= timing["first"] <= timing["total"]
    assert reply.metadata == {
        "stop_reason": "stop",
        "provider": "scripted",
        "speaker": "assistant",
        "usage": {"input": 1, "output": 2, "cached": 0},
    }


@pytest.mark.parametrize(
    ("stop", "mark"), [("length", {"truncated": True}), ("refusal", {"refused": True}), ("other", {})]
)
async def test_truncated_or_refused_answer_is_marked(stop: Any, mark: dict[str, bool]) -> None:
    async with in_memory_atlas(Scripted(says("Half an", stop=stop))) as atlas:
        reply = await atlas.ask("Hi")
    assert reply.text == "Half an"
    assert {key: reply.metadata.get(key) for key in ("truncated", "refused") if key in reply.metadata} == mark


async def test_paused_model_is_called_again() -> None:
    model = Scripted(says("One, ", stop="pause"), says("two."))
    async with in_memory_atlas(model) as atlas:
        stream = atlas.send("Count")
        assert (await stream.reply()).text == "two."
        assert stream.text == "One, two."
    assert roles(model.requests[1].messages) == ["user", "assistant"]


async def test_thinking_is_stored_with_its_signature() -> None:
    async with in_memory_atlas(Scripted(thinks("Hm.", "sig") + says("Yes."))) as atlas:
        stream = atlas.send("Well?")
        events = await collect_events(stream)
        reply = await stream.reply()
    assert reply.parts == (Thinking("Hm.", "sig"), Text("Yes."))
    assert (reply.text, stream.text) == ("Yes.", "Yes.")
    assert ("stream:thinking", "Hm.") in summarize_events(events)


# The system prompt


async def test_system_prompt_is_joined_in_order() -> None:
    model = Scripted(says("ok"))
    context = Context(messages=[system("From ", "the context."), user("earlier"), assistant("yes")])
    agent = Agent("a", model=model, system_prompt="The agent's.", rules=["A rule."], contexts=[context])
    async with Atlas([agent], system_prompt="The Atlas's.") as atlas:
        await atlas.ask("now")
    request = model.requests[0]
    assert request.system == "The Atlas's.\n\nThe agent's.\n\nRules:\n- A rule.\n\nFrom the context."
    assert [(message.role, message.text) for message in request.messages] == [
        ("user", "earlier"),
        ("assistant", "yes"),
        ("user", "now"),
    ]


async def test_system_prompt_is_empty_by_default() -> None:
    model = Scripted(says("ok"))
    async with in_memory_atlas(model) as atlas:
        await atlas.ask("hi")
    assert model.requests[0].system == ""


async def test_settings_reach_the_request() -> None:
    model = Scripted(says("ok"))
    options: dict[str, Any] = {"temperature": 0.2, "max_tokens": 50, "stop": ["END"], "tool_choice": "weather"}
    async with in_memory_atlas(model, [weather], agent={**options, "metadata": {"user": "Al"}}) as atlas:
        await atlas.ask("hi")
    request = model.requests[0]
    assert (request.settings.temperature, request.settings.max_tokens, request.settings.stop) == (0.2, 50, ("END",))
    assert request.tool_choice == "weather"
    assert request.metadata is not None and request.metadata.get("user") == "Al"
    (spec,) = request.tools
    assert (spec.name, spec.description) == ("weather", "Tell the weather.")
    assert spec.parameters["properties"] == {"city": {"type": "string"}}


# run


async def test_run_returns_the_full_result_and_stores_nothing() -> None:
    model = Scripted(says("Let me see. ") + calls("weather", city="Lima"), says("Sunny."))
    async with in_memory_atlas(model, [weather]) as atlas:
        result = await atlas.run([user("Hi"), assistant("Hello."), user("Lima?")])
        assert atlas.conversation().messages == []
    assert isinstance(result, RunResult)
    assert (result.success, result.answer, result.error) == (True, "Sunny.", None)
    assert result.message.text == "Sunny."
    assert roles(result.intermediate) == ["assistant", "tool"]
    assert result.usage == Usage(input_tokens=3 + 5, output_tokens=3 + 1)
    (step,) = result.steps
    assert isinstance(step, Step)
    assert (step.type, step.tool, step.input) == ("tool_call", "weather", {"city": "Lima"})
    assert (step.output, step.status) == ("Sunny in Lima", "ok")
    assert step.timestamp > 1_700_000_000_000
    assert [message.text for message in model.requests[0].messages] == ["Hi", "Hello.", "Lima?"]


async def test_run_accepts_text_a_message_or_messages() -> None:
    model = Scripted(says("1"), says("2"), says("3"))
    async with in_memory_atlas(model) as atlas:
        results = [
            await atlas.run("Hi"),
            await atlas.run(user("Hi")),
            await atlas.run([user("Hi"), assistant("And?")]),
        ]
        with pytest.raises(ConfigError, match="a turn requires at least one message"):
            await atlas.run([])
    assert [result.answer for result in results] == ["1", "2", "3"]
    assert [roles(request.messages) for request in model.requests] == [["user"], ["user"], ["user", "assistant"]]


async def test_run_does_not_change_the_given_messages() -> None:
    given = [user("Hi")]
    async with in_memory_atlas(Scripted(says("Hello."))) as atlas:
        await atlas.run(given)
    assert len(given) == 1


@pytest.mark.parametrize("failure", [fails("gone"), says("no number")], ids=["provider", "output"])
async def test_failed_run_raises_with_what_there_is_of_its_result(failure: Reply) -> None:
    model = Scripted(says("Let me see. ") + calls("weather", city="Lima"), failure)
    async with in_memory_atlas(model, [weather], agent={"output_retries": 0, "retry": ONE_SHOT}) as atlas:
        with pytest.raises(AtlasError) as caught:
            await atlas.run("Lima?", output=int)
    result = caught.value.result
    assert isinstance(result, RunResult)
    assert (result.success, result.error) == (False, str(caught.value))
    assert [step.tool for step in result.steps] == ["weather"]
    assert result.usage.input_tokens >= 1
    assert roles([*result.intermediate, result.message]) == ["assistant", "tool", "assistant"]


def test_run_result_has_the_specified_fields() -> None:
    fields = set(inspect.signature(RunResult).parameters)
    assert {"success", "answer", "error", "steps", "usage", "message", "intermediate"} <= fields


# The round limit


def make_looping_atlas(limit: int) -> Scripted:
    return Scripted(*[says(f"Try {number}. ") + calls("weather", city="x") for number in range(1, limit + 1)])


async def test_run_at_the_round_limit_returns_the_partial_result() -> None:
    async with in_memory_atlas(make_looping_atlas(10), [weather]) as atlas:
        result = await atlas.run("go")
        assert (result.success, result.error) == (False, "Max iterations reached")
        assert result.answer == "Try 10. "
        assert len(result.steps) == 10
        assert roles(result.intermediate) == ["assistant", "tool"] * 9 + ["tool"]


async def test_round_limit_of_a_run_overrides_the_agents() -> None:
    async with in_memory_atlas(make_looping_atlas(2), [weather], agent={"max_rounds": 5}) as atlas:
        assert len((await atlas.run("go", max_rounds=2)).steps) == 2
        with pytest.raises(ConfigError, match="max_rounds must be at least 1, got 0"):
            await atlas.run("go", max_rounds=0)


async def test_ask_and_send_at_the_round_limit_return_the_partial_message() -> None:
    model = Scripted(*[says("Try. ") + calls("weather", city="x")] * 2, says("Better."))
    async with in_memory_atlas(model, [weather], agent={"max_rounds": 1}) as atlas:
        assert (await atlas.ask("go")).text == "Try. "
        stream = atlas.send("again")
        assert (await stream.reply()).text == "Try. "
        assert [event[0] for event in summarize_events(await collect_events(stream))][-2:] == [
            "stream:end",
            "message:received",
        ]
        messages = atlas.conversation().messages
        assert roles(messages) == ["user", "assistant", "tool"] * 2
        assert is_paired(messages)
        assert (await atlas.ask("once more")).text == "Better."


async def test_answer_at_the_round_limit_says_that_it_is_incomplete() -> None:
    model = Scripted(says("Try. ") + calls("weather", city="x"), says("Better."), says("Cut", stop="length"))
    async with in_memory_atlas(model, [weather], agent={"max_rounds": 1}) as atlas:
        stopped = await atlas.ask("go")
        assert stopped.is_unfinished
        assert stopped.incomplete == "the turn reached its limit of rounds (max_rounds) before the model was done"
        assert stopped.metadata["max_rounds"] == 1
        assert not (complete := await atlas.ask("again")).is_unfinished and complete.incomplete == ""
        assert "max_rounds" not in complete.metadata
        cut_off = await atlas.ask("once more")
        assert (cut_off.is_unfinished, cut_off.incomplete) == (False, "it reached the token limit")


async def test_model_that_only_pauses_is_unfinished_at_the_round_limit() -> None:
    async with in_memory_atlas(Scripted(says("Hm.", stop="pause")), agent={"max_rounds": 1}) as atlas:
        assert (await atlas.ask("go")).is_unfinished


# Errors


async def test_provider_error_reaches_the_caller_and_the_user_message_stays() -> None:
    model = Scripted(fails(ProviderError("no credit", "quota", status=429)), says("Back."))
    async with in_memory_atlas(model, agent={"retry": ONE_SHOT}) as atlas:
        with pytest.raises(ProviderError, match="no credit") as caught:
            await atlas.ask("Hi")
        assert (caught.value.kind, caught.value.status) == ("quota", 429)
        assert [message.text for message in atlas.conversation().messages] == ["Hi"]
        assert (await atlas.ask("Again")).text == "Back."


async def test_incomplete_stream_is_neither_an_answer_nor_a_tool_run() -> None:
    ran: list[str] = []

    async def act(x: str) -> None:
        ran.append(x)

    model = Scripted(says("Half a ") + calls("act", x="1") + fails(ProviderError("gone", "network")), says("Whole."))
    clock = VirtualClock()
    async with in_memory_atlas(model, [act], clock=clock) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("go")
        await clock.advance(10)
        assert (await stream.reply()).text == "Whole."
        assert roles(atlas.conversation().messages) == ["user", "assistant"]
    assert ran == []
    assert stream.text == "Whole."


async def test_stream_without_done_chunk_is_incomplete() -> None:
    class Cut:
        def __init__(self) -> None:
            self.inner = Scripted(says("Half an answer"))
            self.id, self.capabilities = "cut", self.inner.capabilities

        async def stream(self, request: Request) -> AsyncGenerator[Any, None]:
            chunks = [chunk async for chunk in self.inner.stream(request)]
            for chunk in chunks[:-1]:
                yield chunk

    async with in_memory_atlas(Cut(), agent={"retry": ONE_SHOT}) as atlas:
        with pytest.raises(ProviderError) as caught:
            await atlas.ask("Hi")
        assert caught.value.kind == "incomplete"
        assert roles(atlas.conversation().messages) == ["user"]


def answer(content: Any, finish: Any = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"content": content}, "finish_reason": finish}]}


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (answer(""), "empty_response"),
        (answer(None), "empty_response"),
        ({}, "empty_response"),
        ({"choices": []}, "empty_response"),
        (answer("Half an", None), "incomplete"),
        (None, "bad_request"),
        ("", "empty_response"),
        ([], "bad_request"),
    ],
)
async def test_empty_or_unfinished_answer_is_an_error(given: Any, kind: str) -> None:
    def model(request: Request) -> Any:
        return given

    async with in_memory_atlas(model, agent={"retry": ONE_SHOT}) as atlas:
        with pytest.raises(ProviderError) as caught:
            await atlas.ask("Hi")
        assert caught.value.kind == kind
        assert roles(atlas.conversation().messages) == ["user"]


def malformed(number: int) -> dict[str, Any]:
    call = {"id": f"c{number}", "type": "function", "function": {"name": "weather", "arguments": '{"city": '}}
    return {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}


async def test_three_malformed_rounds_in_a_row_end_the_turn() -> None:
    asked: list[Request] = []

    def model(request: Request) -> Any:
        asked.append(request)
        return malformed(len(asked))

    async with in_memory_atlas(model, [weather]) as atlas:
        with pytest.raises(ProviderError, match="malformed tool calls three times in a row") as caught:
            await atlas.ask("Hi")
        assert caught.value.kind == "protocol"
        assert is_paired(atlas.conversation().messages)
    assert len(asked) == 3


async def test_valid_round_resets_the_malformed_count() -> None:
    good = {"id": "g", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lima"}'}}
    well = {"choices": [{"message": {"content": None, "tool_calls": [good]}, "finish_reason": "tool_calls"}]}
    answers = iter([malformed(1), malformed(2), well, malformed(3), malformed(4), answer("Done.")])

    def model(request: Request) -> Any:
        return next(answers)

    async with in_memory_atlas(model, [weather]) as atlas:
        assert (await atlas.ask("Hi")).text == "Done."


async def test_missing_or_repeated_call_ids_are_made_unique() -> None:
    def call(id: str | None) -> dict[str, Any]:
        return {"id": id, "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lima"}'}}

    twice = {"content": None, "tool_calls": [call("same"), call("same"), call(None)]}
    answers = iter([{"choices": [{"message": twice, "finish_reason": "tool_calls"}]}, answer("Done.")])

    def model(request: Request) -> Any:
        return next(answers)

    async with in_memory_atlas(model, [weather]) as atlas:
        await atlas.ask("Hi")
        messages = atlas.conversation().messages
    ids = [call.id for call in messages[1].tool_calls]
    assert ids[0] == "same" and len(set(ids)) == 3 and "" not in ids
    assert is_paired(messages)


# send


async def test_send_starts_without_being_iterated() -> None:
    model = PausedProvider(Scripted(says("Hello.")))
    async with in_memory_atlas(model) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("Hi")
        await model.reached.wait()  # nothing of the stream was iterated or awaited
        model.go.set()
        assert (await stream.reply()).text == "Hello."


async def test_second_iteration_replays_the_events_of_a_running_turn() -> None:
    model = PausedProvider(Scripted(says("One two three")), after=2)
    async with in_memory_atlas(model) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("Count")
        first = asyncio.create_task(collect_events(stream))
        await model.reached.wait()
        second = asyncio.create_task(collect_events(stream))
        model.go.set()
        replayed = await first
        assert replayed == await second == await collect_events(stream)
    assert [event.text for event in replayed if event.type == "stream:chunk"] == ["One ", "two ", "three"]


async def test_abandoned_iteration_does_not_affect_others() -> None:
    model = PausedProvider(Scripted(says("One two three")), after=1)
    async with in_memory_atlas(model) as atlas, asyncio.timeout(TIMEOUT):
        stream = atlas.send("Count")
        gives_up = asyncio.create_task(stream.reply())
        listens = asyncio.create_task(collect_events(stream))
        await model.reached.wait()
        gives_up.cancel()
        await asyncio.wait([gives_up])
        async for _ in stream:
            break
        model.go.set()
        assert (await stream.reply()).text == "One two three"
        assert len(await listens) == 7


async def test_stream_text_covers_all_replies() -> None:
    model = Scripted(says("Let me look. ") + calls("weather", city="Lima"), says("It is sunny."))
    async with in_memory_atlas(model, [weather]) as atlas:
        stream = atlas.send("Lima?")
        events = await collect_events(stream)
        reply = await stream.reply()
        texts = [message.text for message in atlas.conversation().messages if message.role == "assistant"]
    assert stream.text == "Let me look. It is sunny."
    assert reply.text == "It is sunny."
    assert texts == ["Let me look. ", "It is sunny."]
    assert "".join(event.text for event in events if event.type == "stream:chunk") == stream.text


async def test_every_event_has_the_stream_id() -> None:
    model = Scripted(calls("weather", city="Lima"), calls("weather", city="Oslo"), says("ok"))
    async with in_memory_atlas(model, [weather]) as atlas:
        stream = atlas.send("go")
        events = await collect_events(stream)
    assert {event.stream_id for event in events} == {stream.stream_id}
    assert len(events) == 9


async def test_reply_raises_the_error_of_the_turn_every_time() -> None:
    async with in_memory_atlas(Scripted(fails(ProviderError("bad key", "auth")))) as atlas:
        stream = atlas.send("Hi")
        for _ in range(2):
            with pytest.raises(ProviderError, match="bad key"):
                await stream.reply()


async def test_close_cancels_running_turns() -> None:
    model = PausedProvider(Scripted(says("never")))
    atlas = in_memory_atlas(model)
    stream = atlas.send("Hi")
    await asyncio.wait_for(model.reached.wait(), TIMEOUT)
    await atlas.close()
    assert model.closed == 1
    with pytest.raises(Cancelled):
        await stream.reply()


async def test_atlas_can_be_used_after_close() -> None:
    atlas = in_memory_atlas(Scripted(says("one"), says("two")))
    async with atlas:
        await atlas.ask("Hi")
    assert (await atlas.ask("Hi")).text == "two"


async def test_cancelled_ask_leaves_a_valid_history() -> None:
    started = asyncio.Event()

    async def slow() -> None:
        started.set()
        await asyncio.Event().wait()

    async with in_memory_atlas(Scripted(calls("slow"), says("Fine.")), [slow]) as atlas, asyncio.timeout(TIMEOUT):
        task = asyncio.create_task(atlas.ask("go"))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert is_paired(atlas.conversation().messages)
        assert (await atlas.ask("go on")).text == "Fine."


# A history that is too long for the model


async def test_history_that_is_too_long_is_shortened_once() -> None:
    long = Conversation([message for n in range(20) for message in (user(f"q{n} " * 50), assistant(f"a{n} " * 50))])
    model = Scripted(fails(ProviderError("prompt is too long", "context_length")), says("ok"))
    async with in_memory_atlas(model) as atlas:
        assert (await atlas.ask("and now?", session=long)).text == "ok"
    first, second = (request.messages for request in model.requests)
    assert len(first) == 41
    assert 1 < len(second) < 25 and second[-1].text == "and now?" and list(second) == list(first[-len(second) :])
    assert len(long) == 42


async def test_history_that_cannot_be_shortened_is_an_error() -> None:
    async with in_memory_atlas(Scripted(fails(ProviderError("prompt is too long", "context_length")))) as atlas:
        with pytest.raises(ProviderError, match="too long"):
            await atlas.ask("hi")


# The loop stays free


async def test_two_hundred_concurrent_turns_are_answered() -> None:
    async def echo(request: Request) -> Any:
        await asyncio.sleep(0)
        return answer(request.messages[-1].text)

    async with in_memory_atlas(echo) as atlas, asyncio.timeout(TIMEOUT):
        replies = await asyncio.gather(*(atlas.ask(f"q{n}", session=f"s{n}") for n in range(200)))
    assert [reply.text for reply in replies] == [f"q{n}" for n in range(200)]


async def test_slow_sync_model_and_tool_do_not_block_the_event_loop() -> None:
    async with monitor_loop() as monitor:
        answers = iter([make_calls("probe"), answer("Alive.")])

        def model(request: Request) -> Any:
            assert monitor.keeps_running()
            return next(answers)

        def look(text: str) -> bool:
            return monitor.keeps_running()

        probe = Tool("probe", look, in_process=True)
        async with in_memory_atlas(model, [probe]) as atlas:
            result = await atlas.run("go")
    assert ([step.output for step in result.steps], result.answer) == ([True], "Alive.")


def make_calls(name: str) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": '{"input": "x"}'}}
    return {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}


def test_custom_provider_may_be_a_model() -> None:
    environment = Environment({}, dotenv=None)
    provider = AnthropicProvider("claude-x", base_url="http://127.0.0.1:1", api_key="k", environment=environment)
    assert Agent("a", model=provider).models == (provider,)


async def test_call_id_of_an_earlier_turn_is_not_reused() -> None:
    async def once(request: Request) -> dict[str, Any]:
        if request.messages[-1].role == "tool":
            return {"choices": [{"message": {"content": "Done."}, "finish_reason": "stop"}]}
        call = {"id": "call_0", "function": {"name": "look", "arguments": "{}"}}
        return {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}

    async def look() -> str:
        return "seen"

    async with in_memory_atlas(once, [look]) as atlas:
        await atlas.ask("one")
        await atlas.ask("two")
        ids = [call.id for message in atlas.conversation().messages for call in message.tool_calls]
    assert ids[0] == "call_0"
    assert len(set(ids)) == 2
