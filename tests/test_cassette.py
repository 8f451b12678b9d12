"""Cassettes: a recorded provider is replayed."""

from pathlib import Path
from typing import Any

import pytest

from atlas_agents import Cassette, ConfigError, ProviderError, RetryPolicy, Thinking, tool
from atlas_agents.testing import Scripted, calls, fails, in_memory_atlas, says, thinks
from checks import collect_events, summarize_events


@tool
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"Sunny in {city}"


def script() -> Scripted:
    return Scripted(thinks("Hm.", "sig") + says("Let me look. ") + calls("weather", city="Lima"), says("Sunny."))


async def turn(model: Any, question: str = "Lima?", **options: Any) -> tuple[list[Any], list[Any]]:
    async with in_memory_atlas(model, [weather], **options) as atlas:
        stream = atlas.send(question)
        events = await collect_events(stream)
        await stream.reply()
        return summarize_events(events), atlas.conversation().messages


async def test_recording_is_replayed_without_the_provider(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    first = script()
    recorded, _ = await turn(Cassette(path, first))
    played, messages = await turn(Cassette(path))
    assert played == recorded
    assert messages[1].parts[0] == Thinking("Hm.", "sig")
    unused = Scripted()
    assert (await turn(Cassette(path, unused)))[0] == recorded
    assert unused.requests == []
    assert len(first.requests) == 2


async def test_error_names_the_field_that_differs_from_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    await turn(Cassette(path, script()))
    with pytest.raises(ConfigError, match=r"request 1 differs from the recording .*talk.jsonl in 'messages'"):
        await turn(Cassette(path), "Oslo?")
    with pytest.raises(ConfigError, match=r"request 1 differs from the recording .* in 'system'"):
        await turn(Cassette(path), system_prompt="Be brief.")


async def test_exhausted_recording_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    await turn(Cassette(path, script()))
    cassette = Cassette(path)
    await turn(cassette)
    with pytest.raises(ConfigError, match="has only 2 answers; delete it to record again"):
        await turn(cassette)


async def test_only_complete_answers_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    broken = Scripted(says("Half an") + fails(ProviderError("gone", "network")), says("Whole."))
    with pytest.raises(ProviderError):
        await turn(Cassette(path, broken), agent={"retry": RetryPolicy(retries=0)})
    assert not path.exists()
    await turn(Cassette(path, broken))
    _, messages = await turn(Cassette(path))
    assert messages[-1].text == "Whole."


def test_cassette_without_recording_and_provider_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no recording at .*nowhere.jsonl, and no provider to record"):
        Cassette(tmp_path / "nowhere.jsonl")


async def test_ids_and_times_are_neither_compared_nor_recorded(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    _, messages = await turn(Cassette(path, script()))
    written = path.read_text()
    assert len(written.splitlines()) == 2
    assert [message.id for message in messages if message.id in written] == []
    assert [call.id for message in messages for call in message.tool_calls if call.id in written] == []
