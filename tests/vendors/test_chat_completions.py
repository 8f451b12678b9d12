"""Chat completions against strict doubles of OpenAI, DeepSeek and vendors with the same format."""

import asyncio
import dataclasses
import json
import signal
import sys
from pathlib import Path
from typing import Any

import openai
import pytest

from atlas_agents import (
    Agent,
    Atlas,
    Conversation,
    File,
    Image,
    ModelSettings,
    ToolCall,
    ToolResult,
    assistant,
    system,
    tool,
    tool_message,
    user,
)
from atlas_agents.core.errors import ProviderError
from atlas_agents.core.events import Usage
from atlas_agents.providers.base import (
    Chunk,
    DoneChunk,
    OpaqueChunk,
    Request,
    TextChunk,
    ThinkingChunk,
    ToolCallChunk,
    complete,
)
from atlas_agents.providers.failover import RetryPolicy
from atlas_agents.providers.openai import OpenAIProvider, OpenAIReader, encode_request, find_variant
from checks import TIMEOUT
from vendors import killed_turn
from vendors.common import KEY, Answer, Refusal, VendorRequest, sse
from vendors.deepseek import DeepSeekDouble
from vendors.openai_chat import OpenAIChatDouble
from vendors.openai_compatible import (
    GeminiChatDouble,
    GroqDouble,
    MistralDouble,
    OpenRouterDouble,
    VertexChatDouble,
    VLLMDouble,
    tool_use_failed,
)

PNG = Image.of(b"\x89PNG", "image/png")
FAST = RetryPolicy(order="given", backoff=0.001)


@dataclasses.dataclass
class Place:
    city: str
    mayor: str | None = None


@tool
async def weather(city: str) -> str:
    """Look up the weather."""
    return f"Sunny in {city}"


@tool
async def photograph(subject: str) -> dict[str, str]:
    """Take a picture."""
    return {"type": "image", "media_type": PNG.media_type, "data": PNG.data, "name": subject}


_NAMES: dict[type[OpenAIChatDouble], str] = {
    DeepSeekDouble: "deepseek",
    OpenRouterDouble: "openrouter",
    MistralDouble: "mistral",
    GroqDouble: "groq",
    GeminiChatDouble: "google",
}


def provider(double: OpenAIChatDouble, model: str) -> OpenAIProvider:
    return OpenAIProvider(model, base_url=double.address, api_key=KEY, id=_NAMES.get(type(double)))


def agent(*providers: OpenAIProvider, tools: Any = (weather,), **options: Any) -> Agent:
    return Agent("assistant", providers=list(providers), tools=tools, retry=FAST, **options)


CALL = Answer(calls=(("weather", {"city": "Paris"}),), thinking=("Paris it ", "is."))
TWO_CALLS = Answer(calls=(("weather", {"city": "Rome"}), ("weather", {"city": "Oslo"})), thinking=("Both.",))
THREE_ROUNDS = (CALL, TWO_CALLS, Answer("Sunny everywhere."))
REASONING_VENDORS: list[tuple[type[OpenAIChatDouble], str]] = [
    (DeepSeekDouble, "deepseek-v4-pro"),
    (OpenRouterDouble, "anthropic/claude-opus-5"),
    (GeminiChatDouble, "gemini-3.1-pro"),
    (VertexChatDouble, "gemini-3.1-pro"),
    (MistralDouble, "magistral-medium"),
    (GroqDouble, "openai/gpt-oss-120b"),
]


@pytest.mark.parametrize("vendor", [GeminiChatDouble, VertexChatDouble])
async def test_signatures_come_back_verbatim_in_every_later_request(vendor: type[OpenAIChatDouble]) -> None:
    """hermes-agent#15054. The reasoning of other vendors is a column of `test_model_families.py`."""
    async with (
        vendor(*THREE_ROUNDS, CALL, Answer("Still sunny.")) as double,
        Atlas([agent(provider(double, "gemini-3.1-pro"))]) as atlas,
    ):
        session = Conversation()
        assert (await atlas.ask("Weather?", session=session)).text == "Sunny everywhere."
        assert (await atlas.ask("And now?", session=session)).text == "Still sunny."
    assert double.refusals == []
    assert double.ignored == set()


async def test_reasoning_is_kept_after_the_history_was_stored_and_loaded() -> None:
    async with (
        DeepSeekDouble(CALL, Answer("Sunny."), Answer("Yes.")) as double,
        Atlas([agent(provider(double, "deepseek-v4-pro"))]) as atlas,
    ):
        session = Conversation()
        await atlas.ask("Weather?", session=session)
        stored = [type(message).from_json(message.to_json()) for message in session.messages]
        await atlas.ask("Sure?", session=Conversation(stored))
    assert double.refusals == []
    assert double.bodies[-1]["messages"][1]["reasoning_content"] == "Paris it is."


@pytest.mark.parametrize(
    ("vendor", "name", "model"),
    [(DeepSeekDouble, "openai", "deepseek-v4-pro"), (OpenRouterDouble, "openrouter", "anthropic/claude-opus-5")],
)
async def test_reasoning_is_kept_when_the_process_is_killed_while_a_tool_runs(
    vendor: type[OpenAIChatDouble], name: str, model: str, tmp_path: Path
) -> None:
    async with vendor(CALL, Answer("Sunny.")) as double:
        arguments = (double.address, name, model, str(tmp_path / "atlas.db"))
        process = await asyncio.create_subprocess_exec(sys.executable, killed_turn.__file__, *arguments)
        assert await asyncio.wait_for(process.wait(), TIMEOUT) == -signal.SIGKILL
        assert await killed_turn.run_turn(*arguments) == ["Sunny."]
    assert double.refusals == []
    assert len(double.bodies) == 2


async def test_reasoning_of_another_vendor_is_not_sent_to_deepseek() -> None:
    """qwen-code#3578, pi#3636: a failover turn has no reasoning_content, and DeepSeek wants the field all the same."""
    async with (
        GroqDouble(CALL, Answer("Sunny.")) as groq,
        DeepSeekDouble(CALL, Answer("Yes."), Answer("Yes.")) as deepseek,
    ):
        session = Conversation()
        async with Atlas([agent(provider(groq, "openai/gpt-oss-120b"))]) as atlas:
            await atlas.ask("Weather?", session=session)
        async with Atlas([agent(provider(deepseek, "deepseek-v4-pro"))]) as atlas:
            await atlas.ask("Sure?", session=session)
        async with Atlas([agent(provider(groq, "openai/gpt-oss-120b"))]) as atlas:
            groq.add(Answer("Bye."))
            await atlas.ask("Thanks.", session=session)
    assert deepseek.refusals == groq.refusals == []
    assert deepseek.bodies[0]["messages"][1]["reasoning_content"] == ""
    assert "Paris" not in json.dumps([message.get("reasoning_content") for message in groq.bodies[-1]["messages"]])


async def test_tool_image_follows_in_a_user_message_after_all_results() -> None:
    """OpenHands#7700."""
    calls = Answer(calls=(("photograph", {"subject": "cat"}), ("weather", {"city": "Rome"})))
    async with (
        OpenAIChatDouble(calls, Answer("A cat.")) as double,
        Atlas([agent(provider(double, "gpt-4.1"), tools=[weather, photograph])]) as atlas,
    ):
        await atlas.ask("Show me a cat.")
    assert double.refusals == []
    roles = [message["role"] for message in double.bodies[1]["messages"]]
    assert roles == ["user", "assistant", "tool", "tool", "user"]
    text, image = double.bodies[1]["messages"][-1]["content"]
    assert double.bodies[1]["messages"][2]["tool_call_id"] in text["text"]
    assert image["image_url"]["url"] == f"data:image/png;base64,{PNG.data}"
    assert PNG.data not in double.bodies[1]["messages"][2]["content"]


async def test_tool_image_reaches_mistral_which_allows_no_user_message_after_a_result() -> None:
    async with (
        MistralDouble(Answer(calls=(("photograph", {"subject": "cat"}),)), Answer("A cat.")) as double,
        Atlas([agent(provider(double, "mistral-large"), tools=[photograph])]) as atlas,
    ):
        await atlas.ask("Show me a cat.")
    assert double.refusals == []
    assert PNG.data in json.dumps(double.bodies[1]["messages"][-1])


IMAGE_ERRORS = [
    Refusal("Qwen4-32B is not a multimodal model"),  # vLLM
    Refusal("image input is not supported - hint: you may need to provide the mmproj", status=500),  # llama.cpp
    Refusal("No endpoints found that support image input", status=404),  # OpenRouter
    Refusal("Failed to deserialize: unknown variant `image_url`, expected `text`"),  # DeepSeek
]


@pytest.mark.parametrize("error", IMAGE_ERRORS, ids=str)
async def test_model_without_vision_gets_a_note_in_place_of_an_image(error: Refusal) -> None:
    def answer(request: VendorRequest) -> Answer | Refusal:
        return error if PNG.data in request.raw.decode() else Answer("A cat.")

    photo = Answer(calls=(("photograph", {"subject": "cat"}),))
    async with (
        OpenAIChatDouble(photo, answer, answer, answer, photo, answer) as double,
        Atlas([agent(provider(double, "gpt-4.1"), tools=[photograph])]) as atlas,
    ):
        for question in ("Show me a cat.", user("Is this one?", PNG), "Show me a cat."):
            assert (await atlas.ask(question)).text == "A cat."
    assert len(double.bodies) == 6


async def test_image_that_is_refused_for_itself_is_an_error() -> None:
    """A model with vision would answer without having seen it."""
    async with (
        OpenAIChatDouble(Refusal("Invalid image: only images of at most 20 MB are supported.")) as double,
        Atlas([agent(provider(double, "gpt-4.1"))]) as atlas,
    ):
        with pytest.raises(ProviderError, match="20 MB"):
            await atlas.ask(user("What is this?", PNG))
    assert len(double.bodies) == 1


@pytest.mark.parametrize("status", [400, 500])
async def test_system_message_inside_a_conversation_is_rewritten_if_the_template_refuses_it(status: int) -> None:
    """llama.cpp#20733; vLLM passes the template's error on in the same way."""

    def answer(request: VendorRequest) -> Answer | Refusal:
        late = "system" in [message["role"] for message in request.body["messages"][1:]]
        return Refusal("System message must be at the beginning.", status=status) if late else Answer("Oui.")

    past = [user("Hello."), assistant("Hello."), system("Speak French.")]
    async with (
        OpenAIChatDouble(answer, answer, answer) as double,
        Atlas([agent(provider(double, "gpt-4.1"), system_prompt="Be brief.")]) as atlas,
    ):
        for _ in range(2):
            assert (await atlas.ask("Yes?", session=Conversation(past))).text == "Oui."
    assert len(double.bodies) == 3
    assert double.bodies[-1]["messages"][3] == {"role": "user", "content": "<system>\nSpeak French.\n</system>"}


FILES = {
    "pdf": File.of(b"%PDF", "bill.pdf"),
    "text": File.of("Grüße".encode(), "notes.txt", "text/plain"),
    "json": File.of(b'{"a":1}', "data.json", "application/json"),
    "public url": File("report.pdf", "application/pdf", url="https://example.com/report.pdf"),
    "private url": File("report.pdf", "application/pdf", url="http://10.0.0.1/report.pdf"),
    "data url": File("report.pdf", "application/pdf", url="data:application/pdf;base64,JVBERg=="),
    "flac": File.of(b"fLaC", "song.flac", "audio/flac"),
    "audio for a model that does not hear": File.of(b"RIFF", "song.wav", "audio/wav"),
}


@pytest.mark.parametrize("kind", FILES)
async def test_every_kind_of_file_is_accepted(kind: str) -> None:
    async with OpenAIChatDouble(Answer("Read.")) as double, Atlas([agent(provider(double, "gpt-4.1"))]) as atlas:
        await atlas.ask(user("Read this.", FILES[kind]))
    assert double.refusals == []
    part = double.bodies[0]["messages"][0]["content"][1]
    match kind:
        case "pdf" | "data url":
            assert part["file"]["file_data"] == "data:application/pdf;base64,JVBERg=="
        case "text":
            assert "Grüße" in part["text"]
            assert "notes.txt" in part["text"]
        case "json":
            assert '{"a":1}' in part["text"]
        case "public url":
            assert "https://example.com/report.pdf" in part["text"]
        case "private url":
            assert "10.0.0.1" not in part["text"]
        case _:
            assert FILES[kind].name in part["text"]


FILE_ERRORS = [
    Refusal("Unsupported chat content part type: 'file'."),  # vLLM
    Refusal("unsupported content[].type"),  # llama.cpp
    Refusal("invalid message format"),  # Ollama
    Refusal("Invalid Value: 'file'. This model does not support file content types."),  # OpenAI
]


@pytest.mark.parametrize("error", FILE_ERRORS, ids=str)
async def test_server_without_files_gets_a_note_in_place_of_one(error: Refusal) -> None:
    async with (
        OpenAIChatDouble(error, then=Answer("Read.")) as double,
        Atlas([agent(provider(double, "gpt-4.1"))]) as atlas,
    ):
        for _ in range(2):
            assert (await atlas.ask(user("Read this.", FILES["pdf"]))).text == "Read."
    assert len(double.bodies) == 3
    assert "[not attached: the file bill.pdf; application/pdf is not accepted]" in str(double.bodies[-1])


async def test_text_file_is_sent_to_a_server_without_files() -> None:
    async with DeepSeekDouble(Answer("Read.")) as double, Atlas([agent(provider(double, "deepseek-v4-pro"))]) as atlas:
        await atlas.ask(user("Read this.", FILES["text"]))
    assert double.refusals == []
    assert "Grüße" in str(double.bodies[0])


async def test_openrouter_reads_documents_for_every_model() -> None:
    """openrouter.ai/docs/features/multimodal/pdfs."""
    async with (
        OpenRouterDouble(Answer("Read.")) as double,
        Atlas([agent(provider(double, "deepseek/deepseek-v4-pro"))]) as atlas,
    ):
        await atlas.ask(user("Read this.", FILES["pdf"], PNG))
    assert double.refusals == []
    assert [part["type"] for part in double.bodies[0]["messages"][0]["content"]] == ["text", "file", "text"]


@pytest.mark.parametrize("kind", ["pdf", "public url", "data url"])
async def test_document_for_mistral_has_an_address(kind: str) -> None:
    async with MistralDouble(Answer("Read.")) as double, Atlas([agent(provider(double, "mistral-large"))]) as atlas:
        await atlas.ask(user("Read this.", FILES[kind]))
    assert double.refusals == []
    url = double.bodies[0]["messages"][0]["content"][1]["document_url"]
    assert url == (FILES[kind].url or "data:application/pdf;base64,JVBERg==")


@pytest.mark.parametrize(("media_type", "format"), [("audio/wav", "wav"), ("audio/mpeg", "mp3"), ("audio/mp3", "mp3")])
async def test_audio_is_sent_to_an_audio_model(media_type: str, format: str) -> None:
    async with (
        OpenAIChatDouble(Answer("Music.")) as double,
        Atlas([agent(provider(double, "gpt-audio"), tools=[])]) as atlas,
    ):
        await atlas.ask(user("Listen.", File.of(b"RIFF", "song", media_type)))
    assert double.refusals == []
    assert double.bodies[0]["messages"][0]["content"][1]["input_audio"] == {"data": "UklGRg==", "format": format}


async def test_limit_has_the_name_that_the_model_wants_at_any_address() -> None:
    """opencode#37964."""
    async with OpenAIChatDouble(then=Answer("Hi.")) as double:
        for model, expected in (("gpt-5.1", "max_completion_tokens"), ("gpt-4.1", "max_tokens")):
            async with Atlas([agent(provider(double, model), max_tokens=99)]) as atlas:
                await atlas.ask("Hi.")
            assert double.bodies[-1][expected] == 99
    assert double.refusals == []


async def test_name_of_the_limit_is_learned_for_a_deployment_whose_model_is_unknown() -> None:
    class Deployment(OpenAIChatDouble):
        def check_model(self, body: dict[str, Any]) -> None:
            super().check_model({**body, "model": "gpt-5.1"})

    async with (
        Deployment(then=Answer("Hi.")) as double,
        Atlas([agent(provider(double, "my-deployment"), max_tokens=99)]) as atlas,
    ):
        await atlas.ask("Hi.")
        await atlas.ask("Hi again.")
    assert len(double.refusals) == 1
    assert [body.get("max_completion_tokens") for body in double.bodies] == [None, 99, 99]
    assert "max_tokens" not in double.bodies[-1]


async def test_settings_reach_openai_by_their_names() -> None:
    settings = ModelSettings(
        top_p=0.5,
        seed=7,
        service_tier="flex",
        parallel_tool_calls=False,
        effort="none",
        extra_body={"verbosity": "low"},
    )
    async with (
        OpenAIChatDouble(then=Answer("Hi.")) as double,
        Atlas([agent(provider(double, "gpt-5.6-sol"), settings=settings, temperature=0.5)]) as atlas,
    ):
        await atlas.ask("Hi.")
        async with Atlas([agent(provider(double, "gpt-4.1"), settings=settings, tools=[])]) as atlas:
            await atlas.ask("Hi.")
    assert double.refusals == []
    first, second = double.bodies
    assert {name: first[name] for name in ("top_p", "seed", "service_tier", "parallel_tool_calls", "verbosity")} == {
        "top_p": 0.5,
        "seed": 7,
        "service_tier": "flex",
        "parallel_tool_calls": False,
        "verbosity": "low",
    }
    assert (first["reasoning_effort"], first["temperature"]) == ("none", 0.5)
    assert not {"parallel_tool_calls", "reasoning_effort"} & set(second)


EFFORTS: list[tuple[type[OpenAIChatDouble], str, Any, dict[str, Any]]] = [
    (OpenAIChatDouble, "gpt-5.1", "high", {"reasoning_effort": "high"}),
    (OpenAIChatDouble, "gpt-5.6-sol", "max", {"reasoning_effort": "xhigh"}),
    (OpenAIChatDouble, "gpt-6-astra", "none", {"reasoning_effort": "low"}),
    (OpenAIChatDouble, "gpt-4.1", "high", {}),
    (DeepSeekDouble, "deepseek-v4-pro", "low", {"thinking": {"type": "enabled"}, "reasoning_effort": "low"}),
    (DeepSeekDouble, "deepseek-v4-pro", "none", {"thinking": {"type": "disabled"}}),
    (OpenRouterDouble, "anthropic/claude-opus-5", "high", {"reasoning": {"effort": "high"}}),
    (OpenRouterDouble, "anthropic/claude-sonnet-4-5", 4000, {"reasoning": {"max_tokens": 4000}}),
    (OpenRouterDouble, "anthropic/claude-opus-5", "none", {"reasoning": {"effort": "none"}}),
    (GroqDouble, "openai/gpt-oss-120b", "high", {"reasoning_effort": "high"}),
    (GroqDouble, "openai/gpt-oss-120b", 3000, {"reasoning_effort": "low"}),
    (GeminiChatDouble, "gemini-3.1-pro", "low", {"reasoning_effort": "low"}),
    (GeminiChatDouble, "gemini-2.5-flash", "none", {"reasoning_effort": "none"}),
    (
        GeminiChatDouble,
        "gemini-2.5-flash",
        2000,
        {"extra_body": {"google": {"thinking_config": {"thinking_budget": 2000}}}},
    ),
]


@pytest.mark.parametrize(("vendor", "model", "effort", "expected"), EFFORTS)
async def test_effort_has_the_field_and_value_of_each_vendor(
    vendor: type[OpenAIChatDouble], model: str, effort: Any, expected: dict[str, Any]
) -> None:
    async with (
        vendor(then=Answer("Hi.")) as double,
        Atlas([agent(provider(double, model), settings=ModelSettings(effort=effort), tools=[])]) as atlas,
    ):
        await atlas.ask("Hi.")
    assert double.refusals == []
    sent = {
        name: double.bodies[-1][name]
        for name in ("reasoning_effort", "thinking", "reasoning", "extra_body")
        if name in double.bodies[-1]
    }
    assert sent == expected


async def test_sampling_is_dropped_while_a_model_reasons_and_sent_while_it_does_not() -> None:
    """khoj#1377."""
    async with OpenAIChatDouble(then=Answer("Hi.")) as double:
        for effort in ("high", "none"):
            settings = ModelSettings(effort=effort, temperature=0.2, top_p=0.9)
            async with Atlas([agent(provider(double, "gpt-5.1"), settings=settings)]) as atlas:
                await atlas.ask("Hi.")
    assert double.refusals == []
    assert [body.get("temperature") for body in double.bodies] == [None, 0.2]


async def test_tools_on_chat_completions_turn_reasoning_off_where_the_model_demands_it() -> None:
    """LibreChat#14231: the model still answers at an address without the Responses API; the refusal is remembered."""
    async with OpenAIChatDouble(CALL, then=Answer("Sunny.")) as double:
        chosen = provider(double, "gpt-5.6-sol")
        async with Atlas([agent(chosen, settings=ModelSettings(effort="high"))]) as atlas:
            assert (await atlas.ask("Weather?")).text == "Sunny."
            assert (await atlas.ask("Weather?")).text == "Sunny."
    assert len(double.refusals) == 1
    assert [body.get("reasoning_effort") for body in double.bodies] == ["high", "none", "none", "none"]


async def test_tools_on_chat_completions_are_refused_clearly_by_a_model_that_always_reasons() -> None:
    """9router#4031."""
    async with OpenAIChatDouble(then=Answer("Sunny.")) as double:
        chosen = provider(double, "gpt-6-astra")
        async with Atlas([agent(chosen, settings=ModelSettings(effort="none"))]) as atlas:
            with pytest.raises(ProviderError, match="openai-responses"):
                await atlas.ask("Weather?")
    assert len(double.bodies) == 1


async def test_forced_tool_is_not_demanded_while_deepseek_reasons() -> None:
    async with DeepSeekDouble(CALL, Answer("Sunny."), CALL, Answer("Sunny.")) as double:
        for effort in (None, "none"):
            settings = ModelSettings(effort=effort)
            chosen = agent(provider(double, "deepseek-v4-pro"), settings=settings, tool_choice="required")
            async with Atlas([chosen]) as atlas:
                await atlas.ask("Weather?")
    assert double.refusals == []
    assert [body.get("tool_choice") for body in double.bodies] == [None, None, "required", None]


async def test_optional_field_is_accepted_by_a_strict_schema() -> None:
    """vercel/ai#6484."""
    async with (
        OpenAIChatDouble(Answer('{"city": "Paris", "mayor": null}')) as double,
        Atlas([agent(provider(double, "gpt-5.1"))]) as atlas,
    ):
        answer = await atlas.run("Where?", output=Place)
    assert double.refusals == []
    assert double.bodies[0]["response_format"]["json_schema"]["strict"] is True
    assert answer.output == Place(city="Paris")


async def test_seed_is_called_random_seed_at_mistral() -> None:
    async with (
        MistralDouble(then=Answer("Hi.")) as double,
        Atlas([agent(provider(double, "mistral-large"), settings=ModelSettings(seed=7), max_tokens=9)]) as atlas,
    ):
        await atlas.ask("Hi.")
    assert double.refusals == []
    assert (double.bodies[0]["random_seed"], double.bodies[0]["max_tokens"]) == (7, 9)


async def test_ids_of_calls_fit_the_vendor_after_a_turn_by_another_model() -> None:
    """nearai/ironclaw#1241, vercel/ai#5171."""
    async with OpenAIChatDouble(then=Answer("Hi.")) as openai, MistralDouble(then=Answer("Hi.")) as mistral:
        past = [
            user("Weather?"),
            assistant(ToolCall("toolu_" + "0123456789" * 5, "weather", {"city": "Rome"})),
            tool_message(ToolResult("toolu_" + "0123456789" * 5, "ok", "Sunny")),
            user("Never mind."),
            assistant("As you like."),
        ]
        for double, model in ((openai, "gpt-4.1"), (mistral, "mistral-large")):
            async with Atlas([agent(provider(double, model))]) as atlas:
                await atlas.ask("Hi.", session=Conversation(past))
    assert openai.refusals == mistral.refusals == []


async def test_failed_call_at_groq_is_tried_again() -> None:
    event = sse({"error": {"message": "Failed to call a function.", "code": "tool_use_failed"}}, "error")
    async with (
        GroqDouble(tool_use_failed(), Answer(events=(event,)), Answer("Sunny.")) as double,
        Atlas([agent(provider(double, "openai/gpt-oss-120b"))]) as atlas,
    ):
        assert (await atlas.ask("Weather?")).text == "Sunny."
    assert len(double.bodies) == 3


IN_STREAM_ERRORS = {
    "top level": sse({"error": {"code": 502, "message": "Provider disconnected"}, "choices": []}),
    "finish reason": sse({"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]}),
    "choice": sse({"choices": [{"index": 0, "delta": {}, "error": {"code": 502, "message": "Provider disconnected"}}]}),
}


@pytest.mark.parametrize("kind", IN_STREAM_ERRORS)
async def test_error_inside_a_stream_is_an_error_and_the_next_provider_answers(kind: str) -> None:
    """OmniRoute#8210."""
    text = sse({"choices": [{"index": 0, "delta": {"content": "Half an ans"}}]})
    broken = Answer(events=(b": OPENROUTER PROCESSING\n\n", text, IN_STREAM_ERRORS[kind]))
    async with (
        OpenRouterDouble(then=broken) as openrouter,
        OpenAIChatDouble(Answer("Sunny.")) as openai,
        Atlas([agent(provider(openrouter, "x-ai/grok-4.7"), provider(openai, "gpt-4.1"))]) as atlas,
    ):
        assert (await atlas.ask("Weather?")).text == "Sunny."


async def test_refusal_ends_the_turn_with_its_reason() -> None:
    async with (
        OpenAIChatDouble(Answer(extra={"delta": {"refusal": "I cannot help with that."}})) as double,
        Atlas([agent(provider(double, "gpt-4.1"))]) as atlas,
    ):
        reply = await atlas.ask("Help me.")
    assert reply.text == "I cannot help with that."
    assert reply.metadata["stop_reason"] == "refusal"


async def test_usage_has_cached_written_and_reasoning_tokens() -> None:
    usage: dict[str, Any] = {
        "prompt_tokens": 2000,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": 1500, "cache_write_tokens": 400},
        "completion_tokens_details": {"reasoning_tokens": 30},
    }
    old: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": 5, "prompt_cache_hit_tokens": 64}
    async with (
        OpenAIChatDouble(Answer("Hi.", usage=usage)) as openai,
        DeepSeekDouble(Answer("Hi.", usage=old)) as other,
    ):
        counts = [await read_usage(provider(openai, "gpt-5.1")), await read_usage(provider(other, "deepseek-v4-pro"))]
    assert counts == [Usage(2000, 50, 1500, cache_write_tokens=400, reasoning_tokens=30), Usage(100, 5, 64)]


async def read_usage(provider: OpenAIProvider) -> Usage:
    return next(chunk.usage for chunk in await read(provider) if isinstance(chunk, DoneChunk))


async def read(provider: OpenAIProvider) -> list[Chunk]:
    try:
        return await complete(provider, Request([user("Hi.")]))
    finally:
        await provider.close()


async def test_requests_of_one_conversation_share_a_cache_key_and_a_prefix() -> None:
    settings = ModelSettings(cache="1h")
    async with (
        OpenAIChatDouble(then=Answer("Hi.")) as double,
        Atlas([agent(provider(double, "gpt-5.1"), settings=settings, system_prompt="Be brief. " * 800)]) as atlas,
    ):
        one, other = Conversation(), Conversation()
        for session in (one, one, other):
            await atlas.ask("Hi.", session=session)
    keys = [body["prompt_cache_key"] for body in double.bodies]
    assert keys[0] == keys[1] != keys[2]
    assert one.messages[-1].metadata["usage"]["cached"] > 1500


@pytest.mark.parametrize(
    ("url", "cache", "sent"),
    [
        ("https://api.openai.com/v1", None, True),
        ("https://mine.openai.azure.com/openai/v1", None, True),
        ("https://api.openai.com/v1", "off", False),
        ("https://proxy.example/v1", None, False),
        ("https://proxy.example/v1", "5m", True),
    ],
)
def test_cache_key_is_sent_to_openai_and_where_it_was_asked_for(url: str, cache: Any, sent: bool) -> None:
    request = Request([user("Hi.")], settings=ModelSettings(cache=cache))
    body = encode_request(request, "gpt-5.1", variant=find_variant("openai", url, "gpt-5.1"))
    assert ("prompt_cache_key" in json.loads(body)) is sent


@pytest.mark.parametrize(
    ("model", "cache", "sent"),
    [
        ("anthropic/claude-opus-5.5", None, {"type": "ephemeral"}),
        ("anthropic/claude-opus-5.5", "1h", {"type": "ephemeral", "ttl": "1h"}),
        ("anthropic/claude-opus-5.5", "off", None),
        ("x-ai/grok-4.7", None, None),
    ],
)
async def test_cache_of_claude_is_asked_for_at_openrouter(model: str, cache: Any, sent: Any) -> None:
    """microsoft/vscode#312939."""
    async with (
        OpenRouterDouble(Answer("Hi.")) as double,
        Atlas([agent(provider(double, model), settings=ModelSettings(cache=cache))]) as atlas,
    ):
        await atlas.ask("Hi.")
    assert double.refusals == []
    assert double.bodies[0].get("cache_control") == sent


@pytest.mark.parametrize(
    ("vendor", "model"), [(DeepSeekDouble, "deepseek-v4-pro"), (GeminiChatDouble, "gemini-3.1-pro")]
)
async def test_rules_of_a_model_apply_behind_a_proxy(vendor: type[OpenAIChatDouble], model: str) -> None:
    past = [
        user("Weather?"),
        assistant(ToolCall("call_1", "weather", {"city": "Rome"})),
        tool_message(ToolResult("call_1", "ok", "Sunny")),
    ]
    async with vendor(*THREE_ROUNDS) as double:
        chosen = OpenAIProvider(model, base_url=double.address, api_key=KEY, id="proxy")
        async with Atlas([agent(chosen)]) as atlas:
            assert (await atlas.run([*past, user("And now?")])).answer == "Sunny everywhere."
    assert double.refusals == []


async def test_option_of_the_stream_that_a_server_does_not_know_is_left_out() -> None:
    """openai-agents-python#442."""
    async with MistralDouble(*THREE_ROUNDS) as double:
        chosen = OpenAIProvider("mistral-large", base_url=double.address, api_key=KEY, id="proxy")
        async with Atlas([agent(chosen)]) as atlas:
            assert (await atlas.ask("Weather?")).text == "Sunny everywhere."
    assert len(double.refusals) == 1


async def test_reasoning_returns_to_an_unknown_server_in_the_field_in_which_it_came() -> None:
    """vllm#50624."""
    async with VLLMDouble(*THREE_ROUNDS, Answer("Yes.")) as double:
        session = Conversation()
        async with Atlas([agent(provider(double, "Qwen/Qwen4-32B"))]) as atlas:
            await atlas.ask("Weather?", session=session)
        other = OpenAIProvider(
            "Qwen/Qwen4-32B", base_url=f"{double.url.replace('127.0.0.1', 'localhost')}/v1", api_key=KEY
        )
        async with Atlas([agent(other)]) as atlas:
            await atlas.ask("Sure?", session=session)
    assert double.refusals == []
    assert [message.get("reasoning") for message in double.bodies[2]["messages"] if message["role"] == "assistant"] == [
        "Paris it is.",
        "Both.",
    ]
    assert not [message for message in double.bodies[3]["messages"] if "reasoning" in message]


async def test_cache_key_that_a_server_does_not_know_is_left_out() -> None:
    async with (
        GeminiChatDouble(then=Answer("Hi.")) as double,
        Atlas([agent(provider(double, "gemini-3.1-pro"), settings=ModelSettings(cache="1h"))]) as atlas,
    ):
        await atlas.ask("Hi.")
        await atlas.ask("Hi.")
    assert ["prompt_cache_key" in body for body in double.bodies] == [True, False, False]


@pytest.mark.parametrize("answer", [Answer("Sunny in Paris."), CALL, TWO_CALLS])
async def test_answer_is_read_as_the_sdk_of_the_vendor_reads_it(answer: Answer) -> None:
    async with OpenAIChatDouble(answer, answer) as double:
        chunks = await read(provider(double, "gpt-4.1"))
        async with openai.AsyncOpenAI(base_url=double.address, api_key=KEY, max_retries=0) as client:
            completion = await client.chat.completions.create(
                model="gpt-4.1", messages=[{"role": "user", "content": "Hi."}]
            )
    message: Any = completion.choices[0].message
    calls = [chunk.call for chunk in chunks if isinstance(chunk, ToolCallChunk)]
    assert "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk)) == (message.content or "")
    theirs = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    assert [(call.name, call.arguments) for call in calls] == theirs


@pytest.mark.parametrize(("vendor", "model"), REASONING_VENDORS, ids=lambda value: getattr(value, "__name__", ""))
def test_reasoning_is_read_the_same_however_the_stream_is_split(vendor: type[OpenAIChatDouble], model: str) -> None:
    request = VendorRequest("POST", "/chat/completions", {}, {}, json.dumps({"model": model}).encode())
    counts = {"prompt_tokens": 7, "completion_tokens": 5}
    stream = b"".join(vendor().encode_stream(request, dataclasses.replace(CALL, text="Häm 😀", usage=counts)))
    whole = decode(stream)
    assert [chunk for chunk in whole if isinstance(chunk, OpaqueChunk)]
    assert all(decode(stream[:cut], stream[cut:]) == whole for cut in range(1, len(stream)))
    for cut in range(1, stream.index(b'"finish_reason":"tool_calls"'), 5):
        with pytest.raises(ProviderError):
            decode(stream[:cut])


def test_reasoning_of_a_complete_response_is_read_as_that_of_a_stream() -> None:
    details = [
        {"type": "reasoning.text", "text": "Hm", "index": 0},
        {"type": "reasoning.text", "text": "!", "index": 0},
    ]
    message: dict[str, Any] = {"content": "Hi.", "reasoning": "Hm!", "reasoning_details": details}
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    thinking, text, state, _ = OpenAIReader("origin").decode_body(body)
    assert (thinking, text) == (ThinkingChunk("Hm!"), TextChunk("Hi."))
    assert state == OpaqueChunk("origin", {"reasoning_details": details})


def decode(*pieces: bytes) -> list[object]:
    """Decode a stream, with the text and the reasoning in one piece each."""
    reader = OpenAIReader("origin")
    chunks = [chunk for piece in pieces for chunk in reader.feed(piece)] + reader.finish()
    kinds = (TextChunk, ThinkingChunk)
    texts = ["".join([chunk.text for chunk in chunks if isinstance(chunk, kind)]) for kind in kinds]
    return [*texts, *[chunk for chunk in chunks if not isinstance(chunk, kinds)]]
