"""Clouds that serve the wires of the vendors: other addresses, credentials that expire, and names of their own."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from atlas_agents import Agent, AnthropicProvider, Atlas, OpenAIProvider, tool
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Environment
from atlas_agents.providers.base import Provider
from vendors.anthropic import NEW_VERSION, OLD_VERSION, AnthropicDouble
from vendors.common import KEY, Answer, VendorRequest, require
from vendors.openai_chat import OpenAIChatDouble
from vendors.openai_responses import OpenAIResponsesDouble

NOTHING = Environment({}, dotenv=None)
TOKENS = ("token-canary-1111-abcdef", "token-canary-2222-abcdef")


def _bearer(request: VendorRequest) -> str:
    return request.headers.get("authorization", "").removeprefix("Bearer ")


class Identity:
    """A credential of a cloud: each token is accepted until the next one is issued."""

    def __init__(self) -> None:
        self.issued = 0

    async def token(self) -> str:
        await asyncio.sleep(0)
        self.issued += 1
        return TOKENS[min(self.issued, len(TOKENS)) - 1]


def _check_azure(request: VendorRequest) -> VendorRequest:
    """Check what Azure OpenAI v1 checks, and return the request as OpenAI gets it.

    There is no `api-version`, the key is in `api-key` or a bearer token, and models are deployments:
    learn.microsoft.com/azure/foundry/openai/api-version-lifecycle
    """
    require(request.path.startswith("/openai/v1/"), "Resource not found", status=404, code="404")
    require("api-version" not in request.query, "api-version is not allowed on v1", code="BadRequest")
    key = request.headers.get("api-key") or _bearer(request)
    require(key in (KEY, TOKENS[1]), f"Access denied due to invalid credentials: {key}", status=401, code="401")
    require(request.body["model"] == "our-deployment", "DeploymentNotFound", status=404, code="DeploymentNotFound")
    body = json.dumps({**request.body, "model": "gpt-5.6"}).encode()
    return replace(request, headers={**request.headers, "authorization": f"Bearer {KEY}"}, raw=body)


class AzureDouble(OpenAIChatDouble):
    """Chat completions of Azure OpenAI."""

    def check(self, request: VendorRequest) -> None:
        super().check(_check_azure(request))


class AzureResponsesDouble(OpenAIResponsesDouble):
    """The Responses API of Azure OpenAI."""

    def check(self, request: VendorRequest) -> None:
        super().check(_check_azure(request))

    def encode_stream(self, request: VendorRequest, answer: Answer) -> list[bytes]:
        return super().encode_stream(_check_azure(request), answer)


class FoundryDouble(AnthropicDouble):
    """Claude on Foundry: `x-api-key` or a bearer token of Entra; no betas of the first party.

    anthropic/lib/foundry.py of the SDK `anthropic` 2.8.
    """

    def check(self, request: VendorRequest) -> None:
        require(request.path == "/anthropic/v1/messages", "Not found", status=404, type="not_found_error")
        known = request.headers.get("x-api-key") == KEY or _bearer(request) == TOKENS[1]
        require(known, "invalid credentials", status=401, type="authentication_error")
        super().check(replace(request, path="/v1/messages"))


class MantleDouble(AnthropicDouble):
    """Claude on Bedrock Mantle: a bearer key only, and names with the vendor before them.

    anthropic/lib/bedrock/_mantle.py of the SDK `anthropic` 2.8.
    """

    def check(self, request: VendorRequest) -> None:
        require(request.path == "/anthropic/v1/messages", "Not found", status=404, type="not_found_error")
        require(_bearer(request) == KEY, "invalid credentials", status=401, type="authentication_error")
        require("x-api-key" not in request.headers, "x-api-key is not allowed", type="invalid_request_error")
        name = request.body["model"]
        require(name.startswith("anthropic."), f"model: {name}", status=404, type="not_found_error")
        body = {**request.body, "model": name.removeprefix("anthropic.")}
        super().check(replace(request, path="/v1/messages", raw=json.dumps(body).encode()))


class VertexDouble(AnthropicDouble):
    """Claude on Vertex AI: the model is in the path, the version in the body, and the key is an access token.

    anthropic/lib/vertex/_client.py of the SDK `anthropic` 2.8; docs.anthropic.com/en/api/claude-on-vertex-ai
    """

    root = "/v1/projects/shop/locations/global/publishers/anthropic/models/"

    def check(self, request: VendorRequest) -> None:
        require(request.path.startswith(self.root), "Not found", status=404, type="not_found_error")
        require(request.path.endswith(":streamRawPredict"), "Not found", status=404, type="not_found_error")
        require(_bearer(request) == TOKENS[1], "ACCESS_TOKEN_EXPIRED", status=401, type="authentication_error")
        require("model" not in request.body, "model: Extra inputs are not permitted", type="invalid_request_error")
        version = request.body.get("anthropic_version")
        require(version in ("vertex-2023-10-16", NEW_VERSION), "anthropic_version: Field required")
        super().check(self._as_messages(request, NEW_VERSION if version == NEW_VERSION else OLD_VERSION))

    def encode_stream(self, request: VendorRequest, answer: Answer) -> list[bytes]:
        return super().encode_stream(self._as_messages(request, OLD_VERSION), answer)

    def _as_messages(self, request: VendorRequest, version: str) -> VendorRequest:
        model = request.path.removeprefix(self.root).removesuffix(":streamRawPredict").partition("@")[0]
        body = {name: value for name, value in request.body.items() if name != "anthropic_version"}
        raw = json.dumps({**body, "model": model}).encode()
        return replace(request, path="/v1/messages", headers={**request.headers, "anthropic-version": version}, raw=raw)


@asynccontextmanager
async def _ask(provider: Provider, **agent: Any) -> AsyncGenerator[Atlas]:
    async with Atlas(agents=[Agent("assistant", model=provider, **agent)]) as atlas:
        yield atlas


@pytest.mark.parametrize("header", [None, "api-key"])
async def test_azure_takes_a_key(header: str | None) -> None:
    async with AzureDouble(Answer("Hello.")) as azure:
        provider = OpenAIProvider(
            "our-deployment",
            base_url=f"{azure.url}/openai/v1/",
            api_key=KEY,
            key_header=header,
            profile="gpt-5.6",
            environment=NOTHING,
        )
        async with _ask(provider, max_tokens=500, temperature=0.3) as atlas:
            assert (await atlas.ask("Hi")).text == "Hello."
    assert (azure.refusals, azure.bodies[0]["max_completion_tokens"]) == ([], 500)


async def test_azure_token_is_renewed_when_it_expires() -> None:
    identity = Identity()
    async with AzureDouble(Answer("Hello."), Answer("Again.")) as azure:
        provider = OpenAIProvider(
            "our-deployment",
            base_url=f"{azure.url}/openai/v1",
            api_key=identity.token,
            profile="gpt-5.6",
            environment=NOTHING,
        )
        async with _ask(provider) as atlas:
            assert [(await atlas.ask("Hi")).text for _ in range(2)] == ["Hello.", "Again."]
    assert [refusal.status for refusal in azure.refusals] == [401]
    assert identity.issued == 3


async def test_azure_deployment_that_reasons_gets_its_tools_through_responses() -> None:
    @tool
    async def weather(city: str) -> str:
        """Return the weather."""
        return f"Sunny in {city}"

    call = Answer(calls=(("weather", {"city": "Paris"}),), thinking=("Paris it is.",))
    async with AzureResponsesDouble(call, Answer("Sunny.")) as azure:
        provider = OpenAIProvider(
            "our-deployment",
            base_url=f"{azure.url}/openai/v1",
            api_key=Identity().token,
            profile="gpt-5.6",
            environment=NOTHING,
        )
        async with _ask(provider, tools=[weather], settings={"effort": "high"}) as atlas:
            assert (await atlas.ask("Hi")).text == "Sunny."
    assert [refusal.status for refusal in azure.refusals] == [401]
    assert {request.path for request in azure.requests} == {"/openai/v1/responses"}


@pytest.mark.parametrize("with_token", [False, True])
async def test_foundry_takes_a_key_or_a_token(with_token: bool) -> None:
    credentials: dict[str, Any] = {"api_key": KEY}
    if with_token:
        credentials = {"api_key": Identity().token, "key_header": "Authorization"}
    async with FoundryDouble(Answer("Hello.", thinking=("Hm.",)), binding_controls=False) as foundry:
        provider = AnthropicProvider(
            "claude-opus-5-5", base_url=f"{foundry.url}/anthropic/", environment=NOTHING, **credentials
        )
        async with _ask(provider, settings={"effort": "low"}) as atlas:
            assert (await atlas.ask("Hi")).text == "Hello."
    assert [refusal.status for refusal in foundry.refusals] == ([401] if with_token else [])


async def test_mantle_takes_a_bearer_key() -> None:
    async with MantleDouble(Answer("Hello."), binding_controls=False) as mantle:
        provider = AnthropicProvider(
            "anthropic.claude-opus-5",
            base_url=f"{mantle.url}/anthropic",
            api_key=KEY,
            key_header="Authorization",
            environment=NOTHING,
        )
        async with _ask(provider, temperature=0.3) as atlas:
            assert (await atlas.ask("Hi")).text == "Hello."
    assert mantle.refusals == []


@pytest.mark.parametrize("model", ["claude-opus-5@20260401", "claude-sonnet-4-5@20250929"])
async def test_vertex_has_the_model_in_the_path(model: str) -> None:
    async with VertexDouble(Answer("Hello."), binding_controls=False) as vertex:
        provider = AnthropicProvider(
            model,
            base_url=f"{vertex.url}{vertex.root}{{model}}:streamRawPredict",
            api_key=Identity().token,
            key_header="Authorization",
            environment=NOTHING,
        )
        async with _ask(provider, temperature=0.3) as atlas:
            assert (await atlas.ask("Hi")).text == "Hello."
    assert [refusal.status for refusal in vertex.refusals] == [401]


def test_bedrock_invoke_is_refused_with_the_address_that_works() -> None:
    with pytest.raises(ConfigError, match=r"not supported.*https://bedrock-mantle\.us-east-1\.api\.aws/anthropic"):
        AnthropicProvider(
            "anthropic.claude-opus-5", base_url="https://bedrock-runtime.us-east-1.amazonaws.com", api_key=KEY
        )
