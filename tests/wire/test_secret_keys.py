"""The API key of a provider is not in its attributes, its representation, a pickle or the locals of a traceback."""

import copy
import pickle
import traceback
from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from atlas_agents import AnthropicProvider, GeminiProvider, OpenAIProvider, OpenAIResponsesProvider
from atlas_agents.core.errors import BrokenHistory, MissingKey, ProviderError
from atlas_agents.core.messages import Message, ToolCall, assistant, user
from atlas_agents.core.paths import Environment, Secret
from atlas_agents.knowledge.embedding import EndpointEmbedder
from atlas_agents.providers.base import Request, complete
from atlas_agents.providers.http import Timeouts
from atlas_agents.providers.settings import ModelSettings
from fault_server import FaultServer, Script, response

KEY = "sk-kanarien-vogel-7731"
NOTHING = Environment({}, dotenv=None)


def _key() -> str:
    return KEY


MAKERS: dict[str, Callable[[str], Any]] = {
    "openai": lambda url: OpenAIProvider("m", base_url=url, api_key=KEY, environment=NOTHING),
    "openai-variable": lambda url: OpenAIProvider(
        "m", base_url=url, environment=Environment({"OPENAI_API_KEY": KEY}, dotenv=None)
    ),
    "openai-responses": lambda url: OpenAIResponsesProvider("m", base_url=url, api_key=KEY, environment=NOTHING),
    "anthropic": lambda url: AnthropicProvider("m", base_url=url, api_key=KEY, environment=NOTHING),
    "function": lambda url: OpenAIProvider("m", base_url=url, api_key=_key, environment=NOTHING),
    "google": lambda url: GeminiProvider("m", base_url=url, api_key=KEY, environment=NOTHING),
    "google-variable": lambda url: GeminiProvider(
        "m", base_url=url, environment=Environment({"GEMINI_API_KEY": KEY}, dotenv=None)
    ),
    "embeddings": lambda url: EndpointEmbedder("m", base_url=url, key=Secret(KEY)),
}


def _contents(value: object, seen: set[int]) -> list[str]:
    """Return all strings in an object: in its attributes and containers, at any depth."""
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, str | bytes):
        return [value if isinstance(value, str) else value.decode(errors="replace")]
    if isinstance(value, dict):
        items = cast(dict[object, object], value)
        return [text for pair in items.items() for each in pair for text in _contents(each, seen)]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [text for each in cast(tuple[object, ...], value) for text in _contents(each, seen)]
    if type(value).__module__.startswith("atlas_agents") and not isinstance(value, Secret):
        return _contents(getattr(value, "__dict__", {}), seen)
    return []


def test_key_in_an_address_is_not_shown() -> None:
    for address in (f"https://proxy.example/v1?tenant=a&key={KEY}", f"https://ana:{KEY}@proxy.example/v1"):
        shown = repr(OpenAIProvider("m", base_url=address, api_key="other-key-123", environment=NOTHING))
        assert KEY not in shown and "proxy.example/v1" in shown


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_key_is_not_in_the_attributes_of_a_provider(make: Callable[[str], Any]) -> None:
    provider = make("http://127.0.0.1:1/v1")
    shown = [repr(provider), str(provider), f"{provider}", repr(provider.__dict__), *_contents(provider, set())]
    assert len(shown) > 5
    assert [text for text in shown if KEY in text] == []


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_provider_with_a_key_cannot_be_pickled_and_a_copy_shows_nothing(
    make: Callable[[str], Any], copied: Callable[[object], object]
) -> None:
    provider = make("http://127.0.0.1:1/v1")
    if copied is copy.copy:
        assert KEY not in repr(vars(copied(provider)))
    else:
        with pytest.raises(TypeError):
            copied(provider)


def _error(status: int, message: str) -> Script:
    body = msgspec.json.encode({"error": {"message": message}})
    return response(body, status=f"{status} Error", type="application/json")


async def _call(provider: Any) -> None:
    try:
        if isinstance(provider, EndpointEmbedder):
            await provider._request(["hello"])  # without retries
        else:
            await complete(provider, Request((user("Hello"),)))
    finally:
        await provider.close()


def _with_locals(error: BaseException) -> str:
    """Format an error as a tool for error reports does: with local variables, and the causes of the error."""
    texts: list[str] = []
    found: BaseException | None = error
    while found is not None:
        frames = traceback.TracebackException.from_exception(found, capture_locals=True).stack
        texts += [f"{frame.name}: {frame.locals}" for frame in frames if frame.filename != __file__]
        texts += [repr(found), repr(found.args)]
        found = found.__cause__ or found.__context__
    return "\n".join(texts)


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
@pytest.mark.parametrize("answer", ["401", "garbage", "closed", "refused", "invalid"])
async def test_key_is_not_in_the_locals_of_a_traceback(answer: str, make: Callable[[str], Any]) -> None:
    scripts: dict[str, Script] = {
        "401": _error(401, f"wrong key: {KEY}"),
        "garbage": [b"HTTP/9.9 banana\r\n\r\n"],
        "closed": ["close"],
    }
    async with FaultServer(scripts.get(answer, [])) as server:
        target = {"refused": "http://127.0.0.1:1/v1", "invalid": "http://[::1/v1"}.get(answer, server.url)
        with pytest.raises((ProviderError, ValueError)) as caught:
            await _call(make(target))
    assert KEY not in _with_locals(caught.value)


@pytest.mark.parametrize("maker", [OpenAIProvider, AnthropicProvider, GeminiProvider])
@pytest.mark.parametrize("messages", [(user("Hello"),), (assistant(ToolCall("1", "a", {})),)])
async def test_extra_header_is_not_in_the_locals_of_a_traceback(maker: Any, messages: tuple[Message, ...]) -> None:
    settings = ModelSettings(extra_headers={"X-Token": KEY})
    async with FaultServer(_error(401, f"wrong key: {KEY}")) as server:
        provider = maker("m", base_url=server.url, api_key="other", environment=NOTHING)
        with pytest.raises((ProviderError, BrokenHistory)) as caught:
            await complete(provider, Request(messages, settings=settings))
        await provider.close()
    assert KEY not in _with_locals(caught.value)


@pytest.mark.parametrize("maker", [OpenAIProvider, AnthropicProvider, GeminiProvider])
async def test_key_is_not_in_the_locals_of_a_timeout(maker: Any) -> None:
    async with FaultServer(["hold"]) as server:
        timeouts = Timeouts(first_byte=0.05)
        provider = maker("m", base_url=server.url, api_key=KEY, environment=NOTHING, timeouts=timeouts)
        with pytest.raises(ProviderError, match="no data received") as caught:
            await _call(provider)
    assert KEY not in _with_locals(caught.value)


@pytest.mark.parametrize("maker", [OpenAIProvider, AnthropicProvider, GeminiProvider])
def test_invalid_key_is_not_in_the_error(maker: Any) -> None:
    with pytest.raises(MissingKey) as caught:
        maker("m", api_key=f"{KEY}\ninjected: header", environment=NOTHING)
    assert KEY not in _with_locals(caught.value)


def test_password_in_the_address_is_not_shown() -> None:
    provider = OpenAIProvider("m", base_url="http://ana:tiger-77@127.0.0.1:1/v1", environment=NOTHING)
    assert repr(provider) == "OpenAIProvider('m', base_url='http://127.0.0.1:1/v1')"


@pytest.mark.parametrize("key", ["x", "ab", "test"])
async def test_short_key_leaves_the_message_of_a_server_unchanged(key: str) -> None:
    message = "the maximum of tests is about 4"
    async with FaultServer(_error(400, message)) as server:
        provider = OpenAIProvider("m", base_url=server.url, api_key=key, environment=NOTHING)
        with pytest.raises(ProviderError, match=message):
            await _call(provider)
