"""The Gemini wire against its strict double: signatures, thinking, files, typed output, finish reasons and errors."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from atlas_agents import (
    Agent,
    AnthropicProvider,
    Atlas,
    Conversation,
    File,
    GeminiProvider,
    Image,
    ModelSettings,
    OpenAIResponsesProvider,
    ProviderError,
    RetryPolicy,
    tool,
)
from atlas_agents.core import messages as m
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.events import Usage
from atlas_agents.core.messages import Message, Opaque, Thinking, ToolCall, ToolResult
from atlas_agents.core.paths import Environment
from atlas_agents.providers import base
from atlas_agents.providers.registry import Registry
from atlas_agents.storage.sqlite import SqliteStore
from checks import TIMEOUT
from fault_server import FaultServer, response
from vendors import killed_turn
from vendors.anthropic import AnthropicDouble
from vendors.common import KEY, Answer, Refusal, VendorRequest
from vendors.gemini import DUMMY, MODELS, GeminiDouble
from vendors.openai_responses import OpenAIResponsesDouble

PARIS = Answer(calls=(("weather", {"city": "Paris"}),))
ROME = Answer(calls=(("weather", {"city": "Rome"}),))
BOTH = Answer("Two.", calls=(("weather", {"city": "Paris"}), ("weather", {"city": "Rome"})))
SUNNY = Answer("Sunny.")
LATEST, OLD = "gemini-3.8-flash", "gemini-2.5-flash"
SIGNED = [name for name, rules in MODELS.items() if rules.signed]
NOTHING = Environment({}, dotenv=None)


@tool
async def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"{city}: sunny"


@tool
async def picture() -> Any:
    """Return a picture."""
    return {"name": "cat", "image": {"type": "image", "media_type": "image/png", "data": "iVBORw0KGgo="}}


def connect(vendor: GeminiDouble, model: str | None = LATEST) -> GeminiProvider:
    return GeminiProvider(model, base_url=vendor.base_url, api_key=KEY)


@asynccontextmanager
async def open_atlas(
    vendor: GeminiDouble, model: str = LATEST, store: Any = None, **options: Any
) -> AsyncGenerator[Atlas]:
    options.setdefault("tools", [weather])
    options.setdefault("system_prompt", "Be brief.")
    options.setdefault("providers", [connect(vendor, model)])
    agent = Agent("assistant", retry=RetryPolicy(order="given", backoff=0.001), **options)
    async with Atlas([agent], store=store) as atlas:
        yield atlas


@asynccontextmanager
async def opened(folder: Path) -> AsyncGenerator[SqliteStore]:
    store = SqliteStore(folder / "atlas.db")
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def complete(vendor: GeminiDouble, model: str, *messages: Message, **fields: Any) -> list[base.Chunk]:
    provider = connect(vendor, model)
    try:
        return await base.complete(provider, base.Request(messages or (m.user("Hi"),), **fields))
    finally:
        await provider.close()


def done(chunks: list[base.Chunk]) -> base.DoneChunk:
    last = chunks[-1]
    assert isinstance(last, base.DoneChunk)
    return last


def parts_of(vendor: GeminiDouble, role: str) -> list[dict[str, Any]]:
    """The parts of one role in the last request."""
    return [part for content in vendor.bodies[-1]["contents"] if content["role"] == role for part in content["parts"]]


def signatures(vendor: GeminiDouble) -> list[str | None]:
    """The signature of each call in the last request."""
    return [part.get("thoughtSignature") for part in parts_of(vendor, "model") if "functionCall" in part]


# Tools and signatures


@pytest.mark.parametrize("model", MODELS)
async def test_every_model_uses_tools_in_parallel_and_in_sequence(model: str) -> None:
    async with GeminiDouble(BOTH, PARIS, SUNNY, SUNNY) as vendor, open_atlas(vendor, model) as atlas:
        assert (await atlas.ask("Weather?")).text == "Sunny."
        assert (await atlas.ask("And now?")).text == "Sunny."
        assert vendor.refusals == []


@pytest.mark.parametrize("signature", ["text", "empty"])
@pytest.mark.parametrize("model", SIGNED)
async def test_21_signatures_of_parallel_and_sequential_calls_and_of_text_come_back_unchanged(
    model: str, signature: str
) -> None:
    final = Answer("Sunny in both.", extra={"signature": signature})
    async with GeminiDouble(BOTH, ROME, final, PARIS, final) as vendor, open_atlas(vendor, model) as atlas:
        await atlas.ask("Weather?")
        await atlas.ask("And now?")
        assert vendor.refusals == []
        first, second, third, fourth = signatures(vendor)
        assert first and second is None and third and fourth
        assert len({first, third, fourth}) == 3
        (text,) = [part for part in parts_of(vendor, "model") if "text" in part and "thoughtSignature" in part]
        assert text["text"] == ("oth." if signature == "text" else "")


async def test_21_stored_signatures_come_back_unchanged_after_a_restart(tmp_path: Path) -> None:
    final = Answer("Sunny.", extra={"signature": "text"})
    async with GeminiDouble(BOTH, ROME, final, SUNNY) as vendor:
        for question in ("Weather?", "And now?"):
            async with opened(tmp_path) as store, open_atlas(vendor, store=store) as atlas:
                await atlas.ask(question, session="s")
        assert vendor.refusals == []
        before, after = vendor.bodies[2]["contents"], vendor.bodies[3]["contents"]
        assert after[: len(before)] == before
        assert after[len(before)]["parts"][-1]["thoughtSignature"]


async def test_21_turn_that_a_restart_interrupts_continues_with_its_signatures(tmp_path: Path) -> None:
    async with GeminiDouble(BOTH, ROME, Answer("Sun", hangs=True), SUNNY) as vendor:
        async with opened(tmp_path) as store, open_atlas(vendor, store=store) as atlas:
            stream = atlas.send("Weather?", session="s")
            async for event in stream:
                if event.type == "stream:chunk" and len(vendor.requests) == 3:
                    break
        async with opened(tmp_path) as store, open_atlas(vendor, store=store) as atlas:
            (resumed,) = await atlas.recover()
            assert (await resumed.reply()).text == "Sunny."
        assert vendor.refusals == []
        assert vendor.bodies[3] == vendor.bodies[2]
        assert [bool(signature) for signature in signatures(vendor)] == [True, False, True]


async def test_21_signatures_are_kept_when_the_process_is_killed_while_a_tool_runs(tmp_path: Path) -> None:
    async with GeminiDouble(BOTH, SUNNY) as vendor:
        arguments = (vendor.url, "google", LATEST, str(tmp_path / "atlas.db"))
        process = await asyncio.create_subprocess_exec(sys.executable, killed_turn.__file__, *arguments)
        assert await asyncio.wait_for(process.wait(), TIMEOUT) == -signal.SIGKILL
        assert await killed_turn.run_turn(*arguments) == ["Sunny."]
        assert vendor.refusals == []
        assert [bool(signature) for signature in signatures(vendor)] == [True, False]


@pytest.mark.parametrize("model", [LATEST, OLD])
async def test_long_session_is_shortened_to_a_history_that_the_api_accepts(model: str) -> None:
    """The oldest messages are dropped, with their calls, results and signatures."""

    def respond(request: VendorRequest) -> Answer | Refusal:
        if len(request.raw) > 6000:
            return Refusal("The input token count (9) exceeds the maximum number of tokens allowed (8).")
        asked = request.body["contents"][-1]["parts"][0]
        return BOTH if "text" in asked else SUNNY

    async with GeminiDouble(then=respond) as vendor, open_atlas(vendor, model) as atlas:
        for number in range(25):
            assert (await atlas.ask(f"Weather {number}? {'x' * 200}")).text == "Sunny."
        assert vendor.refusals == []
        assert len(vendor.requests) < 25 * 2 + 10


async def test_calls_without_ids_are_answered_with_generated_ones() -> None:
    calls = Answer(calls=BOTH.calls, extra={"ids": False})
    async with GeminiDouble(calls, SUNNY) as vendor, open_atlas(vendor) as atlas:
        await atlas.ask("Weather?")
        assert vendor.refusals == []
        ids = [part["functionResponse"]["id"] for part in parts_of(vendor, "user") if "functionResponse" in part]
        assert len(set(ids)) == 2


FOREIGN = [
    m.user("Weather?"),
    m.assistant(
        Thinking("Hm", "c2lnbmF0dXJl"),
        Opaque("anthropic", {"type": "redacted_thinking", "data": "x"}),
        ToolCall("toolu_1", "weather", {"city": "Paris"}),
        ToolCall("toolu_2", "weather", {"city": "Rome"}),
    ),
    m.tool(ToolResult("toolu_1", "ok", "sunny"), ToolResult("toolu_2", "error", "no such city", "failed")),
]


@pytest.mark.parametrize("model", MODELS)
async def test_turn_of_another_vendors_model_is_continued(model: str) -> None:
    async with GeminiDouble(SUNNY) as vendor:
        await complete(vendor, model, *FOREIGN)
        assert vendor.refusals == []
        assert signatures(vendor) == [DUMMY if MODELS[model].signed else None, None]
        results = [part["functionResponse"]["response"] for part in parts_of(vendor, "user")[1:]]
        assert results == [{"output": "sunny"}, {"error": "Error (failed): no such city"}]


async def test_conversation_changes_between_vendors_at_any_turn() -> None:
    session = Conversation()
    thoughtful = Answer("Two.", calls=BOTH.calls, thinking=("Hm.",), extra={"thoughts_signed": True})
    async with (
        GeminiDouble(thoughtful, SUNNY, thoughtful, SUNNY) as gemini,
        AnthropicDouble(thoughtful, SUNNY) as claude,
        OpenAIResponsesDouble(thoughtful, SUNNY) as gpt,
    ):
        providers: list[Any] = [
            connect(gemini),
            AnthropicProvider("claude-opus-5", base_url=claude.url, api_key=KEY),
            OpenAIResponsesProvider("gpt-5.6", base_url=f"{gpt.url}/v1", api_key=KEY),
            connect(gemini),
        ]
        for provider in providers:
            settings = ModelSettings(effort="low")
            async with open_atlas(gemini, providers=[provider], settings=settings) as atlas:
                assert (await atlas.ask("Weather?", session=session)).text == "Sunny."
        assert gemini.refusals + claude.refusals + gpt.refusals == []
        sent = signatures(gemini)
        assert [signature == DUMMY for signature in sent] == [False, False, True, False, True, False, False, False]
        assert [bool(signature) for signature in sent[::2]] == [True] * 4


async def test_signatures_of_another_platform_are_replaced_after_its_refusal() -> None:
    async with (
        GeminiDouble(PARIS, Refusal("no luck", status=404)) as gemini,
        GeminiDouble(SUNNY, vertex=True) as vertex,
    ):
        providers = [connect(gemini), connect(vertex)]
        async with open_atlas(gemini, providers=providers) as atlas:
            assert (await atlas.ask("Weather?")).text == "Sunny."
        assert [str(refusal) for refusal in vertex.refusals] == ["Corrupted thought signature."]
        assert signatures(vertex) == [DUMMY]


async def test_vertex_ai_gets_the_current_access_token() -> None:
    tokens = iter([KEY, KEY])
    async with GeminiDouble(PARIS, SUNNY, vertex=True) as vendor:
        provider = GeminiProvider(LATEST, base_url=vendor.base_url, api_key=lambda: next(tokens))
        async with open_atlas(vendor, providers=[provider]) as atlas:
            assert (await atlas.ask("Weather?")).text == "Sunny."
        assert vendor.refusals == []
        assert list(tokens) == []


async def test_address_may_name_the_place_of_the_model() -> None:
    async with GeminiDouble(SUNNY, vertex=True) as vendor:
        address = f"{vendor.base_url}/models/{{model}}:streamGenerateContent?alt=sse"
        provider = GeminiProvider(LATEST, base_url=address, api_key=KEY)
        await base.complete(provider, base.Request((m.user("Hi"),)))
        await provider.close()
        assert vendor.refusals == []


async def test_consecutive_messages_of_the_model_become_one() -> None:
    messages = [m.user("Hi"), m.assistant("One."), m.assistant("Two.", ToolCall("c1", "weather", {}))]
    async with GeminiDouble(SUNNY) as vendor:
        await complete(vendor, LATEST, *messages, m.tool(ToolResult("c1", "ok", {"n": 1})))
        assert vendor.refusals == []
        assert [part.get("text") for part in parts_of(vendor, "model")] == ["One.", "Two.", None]
        assert parts_of(vendor, "user")[-1]["functionResponse"]["response"] == {"output": {"n": 1}}


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("auto", None),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        ("weather", {"mode": "ANY", "allowedFunctionNames": ["weather"]}),
    ],
)
async def test_tool_choice_is_a_mode(choice: str, config: Any) -> None:
    async with GeminiDouble(SUNNY) as vendor:
        await complete(vendor, LATEST, tools=(weather.spec,), tool_choice=choice)
        assert vendor.refusals == []
        assert vendor.bodies[0].get("toolConfig", {}).get("functionCallingConfig") == config


async def test_thoughts_are_shown_and_signed_ones_returned() -> None:
    answer = Answer("Hi", thinking=("Hm",), extra={"thoughts_signed": True})
    async with GeminiDouble(answer, answer) as vendor:
        async with open_atlas(vendor, settings=ModelSettings(effort="low")) as atlas:
            reply = await atlas.ask("Hi")
            assert [part.text for part in reply.parts if isinstance(part, Thinking)] == ["Hm"]
            assert reply.text == "Hi"
            await atlas.ask("Again")
        assert vendor.refusals == []
        assert parts_of(vendor, "model")[0]["thought"] is True


# Settings and typed output


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        (LATEST, "none", {"thinkingLevel": "LOW"}),
        (LATEST, "minimal", {"thinkingLevel": "LOW", "includeThoughts": True}),
        (LATEST, "max", {"thinkingLevel": "HIGH", "includeThoughts": True}),
        (LATEST, 8000, {"thinkingLevel": "MEDIUM", "includeThoughts": True}),
        ("gemini-3-flash-preview", "minimal", {"thinkingLevel": "MINIMAL", "includeThoughts": True}),
        (OLD, "none", {"thinkingBudget": 0}),
        (OLD, 5000, {"thinkingBudget": 5000, "includeThoughts": True}),
        (OLD, "max", {"thinkingBudget": 24_576, "includeThoughts": True}),
        ("gemini-2.5-pro", "none", {"thinkingBudget": 128}),
        ("gemini-2.0-flash", "high", None),
        (LATEST, None, None),
    ],
)
async def test_effort_is_a_level_or_a_budget(model: str, effort: Any, thinking: Any) -> None:
    async with GeminiDouble(SUNNY) as vendor:
        await complete(vendor, model, settings=ModelSettings(effort=effort))
        assert vendor.refusals == []
        assert vendor.bodies[0].get("generationConfig", {}).get("thinkingConfig") == thinking


async def test_settings_are_sent_under_the_vendors_names(caplog: pytest.LogCaptureFixture) -> None:
    settings = ModelSettings(
        temperature=0.5, top_p=0.9, seed=7, max_tokens=99, stop=("END",), service_tier="flex", parallel_tool_calls=False
    )
    async with GeminiDouble(SUNNY) as vendor:
        await complete(vendor, LATEST, system="Be brief.", settings=settings)
        assert vendor.refusals == []
        assert vendor.bodies[0]["generationConfig"] == {
            **{"temperature": 0.5, "topP": 0.9, "seed": 7, "maxOutputTokens": 99},
            "stopSequences": ["END"],
        }
        assert vendor.bodies[0]["serviceTier"] == "flex"
        assert vendor.bodies[0]["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert "parallel_tool_calls" in warned[0]


class City(BaseModel):
    name: str
    people: int


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("tools", [[], [weather]], ids=["without tools", "with tools"])
async def test_typed_output_has_a_schema_where_the_model_accepts_one(model: str, tools: list[Any]) -> None:
    answer = Answer('{"name": "Rome", "people": 3}')
    async with GeminiDouble(answer) as vendor, open_atlas(vendor, model, tools=tools) as atlas:
        assert (await atlas.run("Where?", output=City)).output == City(name="Rome", people=3)
        assert vendor.refusals == []
        body = vendor.bodies[0]
        has_schema = "responseJsonSchema" in body.get("generationConfig", {})
        assert has_schema is (MODELS[model].signed or not tools)
        assert ("Answer only with JSON" in body["systemInstruction"]["parts"][0]["text"]) is not has_schema


# Files


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (Image.of(b"png"), {"inlineData": {"mimeType": "image/png", "data": "cG5n"}}),
        (File.of(b"%PDF", "a.pdf"), {"inlineData": {"mimeType": "application/pdf", "data": "JVBERg=="}}),
        (File.of(b"RIFF", "a.wav", "audio/wav"), {"inlineData": {"mimeType": "audio/wav", "data": "UklGRg=="}}),
        (File.of(b"{}", "a.json", "application/json"), {"inlineData": {"mimeType": "text/plain", "data": "e30="}}),
        (
            File("a.pdf", "application/pdf", url="https://example.com/a.pdf"),
            {"fileData": {"mimeType": "application/pdf", "fileUri": "https://example.com/a.pdf"}},
        ),
        (
            Image("image/png", url="data:image/webp;base64,cG5n"),
            {"inlineData": {"mimeType": "image/webp", "data": "cG5n"}},
        ),
        (Image("image/png", url="http://127.0.0.1/a.png"), {"text": base.OMITTED_NOTE}),
        (Image.of(b"gif", "image/gif"), {"text": "[omitted: the model does not accept image/gif]"}),
    ],
    ids=["image", "PDF", "audio", "text file", "address", "data URL", "private address", "GIF"],
)
async def test_files_are_sent_inline_or_by_address(part: Any, sent: Any) -> None:
    async with GeminiDouble(SUNNY) as vendor:
        await complete(vendor, LATEST, m.user("What is this?", part))
        assert vendor.refusals == []
        assert parts_of(vendor, "user") == [{"text": "What is this?"}, sent]


@pytest.mark.parametrize("model", MODELS)
async def test_image_of_a_tool_reaches_the_model(model: str) -> None:
    call = Answer(calls=(("picture", {}), ("weather", {"city": "Rome"})))
    async with GeminiDouble(call, SUNNY, SUNNY) as vendor, open_atlas(vendor, model, tools=[weather, picture]) as atlas:
        await atlas.ask("Show me.")
        await atlas.ask("Again?")
        assert vendor.refusals == []
        assert b'"data":"iVBORw0KGgo="' in vendor.requests[1].raw
        in_result = [part["functionResponse"].get("parts") for part in parts_of(vendor, "user")[1:2]]
        assert bool(in_result[0]) is MODELS[model].signed


# Finish reasons


@pytest.mark.parametrize(
    "reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MALFORMED_RESPONSE"]
)
async def test_22_failed_generation_is_retried_and_never_an_empty_answer(reason: str) -> None:
    async with GeminiDouble(Answer(stop=reason), SUNNY) as vendor, open_atlas(vendor) as atlas:
        assert (await atlas.ask("Weather?")).text == "Sunny."
    async with GeminiDouble(then=Answer(stop=reason)) as vendor, open_atlas(vendor) as atlas:
        with pytest.raises(ProviderError, match=reason) as caught:
            await atlas.ask("Weather?")
        assert caught.value.kind == "protocol"


async def test_23_call_before_a_bare_stop_is_made() -> None:
    async with GeminiDouble(Answer(calls=PARIS.calls, extra={"bare_stop": True}), SUNNY) as vendor:
        async with open_atlas(vendor) as atlas:
            assert (await atlas.ask("Weather?")).text == "Sunny."
        assert vendor.refusals == []
        assert len(vendor.requests) == 2


@pytest.mark.parametrize("reason", ["SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY"])
async def test_filtered_answer_is_a_refusal_and_its_calls_are_not_made(reason: str) -> None:
    answer = Answer("I", calls=PARIS.calls, stop=reason)
    async with GeminiDouble(answer, SUNNY) as vendor, open_atlas(vendor) as atlas:
        reply = await atlas.ask("Weather?")
        assert (reply.text, reply.metadata["refused"], reply.metadata["stop_reason"]) == ("I", True, "refusal")
        assert reply.metadata["refusal"] == reason
        assert (await atlas.ask("Hello?")).text == "Sunny."
        assert vendor.refusals == []


async def test_blocked_prompt_is_a_refusal_with_its_reason() -> None:
    blocked = b'data: {"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":4}}\n\n'
    async with GeminiDouble(Answer(events=(blocked,)), SUNNY) as vendor, open_atlas(vendor) as atlas:
        reply = await atlas.ask("Bad?")
        assert (reply.text, reply.metadata["refused"]) == ("", True)
        assert reply.metadata["refusal"] == "the prompt was blocked: SAFETY"
        assert (await atlas.ask("Hello?")).text == "Sunny."
        assert vendor.refusals == []


async def test_answer_that_is_too_long_for_one_request_is_continued_in_the_next() -> None:
    first, second = (Answer(text, extra={"continue": True}) for text in ("One, ", "two, "))
    async with GeminiDouble(first, second, Answer("three.")) as vendor:
        chunks = await complete(vendor, "gemini-4-argon")
        assert vendor.refusals == []
        assert "".join(chunk.text for chunk in chunks if isinstance(chunk, base.TextChunk)) == "One, two, three."
        assert [body.get("continuationToken") is not None for body in vendor.bodies] == [False, True, True]
        assert len({body["continuationToken"] for body in vendor.bodies[1:]}) == 2
        assert done(chunks).stop_reason == "stop"
        assert done(chunks).usage.input_tokens == 3 * 11


async def test_continuation_without_a_new_token_is_a_truncated_answer() -> None:
    async with GeminiDouble(Answer("One", stop="CONTINUATION")) as vendor:
        assert done(await complete(vendor, "gemini-4-argon")).stop_reason == "length"
    event = b'data: {"candidates":[{"content":{"parts":[{"text":"One"}]},"finishReason":"CONTINUATION",' + (
        b'"continuationToken":"t"}]}\n\n'
    )
    async with FaultServer(then=response(event)) as server:
        provider = GeminiProvider("gemini-4-argon", base_url=server.url, api_key=KEY)
        chunks = await base.complete(provider, base.Request((m.user("Hi"),)))
        await provider.close()
        assert done(chunks).stop_reason == "length"
        assert len(server.requests) == 2


async def test_call_that_is_cut_off_is_not_made() -> None:
    async with GeminiDouble(Answer(calls=PARIS.calls, stop="MAX_TOKENS"), SUNNY) as vendor:
        async with open_atlas(vendor) as atlas:
            assert (await atlas.ask("Weather?")).text == "Sunny."
        assert vendor.refusals == []
        assert "error" in parts_of(vendor, "user")[-1]["functionResponse"]["response"]


async def test_usage_is_the_last_total_and_counts_thoughts_as_output() -> None:
    counts = {"promptTokenCount": 100, "cachedContentTokenCount": 60, "candidatesTokenCount": 9}
    answer = Answer("Several pieces.", usage={**counts, "thoughtsTokenCount": 30, "toolUsePromptTokenCount": 5})
    async with GeminiDouble(answer) as vendor:
        usage = done(await complete(vendor, LATEST)).usage
    assert usage == Usage(105, 39, 60, reasoning_tokens=30)


# Errors


def error_body(code: int, status: str, message: str = "no luck", *details: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"code": code, "status": status, "message": message, "details": list(details)}}


def detail(kind: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"type.googleapis.com/google.rpc.{kind}", **fields}


RETRY = detail("RetryInfo", retryDelay="7.5s")
DAILY = detail("QuotaFailure", violations=[{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}])
TOO_LONG = "The input token count (9) exceeds the maximum number of tokens allowed (8)."
ERRORS: list[tuple[int, dict[str, Any], str, float | None]] = [
    (400, error_body(400, "INVALID_ARGUMENT"), "bad_request", None),
    (400, error_body(400, "INVALID_ARGUMENT", TOO_LONG), "context_length", None),
    (400, error_body(400, "INVALID_ARGUMENT", "", detail("ErrorInfo", reason="API_KEY_INVALID")), "auth", None),
    (400, error_body(400, "FAILED_PRECONDITION", "User location is not supported."), "bad_request", None),
    (403, error_body(403, "PERMISSION_DENIED"), "auth", None),
    (404, error_body(404, "NOT_FOUND"), "model_not_found", None),
    (429, error_body(429, "RESOURCE_EXHAUSTED", "slow down", RETRY), "rate_limit", 7.5),
    (429, error_body(429, "RESOURCE_EXHAUSTED", "tomorrow", RETRY, DAILY), "quota", 7.5),
    (500, error_body(500, "INTERNAL"), "server", None),
    (503, error_body(503, "UNAVAILABLE"), "overloaded", None),
]


@pytest.mark.parametrize("in_array", [False, True], ids=["object", "array"])
@pytest.mark.parametrize(("status", "body", "kind", "wait"), ERRORS)
def test_error_is_classified(status: int, body: dict[str, Any], kind: str, wait: float | None, in_array: bool) -> None:
    error = base.classify_response(status, [body] if in_array else body, {})
    assert (error.kind, error.retry_after) == (kind, wait)
    assert body["error"]["message"] in str(error)
    assert not error.code.isdigit()


def test_error_names_the_refused_field() -> None:
    violation = {"field": "generation_config.thinking_config", "description": "no"}
    body = error_body(400, "INVALID_ARGUMENT", "no", detail("BadRequest", fieldViolations=[violation]))
    assert base.classify_response(400, body, {}).param == "generation_config.thinking_config"
    odd_values: list[Any] = [[], [None], {}, "x", None]
    for odd in odd_values:
        broken = error_body(400, "INVALID_ARGUMENT", "no", detail("BadRequest", fieldViolations=odd))
        assert base.classify_response(400, broken, {}).param == ""


async def test_rejected_key_is_an_authentication_error() -> None:
    async with GeminiDouble(SUNNY) as vendor:
        provider = GeminiProvider(LATEST, base_url=vendor.url, api_key="AIza-wrong-key-0123456789")
        with pytest.raises(ProviderError, match="API key not valid") as caught:
            await base.complete(provider, base.Request((m.user("Hi"),)))
        await provider.close()
        assert caught.value.kind == "auth"


async def test_effort_that_the_server_refuses_is_dropped_once(caplog: pytest.LogCaptureFixture) -> None:
    """A model of the catalogue may be served by a proxy that knows less."""
    refusal = Refusal(
        "Invalid JSON payload received. Unknown name \"thinkingLevel\" at 'generation_config.thinking_config': Cannot "
        "find field.",
        param="generation_config.thinking_config",
    )
    async with GeminiDouble(refusal, SUNNY, SUNNY) as vendor:
        async with open_atlas(vendor, settings=ModelSettings(effort="low")) as atlas:
            assert (await atlas.ask("Hi")).text == "Sunny."
            assert (await atlas.ask("Hi")).text == "Sunny."
        assert len(vendor.requests) == 3
        assert ["generationConfig" in body for body in vendor.bodies] == [True, False, False]


class LenientDouble(GeminiDouble):
    """A server whose rules are those of its script."""

    def check(self, request: VendorRequest) -> None:
        pass


@pytest.mark.parametrize(
    ("settings", "field", "message"),
    [
        (ModelSettings(temperature=0.5), "temperature", "no sampling"),
        (ModelSettings(stop=tuple("abcdef")), "stop_sequences", "At most 5 stop sequences are allowed."),
        (ModelSettings(seed=7), "seed", "no seed"),
        (ModelSettings(effort="low"), "thinking_config", "no thinking"),
        (ModelSettings(effort="low"), "", "Thinking level LOW is not supported for this model."),
        (ModelSettings(effort="low"), "", "Thinking is not supported by this model."),
    ],
)
async def test_refused_setting_is_dropped_with_one_warning(
    settings: ModelSettings, field: str, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = Refusal(message, param=f"generation_config.{field}" if field else None)
    async with LenientDouble(refusal, SUNNY, SUNNY) as vendor, open_atlas(vendor, settings=settings) as atlas:
        assert (await atlas.ask("Hi")).text == "Sunny."
        assert (await atlas.ask("Hi")).text == "Sunny."
        assert ["generationConfig" in body for body in vendor.bodies] == [True, False, False]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


# Address and key


@pytest.mark.parametrize("suffix", ["", "/", "/v1beta", "/v1beta/"])
@pytest.mark.parametrize("prefix", ["", "models/"])
async def test_address_and_model_may_be_given_in_the_vendors_forms(suffix: str, prefix: str) -> None:
    async with GeminiDouble(SUNNY) as vendor:
        provider = GeminiProvider(f"{prefix}{LATEST}", base_url=vendor.url + suffix, api_key=KEY)
        await base.complete(provider, base.Request((m.user("Hi"),)))
        await provider.close()
        assert vendor.refusals == []


@pytest.mark.parametrize("variable", ["GOOGLE_API_KEY", "GEMINI_API_KEY"])
async def test_key_is_read_from_either_variable(variable: str) -> None:
    async with GeminiDouble(SUNNY) as vendor:
        environment = Environment({variable: KEY, "GOOGLE_BASE_URL": vendor.url}, dotenv=None)
        provider = Registry(environment).provider("google")
        await base.complete(provider, base.Request((m.user("Hi"),), model=LATEST))
        assert vendor.refusals == []


def test_several_keys_in_either_variable_are_balanced() -> None:
    for variable in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        provider = Registry(Environment({variable: "AIza-one,AIza-two"}, dotenv=None)).provider("google")
        assert [key.reveal() for key in base.collect_keys(provider)] == ["AIza-one", "AIza-two"]


def test_untrusted_folder_cannot_send_the_key_to_another_address(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("GOOGLE_BASE_URL=https://evil.example\nGEMINI_BASE_URL=https://evil.example\n")
    environment = Environment.of_folder(tmp_path, {"GOOGLE_API_KEY": KEY, "ATLAS_HOME": str(tmp_path / "home")})
    provider: Any = Registry(environment).provider("google")
    assert provider.base_url == "https://generativelanguage.googleapis.com"
    assert "GOOGLE_BASE_URL" in environment.ignored


def test_missing_key_and_missing_model_are_explained() -> None:
    with pytest.raises(ConfigError, match="GOOGLE_API_KEY"):
        GeminiProvider(LATEST, environment=NOTHING)
    with pytest.raises(ProviderError, match="no model given"):
        GeminiProvider(api_key=KEY, environment=NOTHING).stream(base.Request((m.user("Hi"),)))
