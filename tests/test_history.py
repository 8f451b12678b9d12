"""History: what a model is sent is valid, within the limits, and includes the newest user message."""

import asyncio
import random
from collections.abc import Sequence
from typing import Any, cast

import pytest

from atlas_agents import (
    Agent,
    AnthropicProvider,
    Atlas,
    BrokenHistory,
    ConfigError,
    Conversation,
    History,
    Message,
    OpenAIProvider,
    Part,
    Request,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    system,
    tool_message,
    user,
)
from atlas_agents.agents.history import digest_conversation, messages_digest
from atlas_agents.testing import Environment, Scripted, calls, in_memory_atlas, says
from checks import is_paired, roles


def exchange(number: int, tools: int = 0) -> list[Message]:
    """Return a user message, rounds of tool calls, and an answer."""
    found = [user(f"q{number}")]
    for place in range(tools):
        id = f"{number}.{place}"
        found += [assistant(ToolCall(id, "f", {})), tool_message(ToolResult(id, "ok", "r" * 20))]
    return [*found, assistant(f"a{number}")]


def make_conversation(count: int, tools: int = 0) -> list[Message]:
    return [message for number in range(count) for message in exchange(number, tools)]


async def shown_messages(messages: Sequence[Message], history: History | None, ask: str = "now") -> list[Message]:
    """Return the messages that the model is sent with a new user message."""
    model = Scripted(says("ok"))
    async with Atlas([Agent("a", model=model)], history=history) as atlas:
        await atlas.ask(ask, session=Conversation(messages))
    return list(model.requests[0].messages)


def texts(messages: Sequence[Message]) -> list[str]:
    return [message.text for message in messages]


# Limits


async def test_everything_is_sent_without_limits() -> None:
    assert len(await shown_messages(make_conversation(200), None)) == 401
    assert len(await shown_messages(make_conversation(200), History())) == 401


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        (1, ["now"]),
        (2, ["now"]),  # an answer without its question confuses the model
        (3, ["q2", "a2", "now"]),
        (5, ["q1", "a1", "q2", "a2", "now"]),
        (7, ["q0", "a0", "q1", "a1", "q2", "a2", "now"]),
        (100, ["q0", "a0", "q1", "a1", "q2", "a2", "now"]),
    ],
)
async def test_last_messages_are_sent(limit: int, kept: list[str]) -> None:
    assert texts(await shown_messages(make_conversation(3), History(max_messages=limit))) == kept


async def test_custom_token_count_is_used() -> None:
    history = History(max_tokens=7, count=lambda message: 2 if message.role == "user" else 1)
    assert texts(await shown_messages(make_conversation(5), history)) == ["q4", "a4", "now"]
    history = History(max_tokens=8, count=lambda message: 2 if message.role == "user" else 1)
    assert texts(await shown_messages(make_conversation(5), history)) == ["q3", "a3", "q4", "a4", "now"]


async def test_tokens_are_estimated_from_the_length() -> None:
    long = [message for n in range(10) for message in (user("x" * 3600), assistant(f"a{n}"))]
    assert len(await shown_messages(long, History(max_tokens=2200))) == 5
    assert len(await shown_messages(long, History(max_tokens=100_000))) == 21


async def test_limits_do_not_change_the_stored_history() -> None:
    conversation = Conversation(make_conversation(20))
    async with in_memory_atlas(Scripted(says("ok")), history=History(max_messages=3)) as atlas:
        await atlas.ask("now", session=conversation)
    assert len(conversation) == 42


async def test_system_prompt_is_always_sent() -> None:
    model = Scripted(says("ok"))
    agent = Agent("a", model=model, system_prompt="Be brief.", rules=["Be kind."])
    async with Atlas([agent], history=History(max_messages=1, max_tokens=1)) as atlas:
        await atlas.ask("now", session=Conversation(make_conversation(20)))
    assert model.requests[0].system == "Be brief.\n\nRules:\n- Be kind."
    assert texts(model.requests[0].messages) == ["now"]


async def test_call_and_result_are_never_separated() -> None:
    past = [user("q"), assistant(ToolCall("1", "f", {})), tool_message(ToolResult("1", "ok", 1)), assistant("a")]
    for limit in range(1, 6):
        assert is_paired(await shown_messages(past, History(max_messages=limit)))
    assert roles(await shown_messages(past, History(max_messages=4))) == ["user"]
    assert roles(await shown_messages(past, History(max_messages=5))) == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


async def test_user_message_is_sent_while_its_answer_is_repaired() -> None:
    model = Scripted(says("seven"), says('{"n": 7}'))
    async with in_memory_atlas(model, history=History(max_messages=2)) as atlas:
        await atlas.ask("how many?", output={"type": "object", "required": ["n"]})
    assert model.requests[1].messages[0].text == "how many?"


async def test_user_message_is_sent_in_every_round() -> None:
    """In a long turn, the user message and the newest call with its result are sent."""

    async def step(n: int) -> str:
        return f"result {n}"

    model = Scripted(*[calls("step", n=n) for n in range(8)], says("Done."))
    async with in_memory_atlas(model, [step], history=History(max_messages=4), agent={"max_rounds": 20}) as atlas:
        await atlas.ask("The goal", session=Conversation(make_conversation(5)))
    for request in model.requests:
        assert "The goal" in texts(request.messages)
        assert is_paired(request.messages)
        assert len(request.messages) <= 4
    assert roles(model.requests[-1].messages) == ["user", "assistant", "tool"]
    assert model.requests[-1].messages[-1].tool_results[0].result == "result 7"


@pytest.mark.parametrize("limits", [{"max_messages": 0}, {"max_tokens": 0}, {"max_messages": -1}])
def test_limit_below_one_is_rejected(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be at least 1"):
        History(**limits)


def test_compaction_of_another_type_is_rejected() -> None:
    wrong: Any = 3
    with pytest.raises(ConfigError, match=r"^History\(compaction=…\): expected a Compaction or None, got 3$"):
        History(compaction=wrong)


# Ten thousand random histories


def random_part(rng: random.Random, ids: list[str]) -> Part:
    id = rng.choice(ids)
    return rng.choice(
        [
            Text(f"t{rng.randrange(100)}"),
            ToolCall(id, "f", {}),
            ToolResult(id, "ok", rng.randrange(9)),
            Thinking("hm", "s"),
        ]
    )


def break_history(rng: random.Random) -> list[Message]:
    """Return a random history: calls and results in any message, missing, repeated or out of order."""
    ids = [f"c{number}" for number in range(rng.randint(1, 4))]
    found: list[Message] = []
    for _ in range(rng.randrange(10)):
        role = rng.choice(["user", "assistant", "assistant", "tool", "tool", "system"])
        if role == "tool" and rng.random() < 0.8:
            picked = rng.sample(ids, rng.randint(0, len(ids)))
            found.append(tool_message(*[ToolResult(id, "ok", 1) for id in picked]))
        else:
            parts = tuple(random_part(rng, ids) for _ in range(rng.randrange(4)))
            found.append(Message(cast(Any, role), parts))
    return found


def is_complete(rng: random.Random) -> list[Message]:
    """Return a history as turns leave it."""
    found: list[Message] = []
    for number in range(rng.randrange(6)):
        found += exchange(number, rng.randrange(3))
        if rng.random() < 0.2:
            found.pop()  # a cancelled turn has no answer
        if rng.random() < 0.1:
            found.append(system("by the way"))
    return found


@pytest.mark.slow
async def test_selection_of_random_histories_is_always_valid() -> None:
    rng = random.Random(7)
    seen: list[Sequence[Message]] = []

    async def model(request: Request) -> Any:
        seen.append(request.messages)
        return {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}

    agent = Agent("a", model=model)
    limits = [None, 1, 2, 3, 4, 5, 8]
    atlases = [
        Atlas([agent], history=History(max_messages=m, max_tokens=t, count=lambda message: 1 + len(message.parts)))
        for m in limits
        for t in (None, 1, 5, 12)
    ]
    for number in range(3_000):
        given = break_history(rng) if number % 2 else is_complete(rng)
        if number % 2 or not given or rng.random() < 0.5:
            given.append(user("newest"))  # otherwise the turn goes on after an answer or a result
        await rng.choice(atlases).run(given)
        messages = seen.pop()
        assert is_paired(messages), given
        assert messages[-1] is given[-1]
        assert [message for message in given if message.role == "user"][-1] in messages
        order = [message.id for message in given]
        kept = [order.index(message.id) for message in messages if message.id in order]
        assert kept == sorted(set(kept))  # nothing is repeated or reordered


async def test_limits_hold_except_for_required_messages() -> None:
    rng = random.Random(8)
    for _ in range(300):
        given, limit = is_complete(rng), rng.randint(1, 12)
        messages = await shown_messages(given, History(max_messages=limit))
        assert len(messages) <= max(limit, 1)
        tokens = rng.randint(5, 60)
        messages = await shown_messages(given, History(max_tokens=tokens, count=lambda message: 5))
        assert 5 * len(messages) <= tokens
        assert messages[0].role in ("user", "system")


async def test_unit_larger_than_the_limit_is_sent_complete() -> None:
    many = [ToolCall(str(n), "f", {}) for n in range(10)]
    past = [user("q"), assistant(*many), tool_message(*[ToolResult(call.id, "ok", "x" * 1000) for call in many])]
    model = Scripted(says("ok"))
    async with in_memory_atlas(model, history=History(max_messages=1, max_tokens=1)) as atlas:
        await atlas.run(past)
    assert [message.id for message in model.requests[0].messages] == [message.id for message in past]


# Repair


LOST = "This call was interrupted; it may have happened. It was not retried."


async def test_call_without_result_gets_an_unknown_result() -> None:
    past = [user("q"), assistant(ToolCall("1", "f", {}), ToolCall("2", "f", {})), user("well?")]
    messages = await shown_messages(past, None)
    assert roles(messages) == ["user", "assistant", "tool", "user", "user"]
    assert messages[2].tool_results == tuple(ToolResult(id, "unknown", LOST, "unknown") for id in "12")


async def test_result_without_call_is_removed() -> None:
    past = [tool_message(ToolResult("0", "ok", 0)), user("q"), tool_message(ToolResult("1", "ok", 1)), assistant("a")]
    assert roles(await shown_messages(past, None)) == ["user", "assistant", "user"]


async def test_scattered_results_are_reordered() -> None:
    asked = assistant(ToolCall("1", "f", {}), ToolCall("2", "f", {}))
    one, two = ToolResult("1", "ok", "one"), ToolResult("2", "ok", "two")
    for past in (
        [user("q"), asked, tool_message(one), tool_message(two)],
        [user("q"), asked, user("wait"), tool_message(two, one)],
        [user("q"), asked, user(two, one)],
        [user("q"), asked, tool_message(one, two, one)],
    ):
        messages = await shown_messages(past, None)
        assert is_paired(messages)
        assert messages[2].tool_results == (one, two)


async def test_misplaced_parts_are_removed() -> None:
    stray = user("hello", ToolCall("1", "f", {}), ToolResult("2", "ok", 2))
    messages = await shown_messages([stray, assistant("hi", ToolResult("3", "ok", 3))], None)
    assert [message.parts for message in messages] == [(Text("hello"),), (Text("hi"),), (Text("now"),)]
    assert stray.tool_calls != ()


async def test_repair_does_not_change_the_stored_history() -> None:
    past = [user("q"), assistant(ToolCall("1", "f", {}))]
    conversation = Conversation(past)
    async with in_memory_atlas(Scripted(says("ok"))) as atlas:
        await atlas.ask("now", session=conversation)
    assert conversation.messages[:2] == past
    assert roles(conversation.messages) == ["user", "assistant", "user", "assistant"]


# The last gate


ORPHANS: list[list[Message]] = [
    [user("q"), assistant(ToolCall("1", "f", {}))],
    [user("q"), assistant(ToolCall("1", "f", {})), user("well?")],
    [user("q"), tool_message(ToolResult("1", "ok", 1))],
    [user("q"), assistant(ToolCall("1", "f", {})), tool_message(ToolResult("2", "ok", 1))],
    [user("q"), assistant(ToolCall("1", "f", {})), tool_message(ToolResult("1", "ok", 1), ToolResult("2", "ok", 1))],
    [user("q"), assistant(ToolCall("1", "f", {})), user(ToolResult("1", "ok", 1))],
]


@pytest.mark.parametrize("messages", ORPHANS)
@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
async def test_provider_rejects_a_broken_history_without_sending_it(vendor: str, messages: list[Message]) -> None:
    connections: list[Any] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(reader)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        kind = OpenAIProvider if vendor == "openai" else AnthropicProvider
        provider = kind("m", base_url=url, api_key="k", environment=Environment({}, dotenv=None))
        with pytest.raises(BrokenHistory, match="was not sent"):
            async for _ in provider.stream(Request(messages=messages)):
                pass
        await provider.close()
    assert connections == []


# Digest


def test_digest_of_a_conversation_is_that_of_its_messages() -> None:
    conversation = Conversation([])
    first = [user("q"), assistant("a"), user("and?")]
    for messages in (first, [*first, assistant("b")], [*first, user("c"), assistant("d")], first[1:], [], first):
        assert digest_conversation(conversation).update(messages) == messages_digest(messages)
    assert messages_digest(first) != messages_digest(first[:2]) != messages_digest([user("a"), assistant("a")])


def test_message_without_a_digest_leaves_the_conversation_as_it_was() -> None:
    class Unreadable:
        def __repr__(self) -> str:
            raise ValueError("unreadable")

    conversation, first = Conversation([]), [user("q"), assistant("a")]
    digest_conversation(conversation).update(first)
    with pytest.raises(ValueError, match="unreadable"):
        digest_conversation(conversation).update([assistant(ToolCall("1", "f", {"x": Unreadable()}))])
    assert digest_conversation(conversation).update(first) == messages_digest(first)
