"""Conversations: forks, and turns that run sequentially in one conversation and concurrently in several."""

import asyncio
import pickle
import threading

import pytest

from atlas_agents import (
    Agent,
    Atlas,
    ConfigError,
    Conversation,
    Message,
    ProviderError,
    Request,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    tool_message,
    user,
)
from atlas_agents.testing import Scripted, in_memory_atlas, says
from checks import TIMEOUT, PausedProvider


def make_conversation() -> Conversation:
    return Conversation([user("1"), assistant("2"), user("3"), assistant("4")], id="talk", metadata={"topic": "x"})


def texts(conversation: Conversation) -> list[str]:
    return [message.text for message in conversation.messages]


@pytest.mark.parametrize("place", range(4))
def test_conversation_can_be_forked_at_any_message(place: int) -> None:
    original = make_conversation()
    by_message = original.fork(original.messages[place])
    by_id = original.fork(original.messages[place].id)
    assert by_message.messages == by_id.messages == original.messages[: place + 1]
    assert by_message.metadata == {"topic": "x", "forked_from": "talk"}
    assert len({by_message.id, by_id.id, original.id}) == 3


def test_fork_without_a_message_copies_everything() -> None:
    original = make_conversation()
    assert original.fork().messages == original.messages
    assert original.fork().messages is not original.messages


def test_fork_at_an_unknown_message_is_an_error() -> None:
    with pytest.raises(KeyError, match="conversation 'talk' has no message 'nowhere'"):
        make_conversation().fork("nowhere")


async def test_turn_in_a_fork_does_not_change_the_original() -> None:
    original = make_conversation()
    fork = original.fork(original.messages[1])
    model = Scripted(says("another 4"))
    async with in_memory_atlas(model) as atlas:
        await atlas.ask("another 3", session=fork)
    assert texts(original) == ["1", "2", "3", "4"]
    assert texts(fork) == ["1", "2", "another 3", "another 4"]
    assert [message.text for message in model.requests[0].messages] == ["1", "2", "another 3"]


async def test_session_is_found_by_its_key() -> None:
    model = Scripted(says("a1"), says("b1"), says("a2"), says("d"))
    async with in_memory_atlas(model) as atlas:
        await atlas.ask("A1", session="a")
        await atlas.ask("B1", session="b")
        await atlas.ask("A2", session="a")
        await atlas.ask("D")
        assert texts(atlas.conversation("a")) == ["A1", "a1", "A2", "a2"]
        assert texts(atlas.conversation("b")) == ["B1", "b1"]
        assert texts(atlas.conversation()) == ["D", "d"]
        assert atlas.conversation("a").id == "a"


async def test_messages_of_a_session_are_answered_sequentially() -> None:
    model = PausedProvider(Scripted(says("first answer"), says("second answer")))
    async with in_memory_atlas(model) as atlas, asyncio.timeout(TIMEOUT):
        first, second = atlas.send("first"), atlas.send("second")
        await model.reached.wait()
        assert texts(atlas.conversation()) == ["first"]
        model.go.set()
        assert (await second.reply()).text == "second answer"
        assert (await first.reply()).text == "first answer"
        assert texts(atlas.conversation()) == ["first", "first answer", "second", "second answer"]


async def test_messages_of_a_session_keep_their_order() -> None:
    async def echo(request: Request) -> object:
        await asyncio.sleep(0)
        return {"choices": [{"message": {"content": request.messages[-1].text.upper()}, "finish_reason": "stop"}]}

    async with in_memory_atlas(echo) as atlas, asyncio.timeout(TIMEOUT):
        streams = [atlas.send(f"m{number}") for number in range(20)]
        assert [(await stream.reply()).text for stream in streams] == [f"M{number}" for number in range(20)]
        assert texts(atlas.conversation()) == [text for n in range(20) for text in (f"m{n}", f"M{n}")]


async def test_turns_of_a_conversation_object_run_sequentially() -> None:
    model = PausedProvider(Scripted(says("a"), says("b")))
    mine = Conversation()
    async with in_memory_atlas(model) as atlas, asyncio.timeout(TIMEOUT):
        first, second = atlas.send("A", session=mine), atlas.send("B", session=mine)
        await model.reached.wait()
        assert texts(mine) == ["A"]
        model.go.set()
        await first.reply()
        await second.reply()
        assert texts(mine) == ["A", "a", "B", "b"]


async def test_two_atlases_share_the_lock_of_a_conversation() -> None:
    model = PausedProvider(Scripted(says("a"), says("b")))
    mine = Conversation()
    async with in_memory_atlas(model) as one, in_memory_atlas(model) as other, asyncio.timeout(TIMEOUT):
        first, second = one.send("A", session=mine), other.send("B", session=mine)
        await model.reached.wait()
        model.go.set()
        await first.reply()
        await second.reply()
        assert texts(mine) == ["A", "a", "B", "b"]


async def test_sessions_are_answered_concurrently() -> None:
    both = asyncio.Barrier(2)

    async def meet(request: Request) -> object:
        await both.wait()  # passes only if both turns run concurrently
        return {"choices": [{"message": {"content": "met"}, "finish_reason": "stop"}]}

    async with in_memory_atlas(meet) as atlas, asyncio.timeout(TIMEOUT):
        one, two = atlas.send("hi", session="one"), atlas.send("hi", session="two")
        assert [(await one.reply()).text, (await two.reply()).text] == ["met", "met"]


async def test_calls_of_one_agent_run_sequentially() -> None:
    model = PausedProvider(Scripted(says("a"), says("b")))
    agent = Agent("a", model=model)
    async with asyncio.timeout(TIMEOUT):
        first, second = asyncio.create_task(agent.call("A")), asyncio.create_task(agent.call("B"))
        await model.reached.wait()
        model.go.set()
        await asyncio.gather(first, second)
    assert [message.text for message in agent.messages] == ["A", "a", "B", "b"]


def test_atlas_works_in_several_event_loops() -> None:
    async def echo(request: Request) -> object:
        await asyncio.sleep(0)
        return {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}

    atlas = Atlas([Agent("a", model=echo)])

    async def both() -> list[Message]:
        async with asyncio.timeout(TIMEOUT):
            return list(await asyncio.gather(atlas.ask("1"), atlas.ask("2")))

    for _ in range(3):
        assert [message.text for message in asyncio.run(both())] == ["ok", "ok"]
    assert len(atlas.conversation()) == 12


def test_event_loop_of_a_thread_is_closed_although_an_error_of_a_turn_outlives_the_thread() -> None:
    loops, caught = list[asyncio.AbstractEventLoop](), list[Exception]()

    async def model(_: Request) -> str:
        loops.append(asyncio.get_running_loop())
        raise ZeroDivisionError

    def ask() -> None:
        try:
            Agent("a", model=model).run_sync("go")
        except (ProviderError, ZeroDivisionError) as error:
            caught.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    assert len(caught) == 1
    assert loops[0].is_closed()


def test_conversation_is_iterable() -> None:
    conversation = Conversation([user("a"), assistant("b")])
    assert [message.text for message in conversation] == ["a", "b"] and bool(Conversation())


def test_json_of_a_conversation_round_trips() -> None:
    call = ToolCall("1", "weather", {"city": "Lima"})
    messages = [user("Weather?"), assistant(Thinking("hm", "sig"), call), tool_message(ToolResult("1", "ok", "Sunny"))]
    conversation = Conversation(messages, id="ana", metadata={"customer": "Ana"})
    read = Conversation.from_json(conversation.to_json())
    assert (read.id, read.messages, read.metadata) == ("ana", messages, {"customer": "Ana"})
    assert read.to_json() == conversation.to_json()


@pytest.mark.parametrize("data", ["", "[]", b"\xff", '{"id": "a", "messages": [{"role": "robot", "parts": []}]}'])
def test_json_that_is_no_conversation_is_refused(data: str | bytes) -> None:
    with pytest.raises(ConfigError, match="this is not a conversation as `to_json` encodes it"):
        Conversation.from_json(data)


def test_metadata_that_is_not_json_is_named() -> None:
    with pytest.raises(ConfigError, match=r"conversation 'ana' cannot be encoded as JSON: .*object"):
        Conversation(id="ana", metadata={"connection": object()}).to_json()


def test_copy_for_a_worker_process_has_the_messages_and_not_what_is_derived_from_them() -> None:
    conversation = make_conversation()
    assert conversation.index.is_paired
    size = len(pickle.dumps(conversation))
    copied: Conversation = pickle.loads(pickle.dumps(conversation))
    assert (copied.id, copied.messages, copied.metadata) == ("talk", conversation.messages, {"topic": "x"})
    assert copied.index.is_paired and not copied.index.call_ids
    assert len(pickle.dumps(copied)) == size
