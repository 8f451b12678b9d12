"""`ollama/…`, `vllm/…` and `llamacpp/…`: self-hosted servers by model reference, without a key."""

import socket
from typing import Any

import pytest

from atlas_agents import Agent, Atlas, ConfigError, ProviderError, RetryPolicy
from atlas_agents.providers.base import classify_response
from atlas_agents.testing import Environment, Registry, Scripted, says
from model_server import Reply, run_model_server


def registry(**values: Any) -> Registry:
    return Registry(Environment(values, dotenv=None))


def atlas(ref: str, **values: Any) -> Atlas:
    agent = Agent("a", model=ref, retry=RetryPolicy(retries=0))
    return Atlas([agent], registry=registry(**values))


@pytest.mark.parametrize("id", ["ollama", "vllm", "llamacpp"])
async def test_self_hosted_server_needs_no_key(id: str) -> None:
    with run_model_server(lambda asked: Reply(f"{asked.model} says hello")) as server:
        settings = {f"{id.upper()}_BASE_URL": server.url, "OPENAI_API_KEY": "sk-for-openai-only"}
        async with atlas(f"{id}/some-model", **settings) as atlas_with_server:
            assert (await atlas_with_server.ask("hi")).text == "some-model says hello"
    assert "authorization" not in {name.lower() for name in server.requests[0].headers}


async def test_configured_key_is_sent() -> None:
    with run_model_server(lambda asked: Reply("hello")) as server:
        async with atlas("vllm/m", VLLM_BASE_URL=server.url, VLLM_API_KEY="own-key") as atlas_with_server:
            await atlas_with_server.ask("hi")
    headers = {name.lower(): value for name, value in server.requests[0].headers.items()}
    assert headers["authorization"] == "Bearer own-key"


@pytest.mark.parametrize(
    ("id", "start"), [("ollama", "ollama serve"), ("vllm", "vllm serve"), ("llamacpp", "llama-server")]
)
async def test_unreachable_server_names_the_command_to_start(id: str, start: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        async with atlas(f"{id}/m", **{f"{id.upper()}_BASE_URL": address}) as atlas_with_server:
            with pytest.raises(ProviderError) as caught:
                await atlas_with_server.ask("hi")
    assert start in str(caught.value) and address in str(caught.value) and f"{id.upper()}_BASE_URL" in str(caught.value)
    assert caught.value.kind == "network"


async def test_other_server_errors_are_unchanged() -> None:
    with run_model_server(lambda asked: Reply(status=404)) as server:
        async with atlas("ollama/m", OLLAMA_BASE_URL=server.url) as atlas_with_server:
            with pytest.raises(ProviderError, match="HTTP 404"):
                await atlas_with_server.ask("hi")


@pytest.mark.parametrize(("id", "port"), [("ollama", 11434), ("vllm", 8000), ("llamacpp", 8080)])
def test_default_ports(id: str, port: int) -> None:
    provider: Any = registry().provider(id)
    assert provider.base_url == f"http://localhost:{port}/v1"


def test_invalid_address_is_rejected() -> None:
    with pytest.raises(ConfigError, match="OLLAMA_BASE_URL: invalid address"):
        registry(OLLAMA_BASE_URL="localhost:11434").provider("ollama")


def test_server_is_available_once_its_address_is_set() -> None:
    assert registry().available() == ["local"]
    assert sorted(registry(OLLAMA_BASE_URL="http://localhost:1/v1").available()) == ["local", "ollama"]


async def test_custom_provider_can_be_registered() -> None:
    birds = registry(REPLY="Lora!")
    birds.register("parrot", lambda environment: Scripted(says(environment.get("REPLY") or "")))
    async with Atlas([Agent("a", model="parrot/grey")], registry=birds) as atlas_with_server:
        assert (await atlas_with_server.ask("hi")).text == "Lora!"
    with pytest.raises(ConfigError, match="invalid provider id"):
        birds.register("par/rot", lambda environment: Scripted())


def test_output_that_llama_cpp_cannot_parse_is_retried() -> None:
    message = "The model produced output that does not match the expected peg-native format"
    error = classify_response(500, {"error": {"code": 500, "message": message, "type": "server_error"}}, {})
    assert (error.kind, error.retryable) == ("protocol", True)
