"""Failover: healthy providers are chosen, failed ones cool down and return."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from itertools import pairwise
from typing import Any

import pytest

from atlas_agents import (
    Agent,
    Atlas,
    Capabilities,
    ConfigError,
    DoneChunk,
    ProviderError,
    Request,
    RetryPolicy,
    Usage,
    assistant,
    user,
)
from atlas_agents.providers.failover import Failover, Route
from atlas_agents.testing import Scripted, VirtualClock, fails, in_memory_atlas, says
from checks import TIMEOUT, collect_events, summarize_events

GIVEN = RetryPolicy(order="given", retries=0)


class Model:
    """A model that answers with its name, or raises its `error`."""

    def __init__(self, name: str, error: ProviderError | None = None) -> None:
        self.name = name
        self.error = error
        self.calls_made = 0
        self.__name__ = name

    async def __call__(self, request: Request) -> Any:
        self.calls_made += 1
        if self.error is not None:
            raise self.error
        return {"choices": [{"message": {"content": self.name}, "finish_reason": "stop"}]}


def error(kind: Any = "server", **details: Any) -> ProviderError:
    return ProviderError(f"{kind}!", kind, **details)


def make_atlas(*models: Any, retry: RetryPolicy = GIVEN, clock: VirtualClock | None = None) -> Atlas:
    return Atlas([Agent("a", providers=models, retry=retry)], clock=clock or VirtualClock())


async def answered_by(atlas: Atlas, clock: VirtualClock, seconds: float = 600) -> str:
    """Return the answer while virtual time advances."""
    async with asyncio.timeout(TIMEOUT):
        stream = atlas.send("hi")
        await clock.advance(seconds)
        return (await stream.reply()).text


# Which one


async def test_first_provider_answers_in_the_given_order() -> None:
    one, two = Model("one"), Model("two")
    async with make_atlas(one, two) as atlas:
        assert [(await atlas.ask("hi")).text for _ in range(5)] == ["one"] * 5
    assert two.calls_made == 0


async def test_random_order_uses_all_healthy_providers() -> None:
    models = [Model("one"), Model("two"), Model("three")]
    async with make_atlas(*models, retry=RetryPolicy(retries=0)) as atlas:
        counts = Counter([(await atlas.ask("hi")).text for _ in range(300)])
    assert set(counts) == {"one", "two", "three"}
    assert min(counts.values()) > 50


async def test_random_order_is_the_default() -> None:
    assert RetryPolicy().order == "random"


async def test_reply_names_its_provider() -> None:
    async with make_atlas(Model("one", error()), Model("two")) as atlas:
        assert (await atlas.ask("hi")).metadata["provider"] == "two"


# What moves on


@pytest.mark.parametrize(
    "kind",
    [
        "auth",
        "quota",
        "rate_limit",
        "overloaded",
        "server",
        "network",
        "timeout",
        "incomplete",
        "empty_response",
        "protocol",
        "model_not_found",
    ],
)
async def test_failover_errors_move_to_the_next_provider(kind: Any) -> None:
    one, two = Model("one", error(kind)), Model("two")
    async with make_atlas(one, two) as atlas:
        assert (await atlas.ask("hi")).text == "two"
    assert (one.calls_made, two.calls_made) == (1, 1)


class StatusError(Exception):
    """An error like those of SDKs."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status_code = status


@pytest.mark.parametrize("status", [400, 422])
async def test_bad_request_is_not_sent_to_other_providers(status: int) -> None:
    two = Model("two")

    async def bad(request: Request) -> Any:
        raise StatusError(status)

    async with make_atlas(bad, two, two) as atlas:
        with pytest.raises(ProviderError) as caught:
            await atlas.ask("hi")
    assert (caught.value.kind, caught.value.status) == ("bad_request", status)
    assert two.calls_made == 0


async def test_bad_request_is_not_retried() -> None:
    one = Model("one", error("bad_request"))
    async with make_atlas(one, retry=RetryPolicy(retries=5)) as atlas:
        with pytest.raises(ProviderError, match="bad_request!"):
            await atlas.ask("hi")
    assert one.calls_made == 1


async def test_history_that_is_too_long_moves_on_without_a_cool_down() -> None:
    one, two = Model("one", error("context_length")), Model("two")
    async with make_atlas(one, two) as atlas:
        assert (await atlas.ask("hi" * 2000)).text == "two"
        one.error = None
        assert (await atlas.ask("hi", session="other")).text == "one"


async def test_error_names_every_failed_provider() -> None:
    async with make_atlas(Model("one", error("network")), Model("two", error("server"))) as atlas:
        stream = atlas.send("hi")
        events = await collect_events(stream)
        with pytest.raises(ProviderError, match="no provider answered: one: network!; two: server!"):
            await stream.reply()
        assert [event[0] for event in summarize_events(events)][-2:] == ["stream:end", "error"]
        assert [message.text for message in atlas.conversation().messages] == ["hi"]


async def test_other_exceptions_are_not_hidden() -> None:
    async with make_atlas(Scripted(), Model("two")) as atlas:
        with pytest.raises(Exception, match="the scripted model has 0 replies and was asked 1 times"):
            await atlas.ask("hi")


# Cooling down


async def test_failed_provider_cools_down_and_returns() -> None:
    clock, one, two = VirtualClock(), Model("one", error()), Model("two")
    async with make_atlas(one, two, clock=clock) as atlas:
        assert (await atlas.ask("hi")).text == "two"
        one.error = None
        await clock.advance(14.9)
        assert (await atlas.ask("hi")).text == "two"
        assert one.calls_made == 1
        await clock.advance(0.2)
        assert (await atlas.ask("hi")).text == "one"


async def test_repeated_failure_prolongs_the_cooldown() -> None:
    clock, one, two = VirtualClock(), Model("one", error()), Model("two")
    delays: list[float] = []
    async with make_atlas(one, two, clock=clock) as atlas:
        for _ in range(6):
            await atlas.ask("hi")
            tries, since = one.calls_made, clock.monotonic()
            while one.calls_made == tries:
                await clock.advance(5)
                await atlas.ask("hi")
            delays.append(clock.monotonic() - since)
    assert delays == [15, 30, 60, 120, 240, 240]


async def test_answer_resets_the_cooldown() -> None:
    clock, one, two = VirtualClock(), Model("one", error()), Model("two")
    async with make_atlas(one, two, clock=clock) as atlas:
        await atlas.ask("hi")
        await clock.advance(15)
        one.error = None
        assert (await atlas.ask("hi")).text == "one"
        one.error = error()
        assert (await atlas.ask("hi")).text == "two"
        await clock.advance(15)
        one.error = None
        assert (await atlas.ask("hi")).text == "one"


@pytest.mark.parametrize("kind", ["auth", "quota"])
async def test_auth_and_quota_errors_cool_down_for_long(kind: Any) -> None:
    clock, one, two = VirtualClock(), Model("one", error(kind)), Model("two")
    async with make_atlas(one, two, clock=clock) as atlas:
        await atlas.ask("hi")
        await clock.advance(599)
        await atlas.ask("hi")
        assert one.calls_made == 1
        await clock.advance(2)
        await atlas.ask("hi")
        assert one.calls_made == 2


async def test_provider_whose_cooldown_ends_first_is_used_if_none_is_healthy() -> None:
    clock, one, two = VirtualClock(), Model("one", error("auth")), Model("two", error("server"))
    async with make_atlas(one, two, clock=clock) as atlas:
        with pytest.raises(ProviderError):
            await atlas.ask("hi")
        two.error = None
        assert (await atlas.ask("hi")).text == "two"
        assert one.calls_made == 1


async def test_single_provider_is_called_during_its_cooldown() -> None:
    one = Model("one", error())
    async with make_atlas(one) as atlas:
        with pytest.raises(ProviderError):
            await atlas.ask("hi")
        one.error = None
        assert (await atlas.ask("hi")).text == "one"


async def test_cooldown_is_shared_by_the_turns_of_one_agent() -> None:
    clock, one, two = VirtualClock(), Model("one", error()), Model("two")
    mine, other = Agent("mine", providers=[one, two], retry=GIVEN), Agent("other", providers=[one, two], retry=GIVEN)
    async with Atlas([mine, other], clock=clock) as atlas:
        await atlas.ask("hi", session="a")
        await atlas.ask("hi", session="b")
        assert one.calls_made == 1
        await atlas.ask("hi", agent_id="other")
        assert one.calls_made == 2


# Trying again


async def test_single_provider_is_retried_with_backoff() -> None:
    clock, moments = VirtualClock(), list[float]()

    async def flaky(request: Request) -> Any:
        moments.append(clock.monotonic())
        raise error("server")

    async with make_atlas(flaky, retry=RetryPolicy(retries=3, backoff=1), clock=clock) as atlas:
        stream = atlas.send("hi")
        await clock.advance(100)
        with pytest.raises(ProviderError, match="server!"):
            await stream.reply()
    delays = [later - earlier for earlier, later in pairwise(moments)]
    assert len(delays) == 3
    assert all(0.75 * wait <= delay <= 1.25 * wait for delay, wait in zip(delays, (1, 2, 4), strict=True))


async def test_retries_come_before_the_next_provider() -> None:
    clock, one, two = VirtualClock(), Model("one", error("network")), Model("two")
    async with make_atlas(one, two, retry=RetryPolicy(order="given", retries=2), clock=clock) as atlas:
        assert await answered_by(atlas, clock) == "two"
    assert (one.calls_made, two.calls_made) == (3, 1)


@pytest.mark.parametrize("kind", ["auth", "quota"])
async def test_permanent_error_is_not_retried(kind: Any) -> None:
    one, two = Model("one", error(kind)), Model("two")
    async with make_atlas(one, two, retry=RetryPolicy(order="given", retries=5)) as atlas:
        assert (await atlas.ask("hi")).text == "two"
    assert one.calls_made == 1


async def test_retry_after_is_honoured() -> None:
    clock, moments = VirtualClock(), list[float]()

    async def busy(request: Request) -> Any:
        moments.append(clock.monotonic())
        if len(moments) == 1:
            raise error("rate_limit", retry_after=20)
        return {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}

    async with make_atlas(busy, retry=RetryPolicy(retries=1), clock=clock) as atlas:
        assert await answered_by(atlas, clock, 20) == "ok"
    assert moments == [0, 20]


async def test_long_retry_after_becomes_a_cooldown() -> None:
    clock = VirtualClock()
    one, two = Model("one", error("rate_limit", retry_after=100)), Model("two")
    async with make_atlas(one, two, retry=RetryPolicy(order="given", retries=2), clock=clock) as atlas:
        assert (await atlas.ask("hi")).text == "two"
        one.error = None
        await clock.advance(99)
        assert (await atlas.ask("hi")).text == "two"
        await clock.advance(2)
        assert (await atlas.ask("hi")).text == "one"


async def test_cooldown_is_bounded() -> None:
    clock = VirtualClock()
    one, two = Model("one", error("rate_limit", retry_after=float("inf"))), Model("two")
    async with make_atlas(one, two, clock=clock) as atlas:
        assert (await atlas.ask("hi")).text == "two"
        one.error = None
        await clock.advance(3601)
        assert (await atlas.ask("hi")).text == "one"


# One budget per turn


async def test_retry_budget_covers_all_providers_of_a_turn() -> None:
    clock = VirtualClock()
    models = [Model(name, error("network")) for name in ("one", "two", "three", "four")]
    retry = RetryPolicy(order="given", retries=9, failures=5, backoff=0.001)
    async with make_atlas(*models, retry=retry, clock=clock) as atlas:
        stream = atlas.send("hi")
        await clock.advance(100)
        with pytest.raises(ProviderError, match="the turn's retry budget is used up: network!"):
            await stream.reply()
        assert sum(model.calls_made for model in models) == 5
        stream = atlas.send("again")  # the next turn has its own
        await clock.advance(100)
        with pytest.raises(ProviderError):
            await stream.reply()
    assert sum(model.calls_made for model in models) == 10


async def test_retry_budget_is_shared_by_the_rounds_of_a_turn() -> None:
    async def look() -> str:
        return "seen"

    clock, calls_made = VirtualClock(), list[int]()
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    tools = {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}

    async def fails_every_other_time(request: Request) -> Any:
        calls_made.append(1)
        if len(calls_made) % 2:
            raise error("network")
        return tools

    agent = Agent("a", model=fails_every_other_time, tools=[look], retry=RetryPolicy(failures=3))
    async with Atlas([agent], clock=clock) as atlas:
        stream = atlas.send("hi")
        await clock.advance(100)
        with pytest.raises(ProviderError):
            await stream.reply()
    assert len(calls_made) == 5  # fails, answers, fails, answers, fails


# Text that was already streamed


async def test_text_of_a_failed_attempt_is_withdrawn_and_never_joined() -> None:
    one = Scripted(says("Half a sentence ") + fails(error("network")), id="one")
    two = Scripted(says("from another model."), id="two")
    async with make_atlas(one, two) as atlas:
        stream = atlas.send("hi")
        events = await collect_events(stream)
        assert (await stream.reply()).text == stream.text == "from another model."
    words: list[str] = []
    for event in events:
        if event.type == "stream:reset":
            words.clear()
        elif event.type == "stream:chunk":
            words.append(event.text)
    assert "".join(words) == "from another model."


async def test_failure_before_the_first_chunk_emits_no_reset() -> None:
    async with make_atlas(Model("one", error()), Model("two")) as atlas:
        assert "stream:reset" not in [event.type for event in await collect_events(atlas.send("hi"))]


@pytest.mark.parametrize(("policy", "text"), [("final", "I won't."), ("failover", "I will.")])
async def test_refusal_is_final_unless_configured(policy: Any, text: str) -> None:
    one, two = Scripted(says("I won't.", stop="refusal"), id="one"), Scripted(says("I will."), id="two")
    async with make_atlas(one, two, retry=RetryPolicy(order="given", on_refusal=policy)) as atlas:
        reply = await atlas.ask("hi")
    assert reply.text == text
    assert reply.metadata.get("refused") is (True if policy == "final" else None)


def test_agent_requires_a_provider() -> None:
    with pytest.raises(ConfigError, match="providers=… is empty"):
        Agent("a", providers=[])


async def test_each_route_requests_its_own_model() -> None:
    one, two = Scripted(fails(error()), says("1")), Scripted(says("2"))
    agents = [Agent("x", provider=one, model="small", retry=GIVEN), Agent("y", provider=two, model="large")]
    async with Atlas(agents) as atlas:
        with pytest.raises(ProviderError):
            await atlas.ask("hi", agent_id="x")
        await atlas.ask("hi", agent_id="y")
    assert [one.requests[0].model, two.requests[0].model] == ["small", "large"]


async def test_default_policy_retries_a_provider_twice() -> None:
    clock = VirtualClock()
    model = Scripted(fails(error()), fails(error()), says("at last"))
    async with in_memory_atlas(model, clock=clock) as atlas:
        assert await answered_by(atlas, clock) == "at last"


class CountingModel:
    """A model that counts 4,000 tokens in each request."""

    id = "counting"
    capabilities = Capabilities()

    async def stream(self, request: Request) -> AsyncGenerator[DoneChunk]:
        yield DoneChunk(Usage(4000, 1))


async def test_tokens_of_each_request_are_estimated_from_its_own_messages() -> None:
    first = [user("x" * 5000), assistant("y" * 4000), user("z" * 3000)]
    requests = [Request(messages) for messages in (first, [*first, assistant("a"), user("b" * 9000)], first[1:])]
    one_turn, turns = (Failover([Route(CountingModel())]) for _ in range(2))
    limits = [pool.limits[0] for pool in (one_turn, turns)]
    turn = one_turn.for_turn(VirtualClock())
    for request in requests:
        for provider in (turn, turns.for_turn(VirtualClock())):
            assert [type(chunk) async for chunk in provider.stream(request)] == [DoneChunk]
        assert limits[0].within(100_000) == limits[1].within(100_000) != 100_000 * 7 / 8
