"""Long conversations: a session that exceeds the model's context window keeps answering."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, OpenAIProvider, ProviderError, RetryPolicy, assistant, user
from atlas_agents.core.messages import Conversation
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import Environment
from model_server import ModelRequest, ModelServer, Reply, run_model_server

GIVEN = RetryPolicy(order="given", retries=0)
PLAIN = "Your input exceeds the context window of this model. Please adjust your input and try again."
WITH_NUMBERS = "This model's maximum context length is {limit} tokens. However, you requested {size} tokens."


def size_of(request: ModelRequest) -> int:
    """Return the characters of the conversation."""
    return len(json.dumps(request.body["messages"]))


@contextmanager
def model_with_window(window: int, error: str = PLAIN, answer: str = "Fine.") -> Generator[tuple[ModelServer, Any]]:
    """Run a model that refuses conversations of more characters than this; yields its server and its provider."""

    def respond(request: ModelRequest) -> Reply:
        size = size_of(request)
        if size > window:
            return Reply(error.format(limit=window // 4, size=size // 4), status=400)
        return Reply(answer)

    with run_model_server(respond) as server:
        environment = Environment({})
        yield server, OpenAIProvider("rules-1", base_url=server.url, api_key="key", environment=environment)


def refused(server: ModelServer, window: int) -> list[int]:
    """Return the numbers of the requests that were larger than the window."""
    return [number for number, request in enumerate(server.requests) if size_of(request) > window]


def past(turns: int, size: int = 500) -> list[Any]:
    return [each for n in range(turns) for each in (user(f"q{n} " + "x" * size), assistant(f"a{n} " + "y" * size))]


# A session that exceeds the window


@pytest.mark.parametrize("error", [PLAIN, WITH_NUMBERS])
async def test_session_of_many_times_the_window_is_answered(error: str) -> None:
    with model_with_window(6000, error) as (server, model):
        async with Atlas([Agent("a", model=model)]) as atlas:
            long = Conversation(past(60))
            assert (await atlas.ask("and now?", session=long)).text == "Fine."
            assert len(refused(server, 6000)) <= 5
            before = len(server.requests)
            for n in range(5):
                assert (await atlas.ask(f"next {n}", session=long)).text == "Fine."
    assert len(server.requests) == before + 5
    assert size_of(server.requests[-1]) > 1500
    assert len(long) == 120 + 12


async def test_limit_with_numbers_is_learned_from_one_refusal() -> None:
    with model_with_window(6000, WITH_NUMBERS) as (server, model):
        async with Atlas([Agent("a", model=model)]) as atlas:
            await atlas.ask("and now?", session=Conversation(past(60)))
    assert refused(server, 6000) == [0]
    assert size_of(server.requests[1]) > 4000


async def test_limit_is_shared_by_all_sessions_and_agents_of_a_model() -> None:
    with model_with_window(6000) as (server, model):
        async with Atlas([Agent("a", model=model), Agent("b", model=model)]) as atlas:
            await atlas.ask("now?", session=Conversation(past(60)))
            before = len(server.requests)
            await atlas.ask("now?", session=Conversation(past(60)), agent_id="b")
    assert len(server.requests) == before + 1


async def test_stored_session_of_many_times_the_window_is_answered_after_a_restart(tmp_path: Path) -> None:
    with model_with_window(6000, answer="y" * 400) as (server, model):
        for _ in range(2):
            store = SqliteStore(tmp_path / "a.db")
            await store.open()
            async with Atlas([Agent("a", model=model)], store=store) as atlas:
                for n in range(20):
                    await atlas.ask(f"q{n} " + "x" * 400, session="s")
            await store.close()
    assert len(server.requests) == 40 + len(refused(server, 6000))
    assert len(refused(server, 6000)) <= 2


async def test_message_larger_than_the_window_is_a_clear_error_and_the_session_goes_on() -> None:
    with model_with_window(6000) as (server, model):
        async with Atlas([Agent("a", model=model)]) as atlas:
            conversation = Conversation(past(4))
            with pytest.raises(ProviderError, match=r"too long for the model.*shorter message") as failure:
                await atlas.ask("x" * 50_000, session=conversation)
            assert failure.value.kind == "context_length"
            assert (await atlas.ask("go on", session=conversation)).text == "Fine."
    assert "go on" in str(server.requests[-1].body) and "q3" in str(server.requests[-1].body)


async def test_tool_result_larger_than_the_window_is_shortened() -> None:
    def read() -> str:
        return "start " + "z" * 100_000 + " end"

    def respond(request: ModelRequest) -> Reply:
        if size_of(request) > 6000:
            return Reply(PLAIN, status=400)
        return Reply("Read.") if request.results else Reply(calls=(("read", {}),))

    with run_model_server(respond) as server:
        model = OpenAIProvider("rules-1", base_url=server.url, api_key="key", environment=Environment({}))
        async with Atlas([Agent("a", model=model, tools=[read])]) as atlas:
            conversation = Conversation()
            assert (await atlas.ask("Read it.", session=conversation)).text == "Read."
            assert (await atlas.ask("Again?", session=conversation)).text == "Read."
    (shown,) = server.requests[-2].results or server.requests[-1].results
    assert shown.startswith("start ") and shown.endswith(" end") and "characters omitted" in shown
    stored = next(each for each in conversation.messages if each.tool_results)
    assert len(stored.tool_results[0].result) == 100_010


# Several models


async def test_conversation_too_long_for_one_model_moves_on_to_the_next() -> None:
    with model_with_window(6000) as (small, first), model_with_window(100_000, answer="Large.") as (_, second):
        async with Atlas([Agent("a", providers=[first, second], retry=GIVEN)]) as atlas:
            for _ in range(3):
                reply = await atlas.ask("now?", session=Conversation(past(40)))
                assert reply.text == "Large."
            assert (await atlas.ask("short")).text == "Fine."
    assert len(refused(small, 6000)) == 1


async def test_conversation_too_long_for_every_model_is_shortened() -> None:
    with model_with_window(3000) as (small, first), model_with_window(6000, answer="Large.") as (large, second):
        async with Atlas([Agent("a", providers=[first, second], retry=GIVEN)]) as atlas:
            reply = await atlas.ask("now?", session=Conversation(past(40)))
            assert reply.text == "Large."
            before = len(small.requests) + len(large.requests)
            await atlas.ask("now?", session=Conversation(past(40)))
    assert len(small.requests) + len(large.requests) == before + 1


async def test_model_with_the_small_window_answers_if_the_large_one_is_down() -> None:
    def down(request: ModelRequest) -> Reply:
        return Reply("down", status=500)

    with model_with_window(6000) as (_, first), run_model_server(down) as server:
        second = OpenAIProvider("rules-2", base_url=server.url, api_key="key", environment=Environment({}))
        async with Atlas([Agent("a", providers=[first, second], retry=GIVEN)]) as atlas:
            assert (await atlas.ask("now?", session=Conversation(past(40)))).text == "Fine."
