"""Partial structured output of a streamed answer."""

from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from pydantic import BaseModel

from atlas_agents import Agent, Atlas, BadOutput
from atlas_agents.providers.base import TextChunk
from atlas_agents.testing import Reply, Scripted, calls, says


class City(BaseModel):
    name: str
    people: int
    rivers: list[str] = []


@dataclass
class Town:
    name: str
    people: int


class Village(TypedDict):
    name: str
    people: int


def stream_text(*pieces: str) -> Reply:
    return Reply(*map(TextChunk, pieces))


async def partials(*replies: Reply, output: Any, **options: Any) -> list[Any]:
    atlas = Atlas([Agent("a", model=Scripted(*replies), **options)])
    return [value async for value in atlas.send("Go.", output=output).partials()]


LIMA = stream_text('{"na', 'me": "Li', 'ma", "peo', 'ple": 10', '1, "rivers": ["Rí', 'mac"]}')


async def test_fields_arrive_as_they_are_written_with_their_types() -> None:
    assert await partials(LIMA, output=City) == [
        {},
        {"name": "Li"},
        {"name": "Lima"},
        {"name": "Lima", "people": 101, "rivers": ["Rí"]},
        {"name": "Lima", "people": 101, "rivers": ["Rímac"]},
        City(name="Lima", people=101, rivers=["Rímac"]),
    ]


@pytest.mark.parametrize("kind", [Town, Village])
async def test_dataclasses_and_typed_dicts_are_supported(kind: Any) -> None:
    *parts, last = await partials(stream_text('{"name": "O', 'slo", "people": 7', "}"), output=kind)
    assert parts[-1] == {"name": "Oslo", "people": 7}
    assert last == kind(name="Oslo", people=7)


async def test_lists_and_schemas_are_supported() -> None:
    assert await partials(stream_text("[1, 2", ", 3]"), output=list[int]) == [[1], [1, 2, 3], [1, 2, 3]]
    wrapped = stream_text('{"va', 'lue": [1, 2', ", 3]}")
    assert await partials(wrapped, output=list[int]) == [[1], [1, 2, 3], [1, 2, 3]]
    assert (await partials(stream_text("Here: [1, 2", ", 3]."), output=list[int]))[-1] == [1, 2, 3]
    schema = {"type": "object", "properties": {"a": {"type": "array"}}}
    assert await partials(stream_text('```json\n{"a": [1, "b', 'c"]}\n```'), output=schema) == [
        {"a": [1, "b"]},
        {"a": [1, "bc"]},
        {"a": [1, "bc"]},
    ]


async def test_mismatch_is_not_yielded_and_the_repaired_answer_replaces_it() -> None:
    values = await partials(
        says('{"name": "Oslo", "people": "many"}'), says('{"name": "Oslo", "people": 7}'), output=City
    )
    assert all(value.get("people") in (None, 7) for value in values[:-1])
    assert values[-1] == City(name="Oslo", people=7)


async def test_text_before_a_tool_call_is_ignored() -> None:
    values = await partials(says("Let me see.") + calls("none"), says('{"name": "Oslo", "people": 7}'), output=Town)
    assert values[-1] == Town("Oslo", 7)


async def test_answer_that_never_matches_raises() -> None:
    with pytest.raises(BadOutput):
        await partials(says("no"), says("no"), output=City)
