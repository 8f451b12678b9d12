"""`ollama/…`, `vllm/…` and `llamacpp/…`: servers of one's own by ref, without a key."""

import socket
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, ConfigError, ProviderError, RetryPolicy
from atlas_agents.providers.base import classify_response
from atlas_agents.testing import Environment, Registry, Scripted, says
from model_server import Reply, serving


def registry(**values: Any) -> Registry:
    return Registry(Environment(values, dotenv=None))


def atlas(ref: str, **values: Any) -> Atlas:
    agent = Agent("a", model=ref, retry=RetryPolicy(retries=0))
    return Atlas([agent], registry=registry(**values))


@pytest.mark.parametrize("id", ["ollama", "vllm", "llamacpp"])
async def test_a_server_nearby_is_reached_by_its_ref_and_without_a_key(id: str) -> None:
    with serving(lambda asked: Reply(f"{asked.model} says hello")) as server:
        settings = {f"{id.upper()}_BASE_URL": server.url, "OPENAI_API_KEY": "sk-for-openai-only"}
        async with atlas(f"{id}/some-model", **settings) as house:
            assert (await house.ask("hi")).text == "some-model says hello"
    assert "authorization" not in {name.lower() for name in server.asked[0].headers}


async def test_a_key_of_its_own_is_sent() -> None:
    with serving(lambda asked: Reply("hello")) as server:
        async with atlas("vllm/m", VLLM_BASE_URL=server.url, VLLM_API_KEY="own-key") as house:
            await house.ask("hi")
    headers = {name.lower(): value for name, value in server.asked[0].headers.items()}
    assert headers["authorization"] == "Bearer own-key"


@pytest.mark.parametrize(
    ("id", "start"), [("ollama", "ollama serve"), ("vllm", "vllm serve"), ("llamacpp", "llama-server")]
)
async def test_when_nobody_listens_it_says_what_to_start(id: str, start: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        async with atlas(f"{id}/m", **{f"{id.upper()}_BASE_URL": address}) as house:
            with pytest.raises(ProviderError) as caught:
                await house.ask("hi")
    assert start in str(caught.value) and address in str(caught.value) and f"{id.upper()}_BASE_URL" in str(caught.value)
    assert caught.value.kind == "network"


async def test_another_error_of_such_a_server_stays_what_it_is() -> None:
    with serving(lambda asked: Reply(status=404)) as server:
        async with atlas("ollama/m", OLLAMA_BASE_URL=server.url) as house:
            with pytest.raises(ProviderError, match="HTTP 404"):
                await house.ask("hi")


@pytest.mark.parametrize(("id", "port"), [("ollama", 11434), ("vllm", 8000), ("llamacpp", 8080)])
def test_the_usual_ports_are_known(id: str, port: int) -> None:
    provider: Any = registry().provider(id)
    assert provider.base_url == f"http://localhost:{port}/v1"


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="OLLAMA_BASE_URL: invalid address"):
        registry(OLLAMA_BASE_URL="localhost:11434").provider("ollama")


def test_such_a_server_counts_as_available_once_its_address_is_set() -> None:
    assert registry().available() == ["local"]
    assert sorted(registry(OLLAMA_BASE_URL="http://localhost:1/v1").available()) == ["local", "ollama"]


async def test_a_provider_of_ones_own_can_be_registered() -> None:
    birds = registry(WORDS="Lora!")
    birds.register("parrot", lambda environment: Scripted(says(environment.get("WORDS") or "")))
    async with Atlas([Agent("a", model="parrot/grey")], registry=birds) as house:
        assert (await house.ask("hi")).text == "Lora!"
    with pytest.raises(ConfigError, match="invalid provider id"):
        birds.register("par/rot", lambda environment: Scripted())


def test_a_reply_that_llama_cpp_could_not_read_is_tried_again() -> None:
    words = "The model produced output that does not match the expected peg-native format"
    error = classify_response(500, {"error": {"code": 500, "message": words, "type": "server_error"}}, {})
    assert (error.kind, error.retryable) == ("protocol", True)
