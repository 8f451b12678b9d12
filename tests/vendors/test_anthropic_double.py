"""The Anthropic double refuses what the vendor refuses, in the vendor's error format."""

import json
from collections.abc import AsyncGenerator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from vendors.anthropic import BINDING_BETA, NEW_VERSION, OLD_VERSION, AnthropicDouble
from vendors.common import KEY, Answer

HEADERS = {"x-api-key": KEY, "anthropic-version": NEW_VERSION}
EPHEMERAL = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}


def text(value: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def make_tool(name: str = "look", **fields: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object", "properties": {}}, **fields}


def say(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


def document(**source: str) -> dict[str, Any]:
    return {"type": "document", "source": source}


CALL: dict[str, Any] = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "x"}
MARKED = [text(str(number), cache_control=EPHEMERAL) for number in range(5)]
OPEN_OBJECT = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True}
CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}


def output(schema: Any) -> dict[str, Any]:
    return {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


REFUSED: dict[str, dict[str, Any]] = {
    "no max_tokens": {"max_tokens": None},
    "max_tokens above the limit": {"max_tokens": 128_001},
    "unknown field": {"foo": 1},
    "temperature": {"temperature": 1},
    "thinking with a budget": {"thinking": {"type": "enabled", "budget_tokens": 2000}},
    "thinking disabled": {"thinking": {"type": "disabled"}},
    "unknown thinking": {"thinking": {"type": "much"}},
    "binding without its beta": {"thinking": {"type": "adaptive", "block_binding": {}}},
    "unknown effort": {"output_config": {"effort": "minimal"}},
    "forced tool": {"tools": [make_tool()], "tool_choice": {"type": "any"}},
    "tool_choice without tools": {"tool_choice": {"type": "auto"}},
    "parallel calls outside tool_choice": {"tools": [make_tool()], "disable_parallel_tool_use": True},
    "tool without a schema": {"tools": [{"name": "look"}]},
    "tool whose schema is a string": {"tools": [make_tool(input_schema={"type": "string"})]},
    "tool with an invalid name": {"tools": [make_tool("look up")]},
    "two tools of one name": {"tools": [make_tool(), make_tool()]},
    "strict tool with an open object": {"tools": [make_tool(input_schema=OPEN_OBJECT, strict=True)]},
    "empty text": {"messages": [say(text(" "))]},
    "mark on an empty text": {"messages": [say(text("", cache_control=EPHEMERAL))]},
    "mark on thinking": {
        "messages": [
            say(text("x")),
            say({"type": "thinking", "thinking": "", "signature": "", "cache_control": EPHEMERAL}, role="assistant"),
        ]
    },
    "five marks": {"messages": [say(*MARKED)]},
    "four marks and an automatic one": {"messages": [say(*MARKED[:4])], "cache_control": EPHEMERAL},
    "a longer mark after a shorter one": {
        "messages": [say(text("x", cache_control=EPHEMERAL), text("y", cache_control=HOUR))]
    },
    "assistant first": {"messages": [say(text("x"), role="assistant")]},
    "prefill": {"messages": [say(text("x")), say(text("y"), role="assistant")]},
    "call without a result": {"messages": [say(text("x")), say(CALL, role="assistant"), say(text("y"))]},
    "result without a call": {"messages": [say(RESULT)]},
    "result after text": {"messages": [say(text("x")), say(CALL, role="assistant"), say(text("y"), RESULT)]},
    "two results of one call": {"messages": [say(text("x")), say(CALL, role="assistant"), say(RESULT, RESULT)]},
    "forged thinking": {
        "messages": [
            say(text("x")),
            say({"type": "thinking", "thinking": "y", "signature": "z"}, text("y"), role="assistant"),
            say(text("z")),
        ]
    },
    "text file as base64": {"messages": [say(document(type="base64", media_type="text/plain", data="eA=="))]},
    "file at an http address": {"messages": [say(document(type="url", url="http://example.com/a.pdf"))]},
    "document of the assistant": {
        "messages": [
            say(text("x")),
            say(document(type="text", media_type="text/plain", data="x"), role="assistant"),
            say(text("y")),
        ]
    },
    "image of another type": {
        "messages": [
            say({"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": "eA=="}}),
        ]
    },
    "audio": {"messages": [say({"type": "audio", "source": {}})]},
    "open object": output(OPEN_OBJECT),
    "bounds": output({**CLOSED, "properties": {"a": {"type": "integer", "minimum": 1}}}),
    "recursion": output({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}),
}
ACCEPTED: dict[str, dict[str, Any]] = {
    "plain": {},
    "adaptive thinking": {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}},
    "four marks": {"messages": [say(*MARKED[:4])]},
    "longer marks first": {"messages": [say(text("x", cache_control=HOUR), text("y", cache_control=EPHEMERAL))]},
    "a call and its result": {
        "tools": [make_tool(cache_control=EPHEMERAL)],
        "messages": [say(text("x")), say(CALL, role="assistant"), say(RESULT, text("y"))],
    },
    "closed object": output(CLOSED),
    "text file": {"messages": [say(document(type="text", media_type="text/plain", data="x"))]},
    "consecutive messages of one role": {"messages": [say(text("x")), say(text("y"))]},
}


@pytest_asyncio.fixture
async def vendor() -> AsyncGenerator[AnthropicDouble]:
    async with AnthropicDouble(then=Answer("Yes.")) as double:
        yield double


async def post(vendor: AnthropicDouble, body: dict[str, Any], **headers: str) -> tuple[int, dict[str, Any]]:
    plain: dict[str, Any] = {"model": "claude-opus-5-5", "max_tokens": 5000, "messages": [say(text("Hi"))]}
    fields = {name: value for name, value in {**plain, **body}.items() if value is not None}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{vendor.url}/v1/messages", json=fields, headers={**HEADERS, **headers}) as response,
    ):
        return response.status, json.loads(await response.read())


@pytest.mark.parametrize("name", REFUSED)
async def test_the_double_refuses(name: str, vendor: AnthropicDouble) -> None:
    status, body = await post(vendor, REFUSED[name])
    assert (status, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")


@pytest.mark.parametrize("name", ACCEPTED)
async def test_the_double_accepts(name: str, vendor: AnthropicDouble) -> None:
    status, body = await post(vendor, ACCEPTED[name])
    assert (status, body.get("error")) == (200, None)


async def test_the_double_knows_both_versions(vendor: AnthropicDouble) -> None:
    body = {"model": "claude-sonnet-4-6", "temperature": 0.5}
    old = {"anthropic-version": OLD_VERSION}
    assert (await post(vendor, body))[0] == 400
    assert (await post(vendor, body, **old))[0] == 200
    assert (await post(vendor, {**body, "model": "claude-opus-4-7"}, **old))[0] == 400
    assert (await post(vendor, {}, **{"anthropic-version": "2024-01-01"}))[0] == 400


async def test_the_double_knows_models_and_keys(vendor: AnthropicDouble) -> None:
    assert (await post(vendor, {"model": "claude-9"}))[1]["error"]["type"] == "not_found_error"
    assert (await post(vendor, {}, **{"x-api-key": ""}))[1]["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(("changed", "beta", "status"), [(False, "", 200), (True, "", 400), (True, BINDING_BETA, 200)])
async def test_the_double_binds_thinking_to_the_prefix(changed: bool, beta: str, status: int) -> None:
    async with AnthropicDouble(Answer("Yes.", thinking=("Hm.",)), then=Answer("No.")) as vendor:
        _, reply = await post(vendor, {"system": "A"})
        history = [say(text("Hi")), {"role": "assistant", "content": reply["content"]}, say(text("And?"))]
        binding = {"block_binding": {"prefix_mismatch_behavior": "drop_block"}} if beta else {}
        body = {"system": "B" if changed else "A", "messages": history, "thinking": {"type": "adaptive", **binding}}
        headers = {"anthropic-beta": beta} if beta else {}
        answered, _ = await post(vendor, body, **headers)
        assert answered == status
        assert vendor.dropped == (["messages.1.content.0"] if changed and beta else vendor.dropped)
