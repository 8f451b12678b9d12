"""The Responses API against its strict double: reasoning comes back, and what a model refuses is not sent."""

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from atlas_agents import (
    Agent,
    Atlas,
    Conversation,
    File,
    Image,
    Message,
    ModelSettings,
    Opaque,
    OpenAIProvider,
    OpenAIResponsesProvider,
    ProviderError,
    RetryPolicy,
    Thinking,
    ToolCall,
    ToolResult,
    assistant,
    tool,
    tool_message,
    user,
)
from atlas_agents.providers.base import Request
from atlas_agents.providers.catalogue import find_profile
from atlas_agents.providers.openai_responses import encode_request
from atlas_agents.storage.sqlite import SqliteStore
from checks import TIMEOUT
from vendors.common import KEY, Answer, Refusal, Script
from vendors.openai_chat import OpenAIChatDouble
from vendors.openai_compatible import XAIDouble
from vendors.openai_responses import OpenAIResponsesDouble

PNG = Image.of(b"\x89PNG", "image/png")
PDF = File.of(b"%PDF", "bill.pdf")
FAST = RetryPolicy(order="given", backoff=0.001)
CALL = Answer(calls=(("weather", {"city": "Paris"}),), thinking=("Paris it is.",))
TWO_CALLS = Answer("Both.", (("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})), thinking=("One", "Two"))
SUNNY = Answer("Sunny.", thinking=("Clear.",))


@dataclass
class Place:
    city: str
    mayor: str | None = None


@tool
async def weather(city: str, unit: str = "C") -> str:
    """Look up the weather."""
    return f"Sunny in {city}"


@tool
async def photograph(subject: str) -> dict[str, str]:
    """Take a picture."""
    return {"type": "image", "media_type": PNG.media_type, "data": PNG.data, "name": subject}


def provider(double: OpenAIResponsesDouble, model: str = "gpt-5.6-sol", **options: Any) -> OpenAIResponsesProvider:
    return OpenAIResponsesProvider(model, base_url=double.address, api_key=KEY, **options)


def agent(*providers: Any, tools: Any = (weather,), **options: Any) -> Agent:
    return Agent("assistant", providers=list(providers), tools=tools, retry=FAST, **options)


@asynccontextmanager
async def opened(
    *answers: Script, then: Script | None = None, model: str = "gpt-5.6-sol", **options: Any
) -> AsyncGenerator[tuple[OpenAIResponsesDouble, Atlas]]:
    """Open a double, and an Atlas whose agent uses it."""
    async with (
        OpenAIResponsesDouble(*answers, then=then) as double,
        Atlas([agent(provider(double, model), **options)]) as atlas,
    ):
        yield double, atlas


def kinds(body: dict[str, Any]) -> list[str]:
    """The types of a request's items; of a message its role."""
    return [item.get("role") or item["type"] for item in body["input"]]


def reasoning_items(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [item for item in body["input"] if item.get("type") == "reasoning"]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


# Reasoning


async def test_reasoning_comes_back_with_every_later_round_of_a_session() -> None:
    """vercel/ai#7543: the second round with `store: false`."""
    async with opened(CALL, TWO_CALLS, SUNNY, then=SUNNY) as (double, atlas):
        reply = await atlas.send("Weather?").reply()
        await atlas.send("And now?").reply()
    assert reply.text == "Sunny."
    assert double.refusals == []
    assert double.lost_phases == []
    first, second, third, fourth = double.bodies
    assert all(body["store"] is False and "previous_response_id" not in body for body in double.bodies)
    assert [len(reasoning_items(body)) for body in double.bodies] == [0, 1, 2, 3]
    assert kinds(first) == ["user"]
    assert kinds(second) == ["user", "reasoning", "function_call", "function_call_output"]
    assert kinds(third)[4:] == ["reasoning", "assistant", *["function_call"] * 2, *["function_call_output"] * 2]
    assert kinds(fourth)[-3:] == ["reasoning", "assistant", "user"]
    assert third["input"][5]["phase"] == "commentary"
    assert fourth["input"][-2]["phase"] == "final_answer"


async def test_reasoning_between_parallel_calls_keeps_its_place() -> None:
    answer = Answer("Both.", TWO_CALLS.calls, thinking=("Hm.",), extra={"interleaved": True})
    async with opened(answer, SUNNY) as (double, atlas):
        await atlas.ask("Weather?")
    assert double.refusals == []
    expected = ["reasoning", "assistant", "reasoning", "function_call", "reasoning", "function_call"]
    assert kinds(double.bodies[1])[1:7] == expected


async def test_summary_is_streamed_as_thinking_and_its_item_is_stored_verbatim() -> None:
    async with opened(TWO_CALLS, SUNNY) as (double, atlas):
        await atlas.send("Weather?").reply()
        stored = atlas.conversation().messages[1]
    assert [part.text for part in stored.parts if isinstance(part, Thinking)] == ["One\n\nTwo"]
    blocks = [part.block for part in stored.parts if isinstance(part, Opaque)]
    assert blocks[0] == next(iter(double.issued.values())).item
    assert Message.from_json(stored.to_json()) == stored


async def test_stored_reply_is_returned_unchanged_by_another_process() -> None:
    """The messages are decoded from JSON, as after a restart."""
    async with opened(CALL, SUNNY, SUNNY) as (double, atlas):
        await atlas.send("Weather?").reply()
        stored = [message.to_json() for message in atlas.conversation().messages]
        async with Atlas([agent(provider(double))]) as other:
            session = Conversation([Message.from_json(each) for each in stored])
            await other.ask("And now?", session=session)
    assert double.refusals == []
    assert reasoning_items(double.bodies[2]) == [each.item for each in double.issued.values()][:2]
    assert double.bodies[2]["input"][: len(double.bodies[1]["input"])] == double.bodies[1]["input"]


@pytest.mark.parametrize("stop", ["max_output_tokens", "content_filter"])
async def test_reasoning_without_its_successor_is_not_returned(stop: str) -> None:
    """vercel/ai#7099: the reply was cut while the model reasoned."""
    cut = Answer(thinking=("Hm.",), stop=stop)
    async with opened(cut, then=SUNNY, tools=()) as (double, atlas):
        reply = await atlas.send("Weather?").reply()
        await atlas.send("And now?").reply()
    assert reply.metadata["stop_reason"] == ("length" if stop == "max_output_tokens" else "refusal")
    filtered = "The model refused to answer: the vendor's content filter stopped it"
    assert reply.refusal == (filtered if stop == "content_filter" else "")
    assert double.refusals == []
    assert kinds(double.bodies[1]) == ["user", "user"]


async def test_reasoning_of_a_cancelled_reply_is_not_returned() -> None:
    hanging = Answer("Sunny in Paris, and in Rome. " * 9, thinking=("Hm.",), hangs=True)
    async with opened(hanging, SUNNY) as (double, atlas):
        stream = atlas.send("Weather?")
        async for _ in stream:
            if stream.text:
                break
        stream.cancel()
        async for _ in stream:
            pass
        await atlas.send("And now?").reply()
    assert double.refusals == []
    assert reasoning_items(double.bodies[1]) == []


async def test_reasoning_whose_successor_was_removed_is_not_returned() -> None:
    """vercel/ai#7099: a program changed the history."""
    async with opened(TWO_CALLS, SUNNY, then=SUNNY) as (double, atlas):
        await atlas.send("Weather?").reply()
        question, calls, _, answer = atlas.conversation().messages
        kept = tuple(part for part in calls.parts if not isinstance(part, ToolCall))
        emptied = answer.with_text("")
        for history in ([question, msgspec.structs.replace(calls, parts=kept)], [question, emptied]):
            await atlas.ask("And now?", session=Conversation(history))
    assert double.refusals == []
    assert [reasoning_items(body) for body in double.bodies[2:]] == [[], []]


async def test_refused_reasoning_is_dropped_once_and_the_turn_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    """codex#17541: encrypted content belongs to one organisation. New reasoning is returned again."""
    async with opened(CALL, SUNNY, CALL, then=SUNNY) as (double, atlas):
        await atlas.send("Weather?").reply()
        double.issued.clear()
        reply = await atlas.send("And now?").reply()
        assert reply.text == "Sunny."
        await atlas.send("And then?").reply()
    assert [refusal.code for refusal in double.refusals] == ["invalid_encrypted_content"]
    assert [len(reasoning_items(body)) for body in double.bodies] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    "refusal",
    [
        Refusal("Encrypted content could not be verified", code="invalid_encrypted_content"),
        Refusal("Item with id 'rs_1' not found. Items are not persisted when `store` is set to false.", status=404),
        Refusal("Item 'rs_1' of type 'reasoning' was provided without its required following item.", param="input"),
        Refusal("Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'."),
    ],
    ids=["of another organisation", "not found", "without its successor", "without its reasoning"],
)
async def test_every_refusal_of_reasoning_leads_to_a_request_without_it(refusal: Refusal) -> None:
    async with opened(CALL, refusal, SUNNY) as (double, atlas):
        assert (await atlas.ask("Weather?")).text == "Sunny."
    assert [len(reasoning_items(body)) for body in double.bodies] == [0, 1, 0]
    assert "id" not in double.bodies[2]["input"][1]


async def test_reasoning_that_is_refused_twice_ends_the_turn() -> None:
    refusal = Refusal("Encrypted content could not be verified", code="invalid_encrypted_content")
    async with opened(CALL, refusal, refusal) as (double, atlas):
        with pytest.raises(ProviderError, match="could not be verified"):
            await atlas.ask("Weather?")
    assert len(double.bodies) == 3


async def test_failover_does_not_send_encrypted_reasoning_to_another_address_or_model() -> None:
    """codex#17541."""
    down = Refusal("overloaded", status=503)
    for model in ("gpt-5.6-sol", "gpt-5.5"):
        async with (
            OpenAIResponsesDouble(CALL, then=down) as first,
            OpenAIResponsesDouble(CALL, SUNNY) as second,
            Atlas([agent(provider(first), provider(second, model))]) as atlas,
        ):
            assert (await atlas.ask("Weather?")).text == "Sunny."
        assert first.refusals == second.refusals == []
        assert [len(reasoning_items(body)) for body in second.bodies] == [0, 1]


async def test_chat_completions_do_not_get_what_only_the_responses_api_understands() -> None:
    down = Refusal("overloaded", status=503)
    async with (
        OpenAIResponsesDouble(TWO_CALLS, then=down) as first,
        OpenAIChatDouble(Answer("Sunny.")) as second,
        Atlas([agent(provider(first), OpenAIProvider("gpt-4.1", base_url=second.address, api_key=KEY))]) as atlas,
    ):
        assert (await atlas.ask("Weather?")).text == "Sunny."
    assert second.refusals == []


# Which API serves a model


async def test_tools_with_reasoning_go_to_the_responses_api() -> None:
    """atlas-ui-3#756: GPT-5.6 reasons by default, and chat completions refuse tools with it."""
    async with OpenAIResponsesDouble(CALL, SUNNY) as double:
        chosen = OpenAIProvider("gpt-5.6-sol", base_url=double.address, api_key=KEY, profile="gpt-5.6")
        async with Atlas([agent(chosen)]) as atlas:
            assert (await atlas.ask("Weather?")).text == "Sunny."
    assert {request.path for request in double.requests} == {"/v1/responses"}
    assert [len(reasoning_items(body)) for body in double.bodies] == [0, 1]


@pytest.mark.parametrize("host", ["api.openai.com", "resource.openai.azure.com"])
async def test_openai_and_azure_need_no_profile(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with OpenAIResponsesDouble(CALL, SUNNY) as double:
        monkeypatch.setenv("http_proxy", double.url)  # the double receives what is sent to the host
        chosen = OpenAIProvider("gpt-5.6-sol", base_url=f"http://{host}/v1", api_key=KEY)
        async with Atlas([agent(chosen)]) as atlas:
            assert (await atlas.ask("Weather?")).text == "Sunny."
    assert double.refusals == []
    assert [request.headers["host"] for request in double.requests] == [host] * 2


@pytest.mark.parametrize(
    ("model", "effort", "tools", "path"),
    [
        ("gpt-5.6-sol", None, True, "responses"),
        ("gpt-5.6-sol", "none", True, "chat/completions"),
        ("gpt-5.6-sol", None, False, "chat/completions"),
        ("gpt-5.4", None, True, "chat/completions"),
        ("gpt-5.4", "high", True, "responses"),
        ("gpt-6-astra", "none", True, "responses"),
        ("gpt-5-pro", None, False, "responses"),
        ("gpt-4.1", None, True, "chat/completions"),
        ("another-model", "high", True, "chat/completions"),
    ],
)
async def test_model_and_request_decide_between_the_two_apis(model: str, effort: Any, tools: bool, path: str) -> None:
    async with OpenAIChatDouble(then=Answer("Sunny.")) as double:
        chosen = OpenAIProvider(model, base_url=double.address, api_key=KEY, profile=model)
        options = {"settings": ModelSettings(effort=effort), "tools": (weather,) if tools else ()}
        async with Atlas([agent(chosen, **options)]) as atlas:
            with suppress(ProviderError):
                await atlas.ask("Weather?")
    assert double.requests[0].path == f"/v1/{path}"


# Settings


async def test_settings_are_sent_under_the_names_of_this_api() -> None:
    settings = ModelSettings(
        max_tokens=500, service_tier="flex", parallel_tool_calls=False, effort="max", extra_body={"truncation": "auto"}
    )
    async with opened(SUNNY, settings=settings, system_prompt="Be brief.") as (double, atlas):
        await atlas.ask("Weather?")
    assert double.refusals == []
    (body,) = double.bodies
    assert (body["max_output_tokens"], body["service_tier"], body["parallel_tool_calls"]) == (500, "flex", False)
    assert (body["reasoning"], body["truncation"]) == ({"effort": "max", "summary": "auto"}, "auto")
    assert (body["instructions"], body["include"]) == ("Be brief.", ["reasoning.encrypted_content"])
    assert body["prompt_cache_key"]


async def test_settings_that_this_api_does_not_have_are_dropped_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = ModelSettings(stop=("END",), seed=1, temperature=0.5, top_p=0.9)
    async with opened(CALL, then=SUNNY, settings=settings) as (double, atlas):
        await atlas.ask("Weather?")
        await atlas.ask("Weather?")
    assert double.refusals == []
    found = [message.split("setting=")[1].split()[0] for message in warnings(caplog)]
    assert sorted(found) == ["seed", "stop", "temperature", "top_p"]


async def test_sampling_is_accepted_while_the_model_does_not_reason() -> None:
    settings = ModelSettings(effort="none", temperature=0.5, top_p=0.9)
    async with OpenAIResponsesDouble(SUNNY, SUNNY) as double:
        for model in ("gpt-5.6-sol", "gpt-4.1"):
            async with Atlas([agent(provider(double, model), settings=settings)]) as atlas:
                await atlas.ask("Weather?")
    assert double.refusals == []
    assert [(body["temperature"], body["top_p"], body.get("reasoning")) for body in double.bodies] == [
        (0.5, 0.9, {"effort": "none"}),
        (0.5, 0.9, None),
    ]


async def test_fewer_tokens_than_the_api_accepts_are_raised_to_its_minimum() -> None:
    async with opened(SUNNY, max_tokens=5) as (double, atlas):
        await atlas.ask("Weather?")
    assert [body["max_output_tokens"] for body in double.bodies] == [16]


async def test_summary_is_not_requested_again_after_it_was_refused(caplog: pytest.LogCaptureFixture) -> None:
    """windmill-labs/windmill#10147: only verified organisations get summaries."""
    refusal = Refusal(
        "Your organization must be verified to generate reasoning summaries.",
        code="unsupported_value",
        param="reasoning.summary",
    )
    async with opened(refusal, then=SUNNY) as (double, atlas):
        await atlas.ask("Weather?")
        await atlas.ask("Weather?")
    assert [body.get("reasoning") for body in double.bodies] == [{"summary": "auto"}, None, None]
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize(("model", "summary"), [("gpt-5.6", "auto"), ("o3", "auto"), ("gpt-oss-120b", None)])
def test_summary_is_requested_of_models_of_openai_only(model: str, summary: str | None) -> None:
    request = Request([user("Weather?")], settings=ModelSettings(effort="low"))
    body = msgspec.json.decode(encode_request(request, model, "", find_profile(model)))
    assert (body["reasoning"]["effort"], body["reasoning"].get("summary")) == ("low", summary)


@pytest.mark.parametrize("choice", ["required", "weather", "none"])
async def test_tool_choice_is_sent_flat(choice: str) -> None:
    async with opened(then=SUNNY, tool_choice=choice) as (double, atlas):
        await atlas.ask("Weather?")
    assert double.refusals == []
    expected = {"type": "function", "name": "weather"} if choice == "weather" else choice
    assert double.bodies[0]["tool_choice"] == expected


@pytest.mark.parametrize(
    ("model", "effort", "sent"),
    [
        ("grok-4.7", "max", {"effort": "xhigh"}),
        ("grok-4.5", "none", {"effort": "low"}),
        ("grok-4.3", "none", {"effort": "none"}),
    ],
)
async def test_effort_is_the_nearest_that_grok_has(model: str, effort: Any, sent: Any) -> None:
    async with XAIDouble(SUNNY) as double:
        chosen = OpenAIProvider(model, base_url=double.address, api_key=KEY, id="xai")
        async with Atlas([agent(chosen, settings=ModelSettings(effort=effort))]) as atlas:
            await atlas.ask("Weather?")
    assert double.refusals == []
    assert double.bodies[0]["reasoning"] == sent


async def test_effort_is_left_out_after_a_grok_model_refused_it(caplog: pytest.LogCaptureFixture) -> None:
    """JetBrains/junie#39."""
    async with XAIDouble(then=SUNNY) as double:
        chosen = OpenAIProvider("grok-4.20", base_url=double.address, api_key=KEY, id="xai")
        async with Atlas([agent(chosen, settings=ModelSettings(effort="high"))]) as atlas:
            for _ in range(2):
                assert (await atlas.ask("Weather?")).text == "Sunny."
    assert [body.get("reasoning") for body in double.bodies] == [{"effort": "high"}, None, None]
    assert len(warnings(caplog)) == 1


# Content


async def test_image_of_a_tool_is_in_the_output_of_its_call() -> None:
    taken = Answer(calls=(("photograph", {"subject": "cat"}),))
    async with opened(taken, SUNNY, tools=(photograph,)) as (double, atlas):
        await atlas.ask("What is it?")
    assert double.refusals == []
    output = double.bodies[1]["input"][-1]["output"]
    assert [part["type"] for part in output] == ["input_text", "input_image"]
    assert output[1]["image_url"] == f"data:image/png;base64,{PNG.data}"


async def test_images_and_files_are_attached_by_content_or_address() -> None:
    question = user(
        "What is ",
        PNG,
        Image("image/png", url="https://example.com/cat.png"),
        Image("image/png", url="http://127.0.0.1/cat.png"),
        PDF,
        File("b.pdf", "application/pdf", url="https://example.com/b.pdf"),
        File.of(b"one,two", "a.csv", "text/csv"),
        File.of(b"RIFF", "a.wav", "audio/wav"),
    )
    async with opened(SUNNY) as (double, atlas):
        await atlas.ask(question)
    assert double.refusals == []
    parts = double.bodies[0]["input"][0]["content"]
    assert [part["type"].removeprefix("input_") for part in parts] == [
        *["text", "image", "image", "text", "file", "file", "text", "text"]
    ]
    assert parts[4]["filename"] == "bill.pdf"
    assert parts[5]["file_url"] == "https://example.com/b.pdf"
    assert "one,two" in parts[6]["text"]


async def test_history_of_another_vendor_is_accepted() -> None:
    past = [
        user("Weather?"),
        assistant(Thinking("Hm", "c2ln"), "Looking.", ToolCall("toolu_1", "weather", {"city": "Paris"})),
        tool_message(ToolResult("toolu_1", "error", "no network", "failed")),
        assistant(Opaque("anthropic", {"type": "redacted_thinking", "data": "x"}), "No luck."),
    ]
    async with opened(SUNNY) as (double, atlas):
        await atlas.ask("Again?", session=Conversation(past))
    assert double.refusals == []
    assert kinds(double.bodies[0]) == [
        *["user", "assistant", "function_call", "function_call_output", "assistant", "user"]
    ]


async def test_typed_output_is_strict() -> None:
    answer = Answer('{"city":"Paris","mayor":null}')
    async with opened(answer) as (double, atlas):
        result = await atlas.run("Where?", output=Place)
    assert double.refusals == []
    assert result.output == Place("Paris")
    format = double.bodies[0]["text"]["format"]
    assert (format["type"], format["strict"]) == ("json_schema", True)


async def test_refusal_ends_the_turn_as_refused_and_comes_back_as_such() -> None:
    refused = Answer("I cannot.", thinking=("No.",), extra={"refusal": True})
    async with opened(refused, SUNNY) as (double, atlas):
        reply = await atlas.send("Weather?").reply()
        await atlas.send("Please?").reply()
    assert (reply.text, reply.metadata["stop_reason"], reply.metadata["refused"]) == ("I cannot.", "refusal", True)
    assert double.refusals == []
    assert double.bodies[1]["input"][2]["content"] == [{"type": "refusal", "refusal": "I cannot."}]


async def test_usage_has_cached_written_and_reasoning_tokens() -> None:
    usage = {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 15},
        "total_tokens": 120,
    }
    async with opened(Answer("Sunny.", usage=usage)) as (_, atlas):
        result = await atlas.run("Weather?")
    found = result.usage
    assert (found.input_tokens, found.cached_tokens, found.cache_write_tokens) == (100, 60, 30)
    assert (found.output_tokens, found.reasoning_tokens) == (20, 15)


async def test_double_accepts_the_conversation_of_the_official_sdk() -> None:
    """The vendor's own client returns the output as it is, which the double has to accept."""
    specs = [{"type": "function", "name": "weather", "parameters": weather.parameters, "strict": False}]
    options: Any = {"model": "gpt-5.6-sol", "store": False, "include": ["reasoning.encrypted_content"], "tools": specs}
    history: list[Any] = [{"role": "user", "content": "Weather?"}]
    async with (
        OpenAIResponsesDouble(TWO_CALLS, SUNNY) as double,
        openai.AsyncOpenAI(base_url=double.address, api_key=KEY, max_retries=0) as client,
    ):
        api: Any = client.responses
        first = await api.create(input=history, **options)
        calls = [item for item in first.output if item.type == "function_call"]
        history += [item.model_dump(exclude_none=True) for item in first.output]
        history += [{"type": "function_call_output", "call_id": call.call_id, "output": "Sunny"} for call in calls]
        async with api.stream(input=history, **options) as stream:
            final = await stream.get_final_response()
    assert final.output_text == "Sunny."
    assert double.refusals == []


# After a crash

CRASHING = """
import asyncio, os, signal, sys
from atlas_agents import Agent, Atlas, OpenAIResponsesProvider, tool
from atlas_agents.storage.sqlite import SqliteStore

@tool(effect="keyed")
async def weather(city: str) -> str:
    "Look up the weather."
    os.kill(os.getpid(), signal.SIGKILL)

async def main(address, key, path):
    store = SqliteStore(path)
    await store.open()
    model = OpenAIResponsesProvider("gpt-5.6-sol", base_url=address, api_key=key)
    async with Atlas([Agent("assistant", model=model, tools=[weather])], store=store) as atlas:
        await atlas.ask("Weather?", session="s")

asyncio.run(main(*sys.argv[1:]))
"""


async def test_reasoning_is_returned_verbatim_after_the_process_was_killed(tmp_path: Path) -> None:
    @tool(name="weather", effect="keyed")
    async def repeated(city: str) -> str:
        """Look up the weather."""
        return f"Sunny in {city}"

    path = tmp_path / "atlas.db"
    async with OpenAIResponsesDouble(TWO_CALLS, SUNNY) as double:
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", CRASHING, double.address, KEY, str(path))
        assert await asyncio.wait_for(child.wait(), TIMEOUT) == -signal.SIGKILL
        store = SqliteStore(path)
        await store.open()
        async with Atlas([agent(provider(double), tools=(repeated,))], store=store) as atlas:
            (stream,) = await atlas.recover()
            assert (await stream.reply()).text == "Sunny."
        await store.close()
    assert double.refusals == []
    (issued, *_) = double.issued.values()
    assert reasoning_items(double.bodies[1]) == [issued.item]
    assert kinds(double.bodies[1])[1:5] == ["reasoning", "assistant", "function_call", "function_call"]
