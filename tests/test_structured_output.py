"""Structured output: a schema or a Python type, checked locally, corrected a number of times, then an error."""

import socket
from dataclasses import dataclass
from typing import Any, TypedDict

import pydantic
import pytest

from atlas_agents import Agent, BadOutput, ConfigError, Request, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, refuses, says
from checks import collect_events, roles, summarize_events


class City(pydantic.BaseModel):
    name: str
    people: int = pydantic.Field(ge=0)


@dataclass
class Point:
    x: int
    y: int


class Named(TypedDict):
    name: str


SCHEMA = {
    "title": "city",
    "type": "object",
    "properties": {"name": {"type": "string"}, "people": {"type": "integer", "minimum": 0}},
    "required": ["name", "people"],
}

WANTED: list[tuple[str, Any, str, Any]] = [
    ("schema", SCHEMA, '{"name": "Lima", "people": 5}', {"name": "Lima", "people": 5}),
    ("model", City, '{"name": "Lima", "people": 5}', City(name="Lima", people=5)),
    ("dataclass", Point, '{"x": 1, "y": 2}', Point(1, 2)),
    ("typed dict", Named, '{"name": "Al"}', {"name": "Al"}),
    ("list", list[int], "[1, 2, 3]", [1, 2, 3]),
    ("number", int, "42", 42),
    ("choice", int | None, "null", None),
]


async def test_refusal_is_not_corrected_but_reported() -> None:
    model = Scripted(refuses("cyber"), says("I cannot help.") + refuses())
    async with in_memory_atlas(model) as atlas:
        for reason in ("cyber", "I cannot help."):
            with pytest.raises(BadOutput, match=f"^The model refused to answer: {reason}$"):
                await atlas.ask("Tell", output=int)
    assert len(model.requests) == 2


@pytest.mark.parametrize(("name", "wanted", "reply", "value"), WANTED, ids=[case[0] for case in WANTED])
async def test_answer_becomes_a_value_of_the_output_type(name: str, wanted: Any, reply: str, value: Any) -> None:
    async with in_memory_atlas(Scripted(*[says(reply)] * 3)) as atlas:
        result = await atlas.run("Tell", output=wanted)
        assert (result.output, result.answer, result.success) == (value, reply, True)
        stream = atlas.send("Tell", output=wanted)
        assert (await stream.reply()).text == reply
        assert stream.output == value
        assert (await atlas.ask("Tell", output=wanted)).text == reply


@pytest.mark.parametrize(
    "reply",
    ["```json\n[1, 2]\n```", "```\n[1, 2]\n```", "  \n[1, 2]\n", "```JSON\n[\n1,\n2\n]\n```\n"],
)
async def test_code_fence_around_json_is_removed(reply: str) -> None:
    async with in_memory_atlas(Scripted(says(reply))) as atlas:
        assert (await atlas.run("Tell", output=list[int])).output == [1, 2]


IN_PROSE = [
    'Here is the city:\n\n{"name": "Lima", "people": 5}\n\nAnything else?',
    'Sure [as asked]: ```json\n{"name": "Lima",\n"people": 5}\n``` Done.',
    'Not {this} but {"name": "Lima", "people": 5}.',
    'An example is {"name": 7}; the answer is {"name": "Lima", "people": 5}',
]


@pytest.mark.parametrize("reply", IN_PROSE)
@pytest.mark.parametrize("wanted", [City, SCHEMA], ids=["type", "schema"])
async def test_json_inside_prose_costs_no_repair(wanted: Any, reply: str) -> None:
    model = Scripted(says(reply))
    async with in_memory_atlas(model) as atlas:
        output = (await atlas.run("Tell", output=wanted)).output
    assert output in (City(name="Lima", people=5), {"name": "Lima", "people": 5})


async def test_number_in_prose_is_not_taken_for_the_answer() -> None:
    async with in_memory_atlas(Scripted(says("In 2024 there were 5."), says("5"))) as atlas:
        assert (await atlas.run("Tell", output=int)).output == 5


async def test_text_with_many_brackets_is_read_in_linear_time() -> None:
    async with in_memory_atlas(Scripted(says("[" * 200_000), says("[1]"))) as atlas:
        assert (await atlas.run("Tell", output=list[int])).output == [1]


WRAPPED: list[tuple[Any, str, Any]] = [
    (list[int], '{"value": [1, 2]}', [1, 2]),
    (int, '{"value": 42}', 42),
    (City | Point, '{"value": {"x": 1, "y": 2}}', Point(1, 2)),
    (City | None, '{"value": null}', None),
    ({"type": "array", "items": {"type": "integer"}}, '{"value": [1, 2]}', [1, 2]),
    (dict[str, int], '{"value": 5}', {"value": 5}),
]


@pytest.mark.parametrize(("wanted", "reply", "value"), WRAPPED)
async def test_answer_in_an_object_is_unwrapped_where_the_type_is_none(wanted: Any, reply: str, value: Any) -> None:
    async with in_memory_atlas(Scripted(says(reply))) as atlas:
        assert (await atlas.run("Tell", output=wanted, output_retries=0)).output == value


class Order(pydantic.BaseModel):
    count: int = 3
    note: str | None = "none"
    lines: list[Point] = []
    part: "City | Order | None" = None


async def test_null_for_an_optional_property_is_its_default_unless_null_is_allowed() -> None:
    reply = '{"count": null, "note": null, "lines": null, "part": {"count": null, "note": "a", "lines": null}}'
    async with in_memory_atlas(Scripted(says(reply))) as atlas:
        output = (await atlas.run("Tell", output=Order, output_retries=0)).output
    assert output == Order(note=None, part=Order(note="a"))


@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_number_of_corrections_is_a_setting(retries: int) -> None:
    model = Scripted(*[says("no")] * 5)
    async with in_memory_atlas(model, agent={"output_retries": retries}) as atlas:
        with pytest.raises(BadOutput):
            await atlas.run("Tell", output=int)
    assert len(model.requests) == retries + 1


async def test_turn_may_have_its_own_number_of_corrections() -> None:
    model = Scripted(*[says("no")] * 3, says("7"), says("no"))
    async with in_memory_atlas(model, agent={"output_retries": 0}) as atlas:
        await atlas.ask("Tell", output=int, output_retries=3)
        with pytest.raises(BadOutput):
            await atlas.ask("Tell", output=int)
        with pytest.raises(ConfigError, match="output_retries must not be negative, got -1"):
            await atlas.ask("Tell", output=int, output_retries=-1)
    with pytest.raises(ConfigError, match="output_retries must not be negative"):
        Agent("a", output_retries=-1)


MISFITS: list[tuple[Any, str, str]] = [
    (SCHEMA, '{"name": "Lima"}', '"people" is a required property'),
    (SCHEMA, '{"name": "Lima", "people": -1}', "people: -1 is less than the minimum of 0"),
    (SCHEMA, "Lima", "Expecting value"),
    (City, '{"name": "Lima", "people": "many"}', "people: Input should be a valid integer"),
    (City, '{"name": "Lima"', "Invalid JSON"),
    (list[int], '{"a": 1}', "answer: Input should be a valid array"),
    (Point, "", "Invalid JSON"),
]


@pytest.mark.parametrize(("wanted", "reply", "why"), MISFITS)
async def test_mismatching_answer_may_be_corrected_once(wanted: Any, reply: str, why: str) -> None:
    good = {"[1, 2]": list[int], '{"x": 1, "y": 2}': Point}
    right = next((text for text, kind in good.items() if kind == wanted), '{"name": "Lima", "people": 5}')
    model = Scripted(says(reply), says(right))
    async with in_memory_atlas(model) as atlas:
        result = await atlas.run("Tell", output=wanted)
    assert result.answer == right
    assert len(model.requests) == 2
    complaint = model.requests[1].messages[-1]
    assert (complaint.role, complaint.metadata) == ("user", {"synthetic": True})
    assert why in complaint.text and "Answer only with JSON that matches this schema" in complaint.text
    assert roles(result.intermediate) == ["assistant", "user"]


@pytest.mark.parametrize(("wanted", "reply", "why"), MISFITS)
async def test_second_mismatch_is_an_error(wanted: Any, reply: str, why: str) -> None:
    model = Scripted(says(reply), says(reply), says("never asked"))
    async with in_memory_atlas(model) as atlas:
        stream = atlas.send("Tell", output=wanted)
        events = await collect_events(stream)
        with pytest.raises(BadOutput, match=why):
            await stream.reply()
        assert stream.output is None
    assert len(model.requests) == 2
    assert summarize_events(events)[-1][:2] == ("error", "BadOutput")


async def test_tools_may_run_before_the_answer() -> None:
    @tool
    async def count(of: str) -> int:
        """Count something."""
        return 7

    model = Scripted(calls("count", of="x"), says("seven"), calls("count", of="x"), says("[7]"))
    async with in_memory_atlas(model, [count]) as atlas:
        result = await atlas.run("How many?", output=list[int])
    assert (result.output, len(result.steps)) == ([7], 2)


async def test_output_schema_is_in_the_request() -> None:
    model = Scripted(says('{"name": "Lima", "people": 5}'))
    async with in_memory_atlas(model, agent={"system_prompt": "Be brief."}) as atlas:
        await atlas.ask("Tell", output=SCHEMA)
    request = model.requests[0]
    assert request.output is not None
    assert (request.output.name, request.output.schema) == ("city", SCHEMA)
    start, instruction = request.system.split("\n\n")
    assert start == "Be brief."
    assert instruction.startswith("Answer only with JSON that matches this schema, without any other text:\n{")


async def test_request_has_no_schema_without_output() -> None:
    model = Scripted(says("Hello."))
    async with in_memory_atlas(model) as atlas:
        result = await atlas.run("Hi")
    assert model.requests[0].output is None
    assert result.output is None


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [(socket.socket, "has no JSON schema"), ({"type": "strong"}, "invalid output schema")],
)
async def test_invalid_output_type_is_rejected_before_the_model_call(wanted: Any, complaint: str) -> None:
    model = Scripted(says("never"))
    async with in_memory_atlas(model) as atlas:
        with pytest.raises(ConfigError, match=complaint):
            await atlas.ask("Tell", output=wanted)
        with pytest.raises(ConfigError, match=complaint):
            atlas.send("Tell", output=wanted)
    assert model.requests == []


async def test_callable_model_gets_the_schema_as_text() -> None:
    asked: list[Request] = []

    def model(request: Request) -> Any:
        asked.append(request)
        return {"choices": [{"message": {"content": "[1]"}, "finish_reason": "stop"}]}

    async with in_memory_atlas(model) as atlas:
        assert (await atlas.run("Tell", output=list[int])).output == [1]
    assert '{"items":{"type":"integer"},"type":"array"}' in asked[0].system
