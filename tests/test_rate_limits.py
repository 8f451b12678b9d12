"""Rate limits of keys, balancing over several keys, and cool-downs."""

import asyncio
import random
from collections.abc import AsyncGenerator

import pytest

from atlas_agents import Agent, Atlas, user
from atlas_agents.core.errors import ConfigError, ProviderError
from atlas_agents.core.events import Usage
from atlas_agents.core.paths import Environment
from atlas_agents.providers.base import Capabilities, Chunk, DoneChunk, Request, TextChunk, complete
from atlas_agents.providers.rate_limits import BURST, LocalRateLimiter, RateLimit, parse_rate_limits
from atlas_agents.providers.registry import Balanced, Registry
from atlas_agents.testing import Scripted, VirtualClock, fails, says
from checks import run_ready_tasks
from model_server import ModelRequest, ModelServer, Reply, run_model_server

ASK = Request([user("Hello")])


class Key:
    """A provider with a key that counts its requests and its concurrent requests."""

    def __init__(self, name: str, *answers: ProviderError | None, gate: asyncio.Event | None = None) -> None:
        self.id = "vendor"
        self.base_url = name
        self.capabilities = Capabilities()
        self.request_count = self.busy = self.max_busy = 0
        self._answers = list(answers)
        self._gate = gate

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        self.request_count += 1
        self.busy += 1
        self.max_busy = max(self.max_busy, self.busy)
        try:
            if self._gate is not None:
                await self._gate.wait()
            if self._answers and (error := self._answers.pop(0)) is not None:
                raise error
            yield TextChunk(self.base_url)
            yield DoneChunk(Usage(900, 100))
        finally:
            self.busy -= 1


async def request_count(provider: Balanced, times: int, clock: VirtualClock, seconds: float) -> int:
    """Return how many of `count` requests were answered within some seconds."""
    tasks = [asyncio.create_task(complete(provider, ASK)) for _ in range(times)]
    await clock.advance(seconds)
    done = sum(task.done() and task.exception() is None for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return done


async def test_requests_stay_within_their_rate_limit() -> None:
    clock = VirtualClock()
    provider = Balanced([Key("a")], RateLimit(requests=60), clock=clock)
    assert await request_count(provider, 100, clock, 0) == BURST + 1
    assert await request_count(provider, 100, clock, 10) == 10


async def test_token_limit_counts_real_usage() -> None:
    clock = VirtualClock()
    provider = Balanced([Key("a")], RateLimit(tokens=60_000), clock=clock)
    answered = 0
    for _ in range(60):
        answered += await request_count(provider, 3, clock, 1)
    assert 55 <= answered <= 75  # 1,000 tokens each, 1,000 per second, and a burst of ten


async def test_concurrent_requests_are_limited() -> None:
    gate, clock = asyncio.Event(), VirtualClock()
    keys = [Key("a", gate=gate), Key("b", gate=gate)]
    provider = Balanced(keys, RateLimit(at_once=2), clock=clock)
    tasks = [asyncio.create_task(complete(provider, ASK)) for _ in range(9)]
    await clock.advance(1)
    assert [key.busy for key in keys] == [2, 2]
    gate.set()
    await asyncio.gather(*tasks)
    assert [key.max_busy for key in keys] == [2, 2] and sum(key.request_count for key in keys) == 9


async def test_least_busy_key_is_used() -> None:
    gate = asyncio.Event()
    keys = [Key(name, gate=gate) for name in "abc"]
    tasks = [asyncio.create_task(complete(Balanced(keys), ASK)) for _ in range(1)]
    provider = Balanced(keys, rng=random.Random(3))
    tasks += [asyncio.create_task(complete(provider, ASK)) for _ in range(30)]
    await run_ready_tasks()
    assert sorted(key.request_count for key in keys)[0] >= 10
    gate.set()
    await asyncio.gather(*tasks)


async def test_failed_key_cools_down_while_another_answers() -> None:
    clock = VirtualClock()
    limited = Key("tired", ProviderError("slow down", "rate_limit", retry_after=20))
    well = Key("well")
    provider = Balanced([limited, well], clock=clock, rng=random.Random(1))
    for _ in range(10):
        assert (await complete(provider, ASK))[0] == TextChunk("well")
    assert limited.request_count == 1
    await clock.advance(20)
    for _ in range(10):
        await complete(provider, ASK)
    assert limited.request_count > 1


async def test_identical_keys_cool_down_separately() -> None:
    limited = Scripted(fails(ProviderError("slow down", "rate_limit")), id="vendor")
    well = Scripted(*[says("Well.") for _ in range(9)], id="vendor")
    provider = Balanced([limited, well])
    for _ in range(9):
        assert (await complete(provider, ASK))[0] == TextChunk("Well.")


async def test_request_fails_at_once_if_all_keys_cool_down_for_long() -> None:
    spent = [Key(name, ProviderError("no money", "quota")) for name in "ab"]
    provider = Balanced(spent, clock=VirtualClock())
    with pytest.raises(ProviderError, match="no money"):
        await complete(provider, ASK)
    with pytest.raises(ProviderError, match="all 2 keys of vendor are rate-limited or cooling down") as caught:
        await complete(provider, ASK)
    assert (caught.value.kind, caught.value.retry_after) == ("rate_limit", 600)
    assert [key.request_count for key in spent] == [1, 1]


async def test_bad_request_is_not_tried_with_every_key() -> None:
    keys = [Key(name, ProviderError("what is this", "bad_request")) for name in "ab"]
    with pytest.raises(ProviderError, match="what is this"):
        await complete(Balanced(keys), ASK)
    assert sum(key.request_count for key in keys) == 1


def test_keys_in_one_variable_are_balanced_and_redacted() -> None:
    def respond(request: ModelRequest) -> Reply:
        return Reply(status=429) if request.headers["authorization"].endswith("two") else Reply("Hello.")

    async def run_turns(server: ModelServer) -> None:
        values = {"OPENAI_API_KEY": "key-number-one, key-number-two", "OPENAI_BASE_URL": server.url}
        registry = Registry(Environment(values, dotenv=None))
        async with Atlas([Agent("a", model="openai/some")], registry=registry) as atlas:
            for number in range(8):
                assert (await atlas.ask("Hi", session=str(number))).text == "Hello."
            assert "key-number-two" not in atlas.hide("it is key-number-two")
        used = [request.headers["authorization"][-3:] for request in server.requests]
        assert used.count("one") == 8 and used.count("two") == 1

    with run_model_server(respond) as server:
        asyncio.run(run_turns(server))


def test_limit_of_openai_covers_its_responses_api() -> None:
    def open_registry(server: ModelServer, **limits: RateLimit) -> Registry:
        values = {"OPENAI_API_KEY": "key-number-one", "OPENAI_BASE_URL": server.url}
        return Registry(
            Environment(values, dotenv=None),
            rate_limits={name.replace("_", "-"): limit for name, limit in limits.items()},
        )

    async def ask_both(server: ModelServer) -> None:
        named = Request([user("Hello")], model="some")
        shared = open_registry(server, openai=RateLimit(requests=60))
        with pytest.raises(ProviderError, match="401"):
            await complete(shared.provider("openai"), named)
        with pytest.raises(ProviderError, match="all 1 keys of openai-responses are rate-limited or cooling down"):
            await complete(shared.provider("openai-responses"), named)
        own = open_registry(server, openai=RateLimit(requests=60), openai_responses=RateLimit(requests=30))
        for id in ("openai", "openai-responses"):
            with pytest.raises(ProviderError, match="401"):
                await complete(own.provider(id), named)

    with run_model_server(lambda _: Reply(status=401)) as server:
        asyncio.run(ask_both(server))


@pytest.mark.parametrize(
    ("values", "pairs"),
    [
        ({"OPENAI_API_KEY": "k"}, [("k", "https://api.openai.com/v1")]),
        (
            {"OPENAI_API_KEY": "k,l", "OPENAI_BASE_URL": "http://a,http://b"},
            [("k", "http://a"), ("l", "http://b")],
        ),
        ({"OPENAI_BASE_URL": "http://a,http://b"}, [(None, "http://a"), (None, "http://b")]),
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://a,http://b"}, [("k", "http://a"), ("k", "http://b")]),
    ],
)
def test_keys_and_addresses_are_paired(values: dict[str, str], pairs: list[tuple[str | None, str]]) -> None:
    provider = Registry(Environment(values, dotenv=None)).provider("openai")
    members = [member.provider for member in provider.members] if isinstance(provider, Balanced) else [provider]
    found = [
        (key.reveal() if (key := getattr(each, "key", None)) else None, getattr(each, "base_url", ""))
        for each in members
    ]
    assert found == pairs


def test_mismatching_keys_and_addresses_are_rejected() -> None:
    values = {"OPENAI_API_KEY": "k,l", "OPENAI_BASE_URL": "http://a,http://b,http://c"}
    with pytest.raises(ConfigError, match="OPENAI_API_KEY has 2 keys but OPENAI_BASE_URL has 3 addresses"):
        Registry(Environment(values, dotenv=None)).provider("openai")


def test_rate_limits_are_parsed_one_per_line() -> None:
    found = parse_rate_limits(("openai requests=500 tokens=200_000 at_once=8", "anthropic at_once=2"))
    assert found == {"openai": RateLimit(500, 200_000, 8), "anthropic": RateLimit(at_once=2)}


@pytest.mark.parametrize("line", ["openai", "openai requests=many", "openai 5", "openai requests=5 requests=6"])
def test_invalid_rate_limit_error_shows_an_example(line: str) -> None:
    with pytest.raises(ConfigError, match="for example 'openai requests=500"):
        parse_rate_limits((line,))
    with pytest.raises(ConfigError, match="at least 1"):
        parse_rate_limits(("openai requests=0",))


async def test_rate_limiter_returns_unused_tokens() -> None:
    clock = VirtualClock()
    limiter, limit = LocalRateLimiter(clock), RateLimit(tokens=60)
    assert await limiter.acquire("k", limit, 100) == 0
    assert await limiter.acquire("k", limit, 1) == pytest.approx(90)
    limiter.settle("k", limit, -95)
    assert await limiter.acquire("k", limit, 1) == 0
