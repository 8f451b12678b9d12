"""The Gemini wire reads and writes what Google's SDK reads and writes."""

import asyncio
import base64
import warnings
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, cast

import httpx
import pytest
from wire_setup import GEMINI, KEY, TIMEOUT

from atlas_agents import (
    Agent,
    Atlas,
    Conversation,
    File,
    GeminiProvider,
    Image,
    Message,
    ModelSettings,
    Opaque,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    tool,
    tool_message,
    user,
)
from atlas_agents.providers import base
from checks import ssl_context
from fault_server import FaultServer, byte_by_byte, response
from sse_events import g

MODEL = "gemini-3.8-flash"
PAY = '{"to":"bob","amount":5}'
EVE = '{"to":"éve 😀","amount":-1.5e3,"why":[null,true,{"a":"\\u00e9\\n"}]}'
TEXTS = ["Hi ", "😀 é ", "\u0000\x7f", "مرحبا ", "{}[]\\\"'\n\n", "data: x\n"]
"""Without U+2028, at which the SDK splits the lines of a stream."""
SIGNED = {"thoughtSignature": "c2lnbmF0dXJl"}
USAGE = {"cachedContentTokenCount": 4, "thoughtsTokenCount": 30, "promptTokenCount": 9, "candidatesTokenCount": 3}
LOOK: dict[str, Any] = {"functionCall": {"id": "c1", "name": "look", "args": {}}}
GOOD: dict[str, list[bytes]] = {
    "text": g.says("Hi", " there"),
    "unicode": g.says(*TEXTS),
    "unicode byte by byte": byte_by_byte(g.says(*TEXTS)),
    "CRLF": [event.replace(b"\n", b"\r\n") for event in g.says("Hi ", "😀")],
    "a call": g.calls(("c1", "pay", PAY)),
    "a call without an id": [g.call(None, "pay", PAY), g.finish()],
    "text and two calls": g.calls(("c1", "pay", PAY), ("c2", "pay", EVE), says="Paying."),
    "two calls in one event": [g.parts(LOOK, LOOK), g.finish()],
    "thoughts, text and a signature": [
        *[g.text("Hm ", thought=True), g.text("😀.", thought=True), g.text("Hi"), g.text("", **SIGNED), g.finish()]
    ],
    "signed text": [g.text("Hi "), g.text("there", **SIGNED), g.finish()],
    "finish with the text": [g.parts({"text": "Hi"}, finishReason="STOP")],
    "usage in every event": [
        g.event(usageMetadata={"promptTokenCount": 1}),
        g.text("Hi"),
        g.finish(),
        g.event(usageMetadata=USAGE),
    ],
    "MAX_TOKENS": [g.text("Hi"), g.finish("MAX_TOKENS")],
    "SAFETY": [g.text("Hi"), g.finish("SAFETY")],
}
STOP = {"STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "refusal"}


@cache
def load_genai() -> Any:
    """Import Google's SDK, which is slow, and whose texts cause warnings when they are compiled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from google import genai
    return genai


@asynccontextmanager
async def genai_client(url: str) -> AsyncGenerator[Any]:
    context = ssl_context()
    async with httpx.AsyncClient(verify=context) as connections:
        options = {"base_url": url, "api_version": "v1beta", "httpx_async_client": connections}
        options |= {"client_args": {"verify": context}, "async_client_args": {"verify": context, "ssl": context}}
        yield load_genai().Client(api_key=KEY, http_options=options).aio


def encoded(signature: bytes | None) -> str:
    return base64.b64encode(signature or b"").decode()


async def decode_with_sdk(url: str) -> dict[str, Any]:
    async with genai_client(url) as client:
        chunks = [chunk async for chunk in await client.models.generate_content_stream(model=MODEL, contents="Hi")]
    candidates = [chunk.candidates[0] for chunk in chunks if chunk.candidates]
    parts = [part for each in candidates if each.content for part in each.content.parts or ()]
    calls = [part for part in parts if part.function_call]
    usage = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata][-1:]
    reason = STOP[next(each.finish_reason.value for each in reversed(candidates) if each.finish_reason)]
    return {
        "text": "".join(part.text for part in parts if part.text and not part.thought),
        "thoughts": "".join(part.text for part in parts if part.thought),
        "calls": [
            (
                part.function_call.id or "",
                part.function_call.name,
                part.function_call.args,
                encoded(part.thought_signature),
            )
            for part in calls
        ],
        "signatures": [
            encoded(part.thought_signature) for part in parts if part.thought_signature and part not in calls
        ],
        "usage": [
            (each.prompt_token_count, (each.candidates_token_count or 0) + (each.thoughts_token_count or 0))
            for each in usage
        ],
        "stop": "tool_calls" if calls and reason == "stop" else reason,
    }


async def decode_with_atlas(url: str) -> dict[str, Any]:
    provider = GEMINI.provider(url)
    chunks = await base.complete(provider, base.Request((user("Hi"),)))
    await provider.close()  # pyrefly: ignore[missing-attribute] - not every provider has it
    done = chunks[-1]
    assert isinstance(done, base.DoneChunk)
    calls = [chunk.call for chunk in chunks if isinstance(chunk, base.ToolCallChunk)]
    blocks = [chunk.block for chunk in chunks if isinstance(chunk, base.OpaqueChunk)]
    return {
        "text": "".join(chunk.text for chunk in chunks if isinstance(chunk, base.TextChunk)),
        "thoughts": "".join(chunk.text for chunk in chunks if isinstance(chunk, base.ThinkingChunk)),
        "calls": [(call.id, call.name, call.arguments, call.signature) for call in calls],
        "signatures": [block["thoughtSignature"] for block in blocks if block],
        "usage": [] if done.usage.estimated else [(done.usage.input_tokens, done.usage.output_tokens)],
        "stop": done.stop_reason,
    }


@pytest.mark.parametrize("name", GOOD)
async def test_stream_decodes_like_the_vendor_sdk(name: str) -> None:
    body = GOOD[name]
    async with FaultServer(response(*body), response(*body)) as server, asyncio.timeout(TIMEOUT):
        ours = await decode_with_atlas(server.url)
        theirs = await decode_with_sdk(server.url)
    assert ours == theirs


@tool
async def pay(to: str, amount: int) -> str:
    """Pay a person."""
    return f"paid {amount} to {to}"


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
PNG = Image.of(b"\x89PNG", "image/png")
PDF = File.of(b"%PDF", "bill.pdf")
REMOTE = File("a.pdf", "application/pdf", url="https://example.com/a.pdf")
PAST: list[Message] = [
    user("Pay bob 😀."),
    assistant(
        Thinking("Hm"),
        Opaque("google", SIGNED),
        "Paying.",
        ToolCall("c1", "pay", {"to": "bob", "amount": 5}, signature="Zmlyc3Q="),
        ToolCall("c2", "pay", {"to": "eve", "amount": 1}),
    ),
    tool_message(ToolResult("c1", "ok", "paid 5 to bob"), ToolResult("c2", "error", "no money", "failed")),
    assistant("One of two.", Opaque("google", {"text": "", **SIGNED})),
]
QUESTION = user("What is ", "this?", PNG, PDF, REMOTE)
SETTINGS = ModelSettings(
    temperature=0.5, top_p=0.9, seed=7, max_tokens=99, stop=("END",), effort="low", service_tier="flex"
)


async def our_request() -> Any:
    async with FaultServer(response(*g.says('{"n":1}'))) as server:
        agent = Agent(
            "assistant",
            model=GeminiProvider(MODEL, base_url=server.url, api_key=KEY),
            system_prompt="Be brief.",
            tools=[pay],
            settings=SETTINGS,
            tool_choice="pay",
        )
        async with Atlas([agent]) as atlas:
            await atlas.ask(QUESTION, session=Conversation(PAST), output=SCHEMA)
        return server.requests[0]


async def sdk_request() -> Any:
    """Send the same conversation with Google's SDK."""
    types = load_genai().types
    signature = b"signature"

    def call(id: str, to: str, amount: int, signature: bytes | None = None) -> Any:
        function = types.FunctionCall(id=id, name="pay", args={"to": to, "amount": amount})
        return types.Part(function_call=function, thought_signature=signature)

    def result(id: str, response: dict[str, Any]) -> Any:
        return types.Part(function_response=types.FunctionResponse(id=id, name="pay", response=response))

    contents = [
        types.Content(role="user", parts=[types.Part(text="Pay bob 😀.")]),
        types.Content(
            role="model",
            parts=[
                types.Part(text="Paying.", thought_signature=signature),
                call("c1", "bob", 5, b"first"),
                call("c2", "eve", 1),
            ],
        ),
        types.Content(
            role="user",
            parts=[
                result("c1", {"output": "paid 5 to bob"}),
                result("c2", {"error": "Error (failed): no money"}),
            ],
        ),
        types.Content(
            role="model", parts=[types.Part(text="One of two."), types.Part(text="", thought_signature=signature)]
        ),
        types.Content(
            role="user",
            parts=[
                types.Part(text="What is "),
                types.Part(text="this?"),
                types.Part.from_bytes(data=b"\x89PNG", mime_type="image/png"),
                types.Part.from_bytes(data=b"%PDF", mime_type="application/pdf"),
                types.Part.from_uri(file_uri=REMOTE.url, mime_type="application/pdf"),
            ],
        ),
    ]
    declaration = types.FunctionDeclaration(
        name="pay", description="Pay a person.", parameters_json_schema=pay.parameters
    )
    calling = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY, allowed_function_names=["pay"])
    config = types.GenerateContentConfig(
        system_instruction=types.Content(parts=[types.Part(text="Be brief.")]),
        tools=[types.Tool(function_declarations=[declaration])],
        tool_config=types.ToolConfig(function_calling_config=calling),
        temperature=0.5,
        top_p=0.9,
        seed=7,
        max_output_tokens=99,
        stop_sequences=["END"],
        service_tier=types.ServiceTier.FLEX,
        thinking_config=types.ThinkingConfig(thinking_level=types.ThinkingLevel.LOW, include_thoughts=True),
        response_mime_type="application/json",
        response_json_schema=SCHEMA,
    )
    async with FaultServer(response(*g.says("Hi"))) as server, genai_client(server.url) as client:
        async for _ in await client.models.generate_content_stream(model=MODEL, contents=contents, config=config):
            pass
        return server.requests[0]


async def test_request_equals_that_of_the_vendor_sdk() -> None:
    async with asyncio.timeout(TIMEOUT):
        ours, theirs = await our_request(), await sdk_request()
    assert ours.path == theirs.path
    assert ours.headers["x-goog-api-key"] == theirs.headers["x-goog-api-key"] == KEY
    assert normalize(ours.body) == normalize(theirs.body)


def normalize(value: Any) -> Any:
    """Field names may be written with underscores, and bytes with either base64 alphabet, which the SDK does."""
    if isinstance(value, list):
        return [normalize(each) for each in cast(list[Any], value)]
    if isinstance(value, dict):
        return {_camel_case(name): normalize(each) for name, each in cast(dict[str, Any], value).items()}
    return value.replace("-", "+").replace("_", "/") if isinstance(value, str) else value


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


async def test_request_matches_the_published_types_of_the_vendor() -> None:
    types = load_genai().types
    body = (await our_request()).body
    for content in [*body["contents"], body["systemInstruction"]]:
        types.Content.model_validate(content)
    for each in body["tools"]:
        types.Tool.model_validate(each)
    types.ToolConfig.model_validate(body["toolConfig"])
    types.GenerateContentConfig.model_validate(body["generationConfig"])
