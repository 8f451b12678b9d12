"""State of a session: metadata that tools and rules set, values of one turn, and `deps`."""

import asyncio
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, ConfigError, Interceptor, Message, PromptFailed, Rule, ToolContext, TurnContext
from atlas_agents.agents import context as contexts
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, says
from atlas_agents.tools.journal import read_end_record, read_shared_state
from atlas_agents.tools.tool import tool


@tool
async def remember(customer: str, context: ToolContext) -> str:
    """Remember the customer of this session."""
    context.metadata.set("customer", customer)
    return "noted"


RULE = Rule("The customer is known.", when=lambda context: context.metadata.has("customer"))


def assistant(*replies: Any, **options: Any) -> tuple[Agent, Scripted]:
    model = Scripted(*replies)
    return Agent("a", model=model, tools=[remember], rules=[RULE], **options), model


@pytest.mark.parametrize("stored", [False, True])
async def test_what_a_tool_sets_belongs_to_its_session_alone(stored: bool) -> None:
    agent, model = assistant(calls("remember", customer="Ana"), says("Done."), says("Hello."))
    async with Atlas([agent], store=MemoryStore() if stored else None) as atlas:
        await atlas.ask("I am Ana", session="ana")
        await atlas.ask("hi", session="bob")
        assert [RULE.label in request.system for request in model.requests] == [False, True, False]
        assert atlas.conversation("ana").metadata == {"customer": "Ana"}
        assert atlas.conversation("bob").metadata == {} and not agent.metadata.has("customer")


async def test_metadata_of_a_session_survives_a_restart() -> None:
    store, (agent, _) = MemoryStore(), assistant(calls("remember", customer="Ana"), says("Done."))
    async with Atlas([agent], store=store) as atlas:
        await atlas.ask("I am Ana", session="ana")
    agent, model = assistant(says("Hello."))
    async with Atlas([agent], store=store) as atlas:
        await atlas.ask("hi again", session="ana")
        assert RULE.label in model.requests[0].system
        assert (await atlas.sessions.get("ana")).metadata == {"customer": "Ana"}


async def test_value_that_is_not_json_is_refused_where_it_is_set() -> None:
    failures: list[Exception] = []

    @tool
    async def connect(context: ToolContext) -> str:
        """Connect."""
        try:
            context.metadata.set("connection", object())
        except ConfigError as error:
            failures.append(error)
        return "ok"

    agent = Agent("a", model=Scripted(calls("connect"), says("Done.")), tools=[connect])
    async with Atlas([agent], store=MemoryStore()) as atlas:
        await atlas.ask("go", session="s")
    assert "metadata 'connection' cannot be stored with the session" in str(failures[0])


@tool
async def count(context: ToolContext) -> int:
    """Count in the shared state."""
    number = context.metadata.get("shared_state", {}).get("n", 0) + 1
    context.metadata.set("shared_state", {"n": number})
    return number


async def test_shared_state_is_an_event_and_survives_an_interrupted_turn() -> None:
    started, store = asyncio.Event(), MemoryStore()

    @tool(effect="pure")
    async def wait() -> str:
        """Wait."""
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()
        return "waited"

    script = (calls("count"), calls("wait"))
    first = Atlas([Agent("a", model=Scripted(*script), tools=[count, wait])], store=store)
    stream = first.send("go", session="s", metadata={"shared_state": {"n": 5}})
    await started.wait()
    await first.close(grace=0)
    agent = Agent("a", model=Scripted(calls("count") + calls("count"), says("Done.")), tools=[count, wait])
    async with Atlas([agent], store=store) as atlas:
        (resumed,) = await atlas.recover()
        states = [event.state async for event in resumed if event.type == "state:changed"]
        assert states[-1] == (await atlas.sessions.get("s")).metadata["shared_state"] == {"n": 8}
        assert (await read_shared_state(store, "default", stream.stream_id))[0] == {"n": 6}


async def test_shared_state_that_a_frontend_could_not_send_back_is_refused() -> None:
    failures: list[Exception] = []

    @tool
    async def share(context: ToolContext) -> str:
        """Share too much."""
        try:
            context.metadata.set("shared_state", "x" * 65_535)
        except ConfigError as error:
            failures.append(error)
        return "ok"

    agent = Agent("a", model=Scripted(calls("share"), says("Done.")), tools=[share])
    async with Atlas([agent], store=MemoryStore()) as atlas:
        await atlas.ask("go", session="s")
    assert "'shared_state' is 65,537 bytes long; the maximum is 65,536; share less" in str(failures[0])


async def test_values_of_a_turn_are_seen_in_that_turn_only() -> None:
    agent, model = assistant(says("One."), says("Two."))
    async with Atlas([agent], store=MemoryStore()) as atlas:
        await atlas.ask("hi", metadata={"customer": "Ana"})
        await atlas.ask("hi")
        assert [RULE.label in request.system for request in model.requests] == [True, False]
        with pytest.raises(ConfigError, match="pass objects with deps"):
            await atlas.ask("hi", metadata={"db": object()})


async def test_conditions_see_messages_user_session_and_deps() -> None:
    seen: list[tuple[Any, ...]] = []

    def look(context: TurnContext[str]) -> bool:
        seen.append(([each.text for each in context.messages], context.user, context.session, context.deps))
        return True

    agent = Agent("a", model=Scripted(says("Hello.")), rules=[Rule("Be kind.", when=look)])
    async with Atlas([agent]) as atlas:
        await atlas.ask("hi", user="ana", session="s", deps="the database")
    assert seen == [(["hi"], "ana", "s", "the database")]


async def test_rule_that_fails_or_hangs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(context: TurnContext[None]) -> bool:
        await asyncio.Event().wait()
        return True

    def fail(context: TurnContext[None]) -> bool:
        raise ZeroDivisionError("division by zero")

    for when, message in ((fail, "failed: ZeroDivisionError"), (hang, "did not return within 0.05 seconds")):
        monkeypatch.setattr(contexts, "FUNCTION_TIMEOUT", 0.05)
        agent = Agent("a", model=Scripted(says("Hello.")), rules=[Rule("Be kind.", when=when)])
        async with Atlas([agent]) as atlas:
            with pytest.raises(PromptFailed, match=f"the condition of rule 'Be kind.' {message}"):
                await atlas.ask("hi")
            agent.rules = []
            assert (await atlas.ask("hi")).text == "Hello."


async def test_prompt_and_rules_can_be_functions_of_the_context() -> None:
    async def prompt(context: TurnContext[dict[str, str]]) -> str:
        return f"You talk to {context.deps[context.user]}."

    def language(context: TurnContext[Any]) -> str | None:
        return "Answer in French." if context.metadata.get("language") == "fr" else None

    model = Scripted(says("Bonjour."), says("Hello."))
    async with Atlas([Agent("a", model=model, system_prompt=prompt, rules=[Rule(language)])]) as atlas:
        await atlas.ask("hi", user="u1", deps={"u1": "Ana"}, metadata={"language": "fr"})
        await atlas.ask("hi", user="u2", deps={"u2": "Bob"})
    first, second = [request.system for request in model.requests]
    assert first == "You talk to Ana.\n\nRules:\n- Answer in French." and second == "You talk to Bob."


async def test_tools_receive_typed_deps() -> None:
    @tool
    async def look_up(name: str, context: ToolContext[dict[str, int]]) -> int:
        """Look up a number."""
        return context.deps[name]

    @tool(in_process=True)
    def look_up_here(name: str, context: ToolContext[dict[str, int]]) -> int:
        """Look up a number."""
        return context.deps[name]

    model = Scripted(calls("look_up", name="a") + calls("look_up_here", name="b"), says("Done."))
    async with Atlas([Agent("a", model=model, tools=[look_up, look_up_here])]) as atlas:
        await atlas.ask("go", deps={"a": 1, "b": 2})
    assert [result.result for result in model.requests[1].messages[-1].tool_results] == [1, 2]
    assert all("context" not in tool.parameters["properties"] for tool in model.requests[0].tools)


@pytest.mark.parametrize("registered", [False, True])
async def test_resumed_turn_gets_deps_from_the_function_or_ends_with_an_error(registered: bool) -> None:
    started, store = asyncio.Event(), MemoryStore()
    received: list[object] = []

    @tool
    async def use(context: ToolContext[str]) -> str:
        """Use the deps."""
        received.append(context.deps)
        return "used"

    @tool(effect="pure")
    async def wait(context: ToolContext[str]) -> str:
        """Wait."""
        if not started.is_set():
            started.set()
            await asyncio.Event().wait()
        return "waited"

    first = Atlas([Agent("a", model=Scripted(calls("wait")), tools=[wait, use])], store=store)
    first.send("go", session="s", deps="given")
    await started.wait()
    await first.close(grace=0)
    agent = Agent("a", model=Scripted(calls("use"), says("Done.")), tools=[wait, use])
    async with Atlas([agent], store=store, deps=(lambda context: "made") if registered else None) as atlas:
        (stream,) = await atlas.recover()
        if registered:
            assert (await stream.reply()).text == "Done." and received == ["made"]
        else:
            with pytest.raises(ConfigError, match="which are not stored, and cannot be resumed without them"):
                await stream.reply()
            assert received == []


async def test_deps_function_serves_turns_that_were_sent_without_them() -> None:
    async def make(context: TurnContext[Any]) -> str:
        return f"deps of {context.user}"

    agent = Agent("a", model=Scripted(says("1"), says("2")), system_prompt=lambda context: context.deps)
    async with Atlas([agent], deps=make) as atlas:
        await atlas.ask("hi", user="ana")
        await atlas.ask("hi", user="ana", deps="given")
    assert [request.system for request in agent.models[0].requests] == ["deps of ana", "given"]  # type: ignore[union-attr]


async def test_shared_state_that_changes_after_the_last_reply_is_stored_with_the_end() -> None:
    kept: list[ToolContext] = []

    @tool
    async def keep(context: ToolContext) -> str:
        """Keep the context of the call."""
        kept.append(context)
        return "kept"

    async def change(reply: Message) -> None:
        if kept and not reply.tool_calls:
            kept.pop().metadata.set("shared_state", {"n": 1})

    store = MemoryStore()
    agent = Agent("a", model=Scripted(calls("keep"), says("Done.")), tools=[keep])
    async with Atlas([agent], store=store, interceptors=[Interceptor(incoming=change)]) as atlas:
        stream = atlas.send("go", session="s")
        states = [event.state async for event in stream if event.type == "state:changed"]
        assert (states, stream.text) == ([{"n": 1}], "Done.")
        assert await read_shared_state(store, "default", stream.stream_id) == ({"n": 1},)
        row = await store.run("default", stream.stream_id)
        assert row is not None and row.status == "done"
        *_, reply, state, end = await store.journal("default", stream.stream_id)
        assert (reply.kind, state.kind, end.kind) == ("reply", "state", "ended")
        assert await read_end_record(store, row) is not None
