"""Likely mistakes in arguments: each works as it was meant, or fails at once with an error that says what to do."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from atlas_agents import (
    Agent,
    Atlas,
    ConfigError,
    Conversation,
    Image,
    Interceptor,
    MemoryStore,
    Message,
    Metadata,
    OpenAIProvider,
    ProviderError,
    RetryPolicy,
    Text,
    ToolCall,
    ToolResult,
    user,
)
from atlas_agents.providers.registry import Registry
from atlas_agents.testing import Scripted, says


def wrong(value: object) -> Any:
    """Return a value under a type that the checker does not object to."""
    return value


def scripted(*replies: str) -> tuple[Atlas, Scripted]:
    model = Scripted(*[says(reply) for reply in replies or ("Hello.",)])
    return Atlas([Agent("a", model=model)]), model


@pytest.mark.parametrize(
    ("mistake", "error"),
    [
        (lambda: Message(wrong("robot"), ()), "invalid role 'robot': expected one of system, user, assistant, tool"),
        (lambda: user(wrong(5)), r"invalid part 5 of a user message: expected text, Image\(…\), File\(…\)"),
        (lambda: Message("user", (wrong("hello"),)), r"invalid part 'hello' .* expected Text\(…\)"),
        (lambda: Message("user", wrong(5)), "invalid parts 5 of a user message: expected a tuple of parts"),
        (lambda: Metadata(wrong({"a": 1})), r"pass values as Metadata\(values=\{…\}\)"),
        (lambda: Agent(wrong(3)), "invalid agent id 3: expected a text"),
        (lambda: Agent("a", model=wrong(3)), "agent 'a': invalid model 3: expected a model reference such as"),
        (lambda: Agent("a", model=wrong(OpenAIProvider)), r"pass a provider, OpenAIProvider\(…\), not its class"),
        (lambda: Agent("a", model=wrong(lambda: "hi")), "must take one argument, the request"),
        (lambda: Agent("a", model="opnai/gpt-5.6"), "unknown provider 'opnai': did you mean 'openai'?"),
        (lambda: Agent("a", model="gpt-5.6", provider="antropic"), "did you mean 'anthropic'?"),
        (lambda: Agent("a", system_prompt=wrong(3)), "agent 'a': invalid system_prompt 3: expected a text or a"),
        (lambda: Agent("a", tools=wrong(user)), "agent 'a': tools=… takes a list of tools, got "),
        (lambda: Agent("a", rules=[wrong(5)]), "agent 'a': invalid rule 5: expected a text that is not blank, or"),
        (lambda: Agent("a", rules="Be brief."), r"agent 'a': rules=… takes a list of rules, got 'Be brief.'"),
        (lambda: Agent("a", hands_off_to="bob"), "agent 'a': hands_off_to=… takes a list of agent ids, got 'bob'"),
        (lambda: Agent("a", hands_off_to=[wrong(Agent("b"))]), r"takes a list of agent ids, got \[Agent\('b'\)\]"),
        (lambda: Agent("a", providers="openai/gpt-5.6"), "agent 'a': providers=… takes a list of models, got 'openai/"),
        (lambda: Agent("a", retry=wrong(3)), "agent 'a': retry=… takes a RetryPolicy, got 3"),
        (lambda: RetryPolicy(order=wrong("x")), r"invalid RetryPolicy\(order='x'\): expected 'random' or 'given'"),
        (lambda: RetryPolicy(on_refusal=wrong("x")), r"\(on_refusal='x'\): expected 'final' or 'failover'"),
        (lambda: RetryPolicy(retries=-1), r"\(retries=-1\): expected a number that is not negative"),
        (
            lambda: Atlas(policy=wrong("x.toml")),
            r"Atlas\(policy=…\) takes a Policy, such as Policy.load\('policy.toml'\), got 'x",
        ),
        (lambda: setattr(Atlas(), "policy", "x.toml"), r"Atlas\(policy=…\) takes a Policy"),
        (
            lambda: Atlas(store=wrong("x.db")),
            r"Atlas\(store=…\) takes an open store, such as SqliteStore\('atlas.db'\), got 'x.db'",
        ),
        (lambda: Atlas(approve=wrong("yes")), r"Atlas\(approve=…\) takes a function or Approvals\(…\), got 'yes'"),
        (lambda: Atlas(history=wrong(5)), r"Atlas\(history=…\) takes History\(…\), got 5"),
        (lambda: Atlas(limits=wrong(5)), r"Atlas\(limits=…\) takes Limits\(…\), got 5"),
        (
            lambda: Atlas(audit=wrong("a.db")),
            r"Atlas\(audit=…\) takes an audit log; the default is that of the store, got 'a.db'",
        ),
        (lambda: Atlas(clock=wrong(5)), r"Atlas\(clock=…\) takes a clock; the default is that of the system, got 5"),
        (lambda: Atlas(prices=wrong(5)), r"Atlas\(prices=…\) takes a mapping of models to Price\(…\), got 5"),
        (lambda: Atlas(prices=wrong({"gpt-5.6": 3})), r"invalid price of 'gpt-5.6': expected Price\(…\), got 3"),
        (lambda: Atlas(retries=wrong(5)), r"Atlas\(retries=…\) takes a list of seconds, got 5"),
        (lambda: Atlas(retries=wrong("135")), r"Atlas\(retries=…\) takes a list of seconds, got '135'"),
        (lambda: Atlas(retries=[-1]), r"Atlas\(retries=…\) takes a list of seconds, got \[-1\]"),
        (lambda: Atlas(tenant=wrong(7)), r"Atlas\(tenant=…\) takes a name, got 7: leave it out if there is only one"),
        (lambda: Atlas(tenant=""), r"Atlas\(tenant=…\) takes a name, got ''"),
        (lambda: Atlas(delegation=wrong(5)), r"Atlas\(delegation=…\) takes Delegation\(…\), got 5"),
        (lambda: Atlas(registry=wrong("x")), r"Atlas\(registry=…\) takes a Registry, got 'x'"),
        (lambda: Atlas(wrong(Agent("a"))), r"Atlas\(agents=…\) takes a list of agents, got Agent\('a'\)"),
        (lambda: Atlas([wrong(3)]), r"Atlas\(agents=…\) takes a list of agents, got 3 in it"),
        (lambda: Conversation([wrong("hi")]), r"invalid message 'hi' .*: use user\('hi'\)"),
    ],
)
def test_mistake_in_a_constructor_fails_with_what_to_do(mistake: Callable[[], object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        mistake()


@pytest.mark.parametrize("message", ["", "  \n", user(), user(" ")])
async def test_empty_message_is_refused_before_a_turn_starts(message: Any) -> None:
    atlas, model = scripted()
    for start in (atlas.ask, atlas.send, atlas.run):
        with pytest.raises(ConfigError, match="the message is empty"):
            await cast(Any, start(message))
    assert model.requests == [] and len(atlas.conversation()) == 0


async def test_message_with_only_an_image_is_not_empty() -> None:
    atlas, _ = scripted()
    assert (await atlas.ask(user(Image.of(b"png")))).text == "Hello."


@pytest.mark.parametrize("session", [3, None, ["a"]])
async def test_session_that_is_no_key_and_no_conversation_is_refused(session: Any) -> None:
    atlas, _ = scripted()
    with pytest.raises(ConfigError, match=r"invalid session .*: expected a key such as 'ana', or a Conversation"):
        await atlas.ask("hi", session=session)


@pytest.mark.parametrize("store", [None, MemoryStore()])
async def test_user_that_is_no_name_is_refused(store: Any) -> None:
    atlas = Atlas([Agent("a", model=Scripted())], store=store)
    for ask in (atlas.ask, atlas.run, atlas.send, Agent("b", model=Scripted()).ask):
        with pytest.raises(ConfigError, match="invalid user None: expected a name, or '' for no user"):
            await cast(Any, ask)("hi", user=None)


async def test_dicts_in_the_form_of_chat_completions_are_messages() -> None:
    atlas, model = scripted("Warm.", "Hi.")
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Lima"}'}}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    await atlas.run(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Here?"}, image]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "Sunny"},
            {"role": "assistant", "content": "Sunny."},
            {"role": "user", "content": "Warm?"},
        ]
    )
    *_, asked, called, answered, _, last = model.requests[0].messages
    assert asked.parts == (Text("Here?"), Image("image/png", "AAAA"))
    assert called.parts == (ToolCall("1", "weather", {"city": "Lima"}),)
    assert answered.parts == (ToolResult("1", "ok", "Sunny"),) and last.text == "Warm?"
    assert (await atlas.ask({"role": "user", "content": "hi"})).text == "Hi."


async def test_stored_messages_are_accepted_as_dicts() -> None:
    atlas, model = scripted()
    await atlas.run([{"role": "user", "parts": [{"type": "text", "text": "hi"}]}])
    assert model.requests[0].messages[-1].text == "hi"


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([{"role": "robot", "content": "hi"}], r"message 1 is invalid: .*'robot'.*\$\.role"),
        ([{"content": "hi"}], "message 1 is invalid: .*`role`"),
        ([user("hi"), {"role": "user", "content": 5}], r"message 2 is invalid: .*\$\.content"),
        ([user("hi"), 5], "message 2 is invalid: expected a text, a Message or a dict with role and content, got int"),
    ],
)
async def test_invalid_dict_fails_with_its_place(messages: Any, error: str) -> None:
    atlas, _ = scripted()
    with pytest.raises(ConfigError, match=error):
        await atlas.run(messages)


async def test_function_that_returns_text_is_a_model() -> None:
    async with Atlas([Agent("a", model=lambda request: f"You wrote {request.messages[-1].text}.")]) as atlas:
        assert (await atlas.ask("hi")).text == "You wrote hi."


async def test_function_that_returns_something_else_fails_at_once() -> None:
    asked: list[object] = []
    async with Atlas([Agent("a", model=asked.append)]) as atlas:
        with pytest.raises(ProviderError, match=r"append must return a text or a chat completion, got NoneType"):
            await atlas.ask("hi")
    assert len(asked) == 1


def test_name_of_a_registered_provider_is_no_misspelling() -> None:
    Registry().register("openia", lambda environment: Scripted())
    assert Agent("a", model="openia/x").models == ("openia/x",)
    assert Agent("a", model="openai-eu/x").models == ("openai-eu/x",)


async def test_unknown_provider_fails_with_the_nearest_name() -> None:
    atlas, _ = scripted()
    with pytest.raises(ConfigError, match="unknown provider 'opnai': did you mean 'openai'"):
        await atlas.ask("hi", model="opnai/gpt-5.6")


async def test_function_as_system_prompt_is_called() -> None:
    model = Scripted(says("Hello."))
    await Agent("a", model=model, system_prompt=lambda context: f"You are {context.agent_id}.").call("hi")
    assert model.requests[0].system == "You are a."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hold": "word"}, "invalid hold 'word' of an interceptor: expected 'sentence' or 'answer'"),
        ({"timeout": -1}, "invalid timeout -1 of an interceptor: expected a positive number"),
    ],
)
def test_impossible_option_of_an_interceptor_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Interceptor(**options)


async def test_metadata_that_is_not_a_mapping_is_refused() -> None:
    atlas, _ = scripted()
    wrong: Any = 3
    with pytest.raises(ConfigError, match="invalid metadata 3 of a turn: expected names and values"):
        await atlas.ask("hi", metadata=wrong)
