"""Interceptors change, add or refuse messages and requests, in the given order."""

from typing import Any

import msgspec
import pytest

from atlas_agents import (
    Agent,
    Atlas,
    ConfigError,
    Interceptor,
    Message,
    Refused,
    Request,
    Text,
    ToolCall,
    TurnContext,
    assistant,
    system,
    tool,
    user,
)
from atlas_agents.guardrails import output_filter
from atlas_agents.providers.settings import ModelSettings
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from atlas_agents.tools.policy import Actor
from checks import collect_events, is_paired, monitor_loop, roles, summarize_events


@tool
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"Sunny in {city}"


def texts(messages: Any) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in messages]


# Outgoing


async def test_outgoing_message_can_be_changed() -> None:
    async def polite(message: Message) -> Message:
        return user(f"{message.text}, please")

    model = Scripted(says("Sure."))
    async with in_memory_atlas(model, interceptors=[Interceptor(outgoing=polite)]) as atlas:
        stream = atlas.send("Go")
        events = await collect_events(stream)
        assert texts(atlas.conversation().messages) == [("user", "Go, please"), ("assistant", "Sure.")]
    assert texts(model.requests[0].messages) == [("user", "Go, please")]
    assert summarize_events(events)[0] == ("message:sent", "Go, please")


async def test_messages_can_be_added_before_the_outgoing_one() -> None:
    def remember(message: Message) -> list[Message]:
        return [system("Remember the milk."), assistant("I will."), message]

    model = Scripted(says("Sure."))
    async with in_memory_atlas(model, interceptors=[Interceptor(outgoing=remember)]) as atlas:
        result = await atlas.run("Go")
    expected = [("system", "Remember the milk."), ("assistant", "I will."), ("user", "Go")]
    assert texts(model.requests[0].messages) == expected
    assert texts(result.intermediate) == expected[:2]


async def test_changed_message_is_not_intermediate() -> None:
    async with in_memory_atlas(
        Scripted(says("Sure.")), interceptors=[Interceptor(outgoing=lambda message: user("other"))]
    ) as atlas:
        assert (await atlas.run("Go")).intermediate == ()


async def test_outgoing_message_can_be_refused() -> None:
    async def never(message: Message) -> None:
        raise Refused("not on Sundays")

    model = Scripted(says("Sure."))
    async with in_memory_atlas(model, interceptors=[Interceptor(outgoing=never)]) as atlas:
        stream = atlas.send("Go")
        events = await collect_events(stream)
        with pytest.raises(Refused, match="not on Sundays"):
            await stream.reply()
        assert atlas.conversation().messages == []
    assert summarize_events(events) == [("stream:end", "not on Sundays"), ("error", "Refused", "not on Sundays")]
    assert model.requests == []


# Incoming


async def test_changed_incoming_text_is_streamed_again() -> None:
    async def shout(message: Message) -> Message:
        return msgspec.structs.replace(message, parts=(Text(message.text.upper()),))

    async with in_memory_atlas(Scripted(says("Hello there.")), interceptors=[Interceptor(incoming=shout)]) as atlas:
        stream = atlas.send("Hi")
        events = await collect_events(stream)
        assert (await stream.reply()).text == "HELLO THERE."
        assert texts(atlas.conversation().messages) == [("user", "Hi"), ("assistant", "HELLO THERE.")]
    assert summarize_events(events)[2:] == [
        ("stream:chunk", "Hello "),
        ("stream:chunk", "there."),
        ("stream:reset",),
        ("stream:chunk", "HELLO THERE."),
        ("stream:end",),
        ("message:received", "HELLO THERE."),
    ]
    assert stream.text == "HELLO THERE."


async def test_unchanged_text_is_not_streamed_again() -> None:
    def mark(message: Message) -> Message:
        return msgspec.structs.replace(message, metadata={**message.metadata, "checked": True})

    async with in_memory_atlas(Scripted(says("Hello.")), interceptors=[Interceptor(incoming=mark)]) as atlas:
        stream = atlas.send("Hi")
        assert ("stream:reset",) not in summarize_events(await collect_events(stream))
        assert (await stream.reply()).metadata["checked"] is True


async def test_incoming_text_can_be_removed() -> None:
    def hush(message: Message) -> Message:
        return msgspec.structs.replace(message, parts=())

    async with in_memory_atlas(Scripted(says("Hello.")), interceptors=[Interceptor(incoming=hush)]) as atlas:
        stream = atlas.send("Hi")
        assert summarize_events(await collect_events(stream))[2:5] == [
            ("stream:chunk", "Hello."),
            ("stream:reset",),
            ("stream:end",),
        ]
        assert stream.text == ""


async def test_replaced_answer_keeps_its_usage() -> None:
    async with in_memory_atlas(
        Scripted(says("Secret.")), interceptors=[Interceptor(incoming=lambda _: assistant("Hidden."))]
    ) as atlas:
        reply = await atlas.ask("Go")
    assert reply.text == "Hidden." and reply.metadata["usage"]["input"] == 1


async def test_messages_can_be_added_before_the_incoming_one() -> None:
    def explain(message: Message) -> list[Message]:
        return [system("The model answers:"), message]

    async with in_memory_atlas(Scripted(says("Hello.")), interceptors=[Interceptor(incoming=explain)]) as atlas:
        await atlas.ask("Hi")
        assert roles(atlas.conversation().messages) == ["user", "system", "assistant"]


async def test_refused_answer_is_withdrawn_and_not_stored() -> None:
    def censor(message: Message) -> None:
        if "secret" in message.text:
            raise Refused("the answer gives a secret away")

    model = Scripted(says("The secret is 42."), says("No comment."))
    async with in_memory_atlas(model, interceptors=[Interceptor(incoming=censor)]) as atlas:
        stream = atlas.send("Tell me")
        events = await collect_events(stream)
        with pytest.raises(Refused):
            await stream.reply()
        assert roles(atlas.conversation().messages) == ["user"]
        assert stream.text == ""
        assert summarize_events(events)[-3:] == [
            ("stream:reset",),
            ("stream:end", "the answer gives a secret away"),
            ("error", "Refused", "the answer gives a secret away"),
        ]
        assert (await atlas.ask("Then not")).text == "No comment."


async def test_interceptor_gets_messages_with_tool_calls() -> None:
    seen: list[int] = []

    def redirect(message: Message) -> Message | None:
        seen.append(len(message.tool_calls))
        if not message.tool_calls:
            return None
        call = message.tool_calls[0]
        return msgspec.structs.replace(message, parts=(ToolCall(call.id, call.name, {"city": "Oslo"}),))

    model = Scripted(calls("weather", city="Lima"), says("Sunny."))
    async with in_memory_atlas(model, [weather], interceptors=[Interceptor(incoming=redirect)]) as atlas:
        result = await atlas.run("Lima?")
    assert seen == [1, 0]
    assert result.steps[0].output == "Sunny in Oslo"


async def test_call_removed_by_an_interceptor_never_runs() -> None:
    def forbid(message: Message) -> Message:
        return assistant("I may not do that.")

    async with in_memory_atlas(
        Scripted(calls("weather", city="Lima")), [weather], interceptors=[Interceptor(incoming=forbid)]
    ) as atlas:
        result = await atlas.run("Lima?")
        assert (result.answer, result.steps) == ("I may not do that.", ())


# Requests


async def test_request_can_be_changed() -> None:
    async def cooler(request: Request) -> Request:
        return msgspec.structs.replace(request, settings=ModelSettings(temperature=0.0), system="Obey.")

    model = Scripted(calls("weather", city="Lima"), says("Sunny."))
    async with in_memory_atlas(model, [weather], interceptors=[Interceptor(request=cooler)]) as atlas:
        await atlas.ask("Lima?")
    assert [(request.settings.temperature, request.system) for request in model.requests] == [(0.0, "Obey.")] * 2


async def test_request_can_be_refused() -> None:
    def too_much(request: Request) -> None:
        if len(request.messages) > 1:
            raise Refused("too long")

    model = Scripted(calls("weather", city="Lima"), says("Sunny."))
    async with in_memory_atlas(model, [weather], interceptors=[Interceptor(request=too_much)]) as atlas:
        with pytest.raises(Refused, match="too long"):
            await atlas.ask("Lima?")
        assert is_paired(atlas.conversation().messages)
    assert len(model.requests) == 1


# All together


async def test_interceptors_run_in_the_given_order() -> None:
    def adding(mark: str) -> Interceptor:
        def change(message: Message) -> Message:
            return msgspec.structs.replace(message, parts=(Text(message.text + mark),))

        def ask(request: Request) -> Request:
            return msgspec.structs.replace(request, system=request.system + mark)

        return Interceptor(outgoing=change, incoming=change, request=ask)

    model = Scripted(says("out"))
    async with in_memory_atlas(model, interceptors=[adding("1"), adding("2"), adding("3")]) as atlas:
        reply = await atlas.ask("in")
    assert (model.requests[0].messages[0].text, model.requests[0].system, reply.text) == ("in123", "123", "out123")


async def test_added_messages_keep_their_order() -> None:
    def adding(mark: str) -> Interceptor:
        return Interceptor(outgoing=lambda message: [system(mark), message])

    model = Scripted(says("ok"))
    async with in_memory_atlas(model, interceptors=[adding("1"), adding("2")]) as atlas:
        await atlas.ask("in")
    assert [message.text for message in model.requests[0].messages] == ["1", "2", "in"]


@pytest.mark.parametrize("where", ["outgoing", "incoming", "request"])
async def test_failing_interceptor_stops_the_turn(where: str) -> None:
    def broken(*_: Any) -> None:
        raise LookupError("typo")

    model = Scripted(says("Hello."))
    hooks: dict[str, Any] = {where: broken}
    async with in_memory_atlas(model, interceptors=[Interceptor(**hooks)]) as atlas:
        stream = atlas.send("Hi")
        events = await collect_events(stream)
        with pytest.raises(LookupError, match="typo"):
            await stream.reply()
        assert summarize_events(events)[-2:] == [("stream:end", "typo"), ("error", "LookupError", "typo")]
        assert roles(atlas.conversation().messages) == ([] if where == "outgoing" else ["user"])
    assert len(model.requests) == (1 if where == "incoming" else 0)


@pytest.mark.parametrize(
    ("where", "value", "complaint"),
    [
        ("outgoing", "text", "expected a Message"),
        ("incoming", 7, "expected a Message"),
        ("request", user("x"), "expected a Request"),
        ("outgoing", [], "returned an empty list; raise Refused to stop a turn"),
        ("outgoing", [user("x"), "text"], "expected a Message"),
    ],
)
async def test_invalid_return_value_is_named(where: str, value: Any, complaint: str) -> None:
    def wrong(*_: Any) -> Any:
        return value

    hooks: dict[str, Any] = {where: wrong}
    async with in_memory_atlas(Scripted(says("Hello.")), interceptors=[Interceptor(**hooks)]) as atlas:
        with pytest.raises(ConfigError, match=complaint):
            await atlas.ask("Hi")


def test_value_that_is_not_an_interceptor_is_rejected() -> None:
    with pytest.raises(ConfigError, match="expected an Interceptor"):
        in_memory_atlas(Scripted(), interceptors=[print])


async def test_sync_interceptor_does_not_block_the_event_loop() -> None:
    lived: list[bool] = []

    def look(value: Any) -> None:
        lived.append(monitor.keeps_running())

    async with monitor_loop() as monitor:
        interceptors = [Interceptor(outgoing=look, incoming=look, request=look)]
        async with in_memory_atlas(Scripted(says("Hello.")), interceptors=interceptors) as atlas:
            await atlas.ask("Hi")
    assert lived == [True] * 3


# Before


async def test_before_hook_can_insert_a_message_for_the_actor() -> None:
    async def before(message: Message, actor: Actor) -> Message | None:
        return user(f"{actor.user} asks {actor.agent_id}: {message.text}", synthetic=True) if actor.user else None

    def polite(message: Message) -> Message:
        return user(f"{message.text}, please")

    model = Scripted(says("Sure."), says("Sure."))
    async with in_memory_atlas(model, interceptors=[Interceptor(outgoing=polite, before=before)]) as atlas:
        await atlas.ask("Go", user="ann")
        await atlas.ask("Stop")
    agent = atlas.agents[0].id
    assert texts(model.requests[1].messages) == [
        ("user", f"ann asks {agent}: Go, please"),
        ("user", "Go, please"),
        ("assistant", "Sure."),
        ("user", "Stop, please"),
    ]


async def test_before_hook_must_return_a_message() -> None:
    async with in_memory_atlas(Scripted(), interceptors=[Interceptor(before=lambda message, actor: "words")]) as atlas:
        with pytest.raises(ConfigError, match="expected a Message"):
            await atlas.ask("Go")


# Of an agent


def shout(message: Message) -> Message:
    return user(message.text.upper())


async def test_interceptors_of_an_agent_work_without_an_atlas() -> None:
    seen: list[str] = []

    def allow_london(call: ToolCall, context: TurnContext[Any]) -> None:
        seen.append(f"{context.user}: {call.name}")
        if call.arguments["city"] != "London":
            raise Refused("only London")

    replies = (calls("weather", city="Paris"), says("It is sunny. Call +1 555 0100."))
    model = Scripted(*replies, *replies, *replies)
    agent = Agent(
        "a",
        model=model,
        tools=[weather],
        interceptors=[Interceptor(outgoing=shout), Interceptor(tool_call=allow_london), output_filter(["+1 555 0100"])],
    )
    result = await agent.run("Hi", user="ann")
    answer = await agent.ask("Hi", user="bob")
    events = await collect_events(stream := agent.send("Hi", user="eve"))
    assert [result.answer, answer.text, (await stream.reply()).text] == ["It is sunny. Call [removed]."] * 3
    assert "555 0100" not in str(events)
    assert seen == ["ann: weather", "bob: weather", "eve: weather"]
    assert [request.messages[0].text for request in model.requests] == ["HI"] * 6
    assert "only London" in str(model.requests[1].messages[-1])
    await agent.close()


async def test_interceptors_of_an_agent_run_after_those_of_the_atlas_and_only_for_it() -> None:
    def sign(message: Message) -> Message:
        return user(f"{message.text}, please")

    first, second = Scripted(says("Sure.")), Scripted(says("Sure."))
    agents = [Agent("loud", model=first, interceptors=[Interceptor(outgoing=shout)]), Agent("quiet", model=second)]
    async with Atlas(agents, interceptors=[Interceptor(outgoing=sign)]) as atlas:
        await atlas.ask("Go", agent_id="loud", session="1")
        await atlas.ask("Go", agent_id="quiet", session="2")
    assert first.requests[0].messages[0].text == "GO, PLEASE"
    assert second.requests[0].messages[0].text == "Go, please"


async def test_agent_that_takes_over_a_turn_brings_its_interceptors() -> None:
    def refuse(call: ToolCall) -> None:
        raise Refused(f"{call.name} is closed")

    def note(request: Request) -> None:
        requested.append(str(request.model))

    requested: list[str] = []
    first = Scripted(calls("hand_off", agent="b"))
    second = Scripted(calls("weather", city="Paris"), says("No weather today."))
    agents = [
        Agent("a", model=first, tools=[weather], hands_off_to=["b"], interceptors=[Interceptor(request=note)]),
        Agent("b", model=second, tools=[weather], interceptors=[Interceptor(tool_call=refuse)]),
    ]
    async with Atlas(agents) as atlas:
        assert (await atlas.ask("Hi")).text == "No weather today."
    assert "weather is closed" in str(second.requests[1].messages[-1])
    assert len(requested) == 1


def test_invalid_interceptors_of_an_agent_are_rejected() -> None:
    wrong: Any = print
    with pytest.raises(ConfigError, match="agent 'a': expected an Interceptor"):
        Agent("a", interceptors=[wrong])
    single: Any = Interceptor(outgoing=shout)
    with pytest.raises(ConfigError, match="agent 'a': interceptors=… takes a list"):
        Agent("a", interceptors=single)


# A model of a hook


async def test_hook_cannot_ask_a_model_for_a_turn_that_has_ended() -> None:
    kept: list[TurnContext[Any]] = []

    async def keep(message: Message, context: TurnContext[Any]) -> Message:
        kept.append(context)
        assert await context.ask_model("Is it fine?", model=Scripted(says("Yes."))) == "Yes."
        return message

    async with in_memory_atlas(Scripted(says("Sure.")), interceptors=[Interceptor(outgoing=keep)]) as atlas:
        await atlas.ask("Go")
        with pytest.raises(ConfigError, match="this one has ended"):
            await kept[0].ask_model("And now?", model=Scripted(says("Yes.")))
