"""The Gemini double refuses what the vendor refuses, in the vendor's error format."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from vendors.common import KEY, Answer
from vendors.gemini import DUMMY, GeminiDouble

LATEST, OLD = "gemini-3.8-flash", "gemini-2.5-flash"
HI: dict[str, Any] = {"role": "user", "parts": [{"text": "Hi"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def say(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "parts": list(parts)}


def call(id: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"functionCall": {"id": id, "name": "look", "args": {}}, **fields}


def result(id: str = "c1", **fields: Any) -> dict[str, Any]:
    return {"functionResponse": {"id": id, "name": "look", "response": {"output": "x"}, **fields}}


def contents(*items: Any) -> dict[str, Any]:
    return {"contents": list(items)}


def tool(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"functionDeclarations": [{"name": "look", **fields}]}]}


def mode(**config: Any) -> dict[str, Any]:
    return {**tool(), "toolConfig": {"functionCallingConfig": config}}


def config(**fields: Any) -> dict[str, Any]:
    return {"generationConfig": fields}


def media(mime_type: str = "image/png", data: str = "eA==") -> dict[str, Any]:
    return {"inlineData": {"mimeType": mime_type, "data": data}}


SIGNED = call(thoughtSignature=DUMMY)
REFUSED: dict[str, dict[str, Any]] = {
    "unknown field": {"messages": []},
    "unknown setting": config(max_tokens=5),
    "no contents": contents(),
    "role": contents(say({"text": "x"}, role="assistant")),
    "no parts": contents(say()),
    "two payloads in a part": contents(say({"text": "x", **media()})),
    "signature inside a call": contents(
        HI, say({"functionCall": {"name": "look", "thoughtSignature": "x"}}, role="model")
    ),
    "empty text": contents(say({"text": ""})),
    "model last": contents(HI, say({"text": "x"}, role="model")),
    "call without a signature": contents(HI, say(call(), role="model"), say(result())),
    "damaged signature": contents(HI, say(call(thoughtSignature="eA=="), role="model"), say(result())),
    "call without a response": contents(HI, say(SIGNED, role="model"), HI),
    "response without a call": contents(say(result())),
    "responses in two contents": contents(HI, say(SIGNED, call("c2"), role="model"), say(result()), say(result("c2"))),
    "response mixed with text": contents(HI, say(SIGNED, role="model"), say(result(), {"text": "x"})),
    "response with another id": contents(HI, say(SIGNED, role="model"), say(result("c9"))),
    "response with another name": contents(HI, say(SIGNED, role="model"), say(result(name="walk"))),
    "response that is a text": contents(HI, say(SIGNED, role="model"), say(result(response="x"))),
    "call after a message of the model": contents(
        HI, say({"text": "x"}, role="model"), say(SIGNED, role="model"), say(result())
    ),
    "call of the user": contents(say(SIGNED), say(result())),
    "GIF": contents(say(media("image/gif"))),
    "data that is not base64": contents(say(media(data="?"))),
    "file at an insecure address": contents(
        say({"fileData": {"mimeType": "application/pdf", "fileUri": "http://example.com/a.pdf"}})
    ),
    "name of a tool": tool(name="look up"),
    "JSON schema as parameters": tool(parameters={**SCHEMA, "additionalProperties": False}),
    "two schemas of a tool": tool(parameters=SCHEMA, parametersJsonSchema=SCHEMA),
    "array without items": tool(parameters={"type": "object", "properties": {"a": {"type": "array"}}}),
    "unknown mode": mode(mode="FORCED"),
    "names without ANY": mode(mode="AUTO", allowedFunctionNames=["look"]),
    "unknown name": mode(mode="ANY", allowedFunctionNames=["walk"]),
    "tools beside cached content": {**tool(), "cachedContent": "c"},
    "temperature": config(temperature=3),
    "six stop sequences": config(stopSequences=list("abcdef")),
    "output limit": config(maxOutputTokens=100_000),
    "schema without its MIME type": config(responseJsonSchema=SCHEMA),
    "two output schemas": config(responseMimeType="application/json", responseSchema=SCHEMA, responseJsonSchema=SCHEMA),
    "keyword of a schema": config(responseMimeType="application/json", responseJsonSchema={"const": 1}),
    "thinking budget": config(thinkingConfig={"thinkingBudget": 100}),
    "thinking level": config(thinkingConfig={"thinkingLevel": "MINIMAL"}),
    "continuation": {"continuationToken": "t"},
}
REFUSED_BY_OLD: dict[str, dict[str, Any]] = {
    "thinking level": config(thinkingConfig={"thinkingLevel": "LOW"}),
    "high budget": config(thinkingConfig={"thinkingBudget": 99_999}),
    "typed output beside tools": {**tool(), **config(responseMimeType="application/json", responseJsonSchema=SCHEMA)},
    "media in a response": contents(HI, say(call(), role="model"), say(result(parts=[media()]))),
}
ACCEPTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "call and response": contents(HI, say(SIGNED, call("c2"), role="model"), say(result(), result("c2"))),
    "older call without a signature": contents(
        HI, say(call(), role="model"), say(result()), say({"text": "x"}, role="model"), HI
    ),
    "consecutive contents of the user": contents(HI, HI),
    "media in a response": contents(HI, say(SIGNED, role="model"), say(result(parts=[media()]))),
    "typed output beside tools": {**tool(), **config(responseMimeType="application/json", responseJsonSchema=SCHEMA)},
    "JSON schema of a tool": tool(parametersJsonSchema={**SCHEMA, "additionalProperties": False}),
    "automatic thinking": config(thinkingConfig={"thinkingLevel": "LOW", "includeThoughts": True}),
}


@pytest_asyncio.fixture
async def vendor() -> AsyncGenerator[GeminiDouble]:
    async with GeminiDouble(then=Answer("Yes.")) as double:
        yield double


async def post(
    vendor: GeminiDouble, body: dict[str, Any], model: str = LATEST, **headers: str
) -> tuple[int, dict[str, Any]]:
    url = f"{vendor.base_url}{'' if vendor.vertex else '/v1beta'}/models/{model}:streamGenerateContent?alt=sse"
    sent = headers or ({"authorization": f"Bearer {KEY}"} if vendor.vertex else {"x-goog-api-key": KEY})
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={"contents": [HI], **body}, headers=sent) as response,
    ):
        answer = await response.read()
        return response.status, {} if response.status == 200 else json.loads(answer)["error"]


@pytest.mark.parametrize("name", REFUSED)
async def test_the_double_refuses(name: str, vendor: GeminiDouble) -> None:
    status, error = await post(vendor, REFUSED[name])
    assert (status, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT")


@pytest.mark.parametrize("name", REFUSED_BY_OLD)
async def test_the_double_refuses_what_only_newer_models_accept(name: str, vendor: GeminiDouble) -> None:
    assert (await post(vendor, REFUSED_BY_OLD[name], OLD))[0] == 400


@pytest.mark.parametrize("name", ACCEPTED)
async def test_the_double_accepts(name: str, vendor: GeminiDouble) -> None:
    assert await post(vendor, ACCEPTED[name]) == (200, {})


async def test_the_double_knows_models_and_keys(vendor: GeminiDouble) -> None:
    assert (await post(vendor, {}, "gemini-9"))[1]["status"] == "NOT_FOUND"
    assert (await post(vendor, {}, accept="*/*"))[1]["status"] == "PERMISSION_DENIED"
    status, error = await post(vendor, {}, **{"x-goog-api-key": "wrong"})
    assert (status, error["details"][0]["reason"]) == (400, "API_KEY_INVALID")
    async with GeminiDouble(vertex=True, then=Answer("Yes.")) as vertex:
        assert (await post(vertex, {}, **{"x-goog-api-key": KEY}))[1]["status"] == "UNAUTHENTICATED"
        assert (await post(vertex, {}))[0] == 200


@pytest.mark.parametrize(("budget", "status"), [(0, 400), (127, 400), (128, 200), (-1, 200), (32_769, 400)])
async def test_the_double_knows_the_budget_of_a_model_that_always_thinks(
    budget: int, status: int, vendor: GeminiDouble
) -> None:
    body = config(thinkingConfig={"thinkingBudget": budget})
    assert (await post(vendor, body, "gemini-2.5-pro"))[0] == status
