"""Keys that a function returns, and extra fields and headers of requests, against a real server."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from atlas_agents import AnthropicProvider, Balanced, OpenAIProvider
from atlas_agents.core.aio import SYSTEM_CLOCK
from atlas_agents.core.errors import MissingKey, ProviderError
from atlas_agents.core.messages import user
from atlas_agents.core.paths import Environment
from atlas_agents.providers.base import Chunk, Request, TextChunk, complete
from atlas_agents.providers.failover import Failover, RetryPolicy, Route
from atlas_agents.providers.settings import ModelSettings
from fault_server import FaultServer, Script, response

NOTHING = Environment({}, dotenv=None)
FIRST, SECOND = "token-canary-1111-abcdef", "token-canary-2222-abcdef"
ANSWER = msgspec.json.encode({"choices": [{"message": {"content": "Hello."}, "finish_reason": "stop"}]})
GREETING = Request((user("Hi"),))


def _ok() -> Script:
    return response(ANSWER, type="application/json")


def _refused(key: str = "") -> Script:
    body = msgspec.json.encode({"error": {"message": f"expired: {key}", "code": "invalid_api_key"}})
    return response(body, status="401 Unauthorized", type="application/json")


def _provider(server: FaultServer, api_key: Any, **options: Any) -> OpenAIProvider:
    return OpenAIProvider("m", base_url=server.url, api_key=api_key, environment=NOTHING, **options)


def _text(chunks: list[Chunk]) -> str:
    return "".join([chunk.text for chunk in chunks if isinstance(chunk, TextChunk)])


class Tokens:
    """Returns one token after another, and counts the calls."""

    def __init__(self, *tokens: str) -> None:
        self.tokens = list(tokens)
        self.count = 0

    def next(self) -> str:
        self.count += 1
        return self.tokens[min(self.count, len(self.tokens)) - 1]

    async def next_async(self) -> str:
        await asyncio.sleep(0)
        return self.next()


@pytest.mark.parametrize("is_async", [False, True])
async def test_function_is_asked_for_the_key_of_every_request(is_async: bool) -> None:
    tokens = Tokens(FIRST, SECOND)
    async with FaultServer(_ok(), _ok()) as server:
        provider = _provider(server, tokens.next_async if is_async else tokens.next)
        assert tokens.count == 0
        for _ in range(2):
            assert _text(await complete(provider, GREETING)) == "Hello."
        await provider.close()
    assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {FIRST}", f"Bearer {SECOND}"]
    assert FIRST not in repr(vars(provider))


async def test_function_replaces_the_key_of_the_environment() -> None:
    environment = Environment({"OPENAI_API_KEY": SECOND}, dotenv=None)
    async with FaultServer(_ok()) as server:
        provider = OpenAIProvider("m", base_url=server.url, api_key=lambda: FIRST, environment=environment)
        await complete(provider, GREETING)
        await provider.close()
    assert server.requests[0].headers["authorization"] == f"Bearer {FIRST}"
    assert provider.key is None


async def test_expired_key_is_renewed_once() -> None:
    tokens = Tokens(FIRST, SECOND)
    async with FaultServer(_refused(FIRST), _ok()) as server:
        provider = _provider(server, tokens.next)
        assert _text(await complete(provider, GREETING)) == "Hello."
        await provider.close()
    assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {FIRST}", f"Bearer {SECOND}"]
    assert server.requests[0].raw == server.requests[1].raw


async def test_key_that_is_refused_twice_is_an_error_without_any_key() -> None:
    tokens = Tokens(FIRST, SECOND)
    async with FaultServer(_refused(), _refused(f"{FIRST} {SECOND}"), _ok()) as server:
        provider = _provider(server, tokens.next)
        with pytest.raises(ProviderError) as caught:
            await complete(provider, GREETING)
        await provider.close()
    assert (caught.value.kind, len(server.requests)) == ("auth", 2)
    assert "canary" not in str(caught.value)
    assert str(caught.value) == "HTTP 401: expired: [REDACTED] [REDACTED]"


async def test_fixed_key_that_is_refused_is_not_sent_again() -> None:
    async with FaultServer(_refused(), _ok()) as server:
        provider = _provider(server, FIRST)
        with pytest.raises(ProviderError):
            await complete(provider, GREETING)
        await provider.close()
    assert len(server.requests) == 1


class _TransportError(Exception):
    """An error as google-auth raises it."""

    retryable = True


def _raise(error: Exception) -> Callable[[], str]:
    def fetch() -> str:
        raise error

    return fetch


@pytest.mark.parametrize(
    ("fetch", "kind", "message"),
    [
        (_raise(ValueError("no identity")), "auth", "api_key of openai: ValueError: no identity"),
        (_raise(MissingKey("no identity")), "auth", "api_key of openai: MissingKey: no identity"),
        (_raise(ConnectionError("refused")), "network", "api_key of openai: ConnectionError: refused"),
        (_raise(_TransportError("no answer")), "network", "api_key of openai: _TransportError: no answer"),
        (_raise(ProviderError("busy", "overloaded")), "overloaded", "busy"),
        (
            lambda: "",
            "auth",
            "api_key of openai: expected the function to return a key, got a blank or unprintable text",
        ),
        (
            lambda: "a\nb: c",
            "auth",
            "api_key of openai: expected the function to return a key, got a blank or unprintable text",
        ),
        (lambda: None, "auth", "api_key of openai: expected the function to return a key, got a NoneType"),
        (lambda: b"k", "auth", "api_key of openai: expected the function to return a key, got a bytes"),
    ],
)
async def test_function_without_a_key_is_a_clear_error(fetch: Any, kind: str, message: str) -> None:
    async with FaultServer(_ok()) as server:
        provider = _provider(server, fetch)
        with pytest.raises(ProviderError) as caught:
            await complete(provider, GREETING)
        await provider.close()
    assert (caught.value.kind, str(caught.value), server.requests) == (kind, message, [])


async def test_failover_moves_on_from_a_function_without_a_key() -> None:
    async with FaultServer(then=_ok()) as server:
        broken, working = _provider(server, _raise(ValueError("no identity"))), _provider(server, FIRST)
        failover = Failover([Route(broken), Route(working)], RetryPolicy(order="given"))
        assert _text(await complete(failover.for_turn(SYSTEM_CLOCK), GREETING)) == "Hello."
        for provider in (broken, working):
            await provider.close()


async def test_balanced_keys_may_be_functions_at_one_address() -> None:
    async with FaultServer(then=_ok()) as server:
        providers = [_provider(server, Tokens(token).next) for token in (FIRST, SECOND)]
        balanced = Balanced(providers)
        assert len({member.name for member in balanced.members}) == 2
        await asyncio.gather(*[complete(balanced, GREETING) for _ in range(4)])
        await balanced.close()
    used = {request.headers["authorization"] for request in server.requests}
    assert used == {f"Bearer {FIRST}", f"Bearer {SECOND}"}


async def test_first_model_of_a_server_is_found_with_the_current_key() -> None:
    models = response(b'{"data":[{"id":"llama"}]}', type="application/json")
    async with FaultServer(models, _ok()) as server:
        provider = OpenAIProvider(base_url=server.url, api_key=Tokens(FIRST, SECOND).next, environment=NOTHING)
        await complete(provider, GREETING)
        await provider.close()
    assert [request.headers["authorization"] for request in server.requests] == [f"Bearer {FIRST}", f"Bearer {SECOND}"]


@pytest.mark.parametrize(
    ("name", "sent"), [("api-key", {"api-key": FIRST}), ("Authorization", {"authorization": f"Bearer {FIRST}"})]
)
async def test_key_is_sent_in_the_header_that_is_given(name: str, sent: dict[str, str]) -> None:
    async with FaultServer(_ok()) as server:
        provider = AnthropicProvider(
            "m", base_url=server.url, api_key=lambda: FIRST, key_header=name, environment=NOTHING
        )
        with pytest.raises(ProviderError):  # the answer is OpenAI's
            await complete(provider, GREETING)
        await provider.close()
    headers = server.requests[0].headers
    known = ("authorization", "api-key", "x-api-key")
    assert {each: headers[each] for each in known if each in headers} == sent


async def test_extra_fields_and_headers_are_merged_last() -> None:
    settings = ModelSettings(
        temperature=0.5,
        extra_body={"temperature": 0.25, "stream_options": {"chunk_size": 3}, "provider": {"order": ["a"]}},
        extra_headers={"AUTHORIZATION": "Basic c2VjcmV0", "X-Tag": "one"},
    )
    async with FaultServer(_ok()) as server:
        provider = _provider(server, FIRST)
        await complete(provider, msgspec.structs.replace(GREETING, settings=settings))
        await provider.close()
    (received,) = server.requests
    assert received.body["temperature"] == 0.25
    assert received.body["provider"] == {"order": ["a"]}
    assert received.body["stream_options"] == {"include_usage": True, "chunk_size": 3}
    assert (received.body["model"], received.body["stream"]) == ("m", True)
    assert (received.headers["authorization"], received.headers["x-tag"]) == ("Basic c2VjcmV0", "one")


async def test_values_of_extra_headers_are_redacted_from_errors() -> None:
    settings = ModelSettings(extra_headers={"X-Token": FIRST})
    async with FaultServer(_refused(FIRST)) as server:
        provider = _provider(server, SECOND)
        with pytest.raises(ProviderError) as caught:
            await complete(provider, msgspec.structs.replace(GREETING, settings=settings))
        await provider.close()
    assert str(caught.value) == "HTTP 401: expired: [REDACTED]"
