"""Structured output against strict vendor doubles: schemas in the form of each vendor, and what a server refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_agents import tool
from atlas_agents.agents.output import Output
from atlas_agents.providers import schemas
from atlas_agents.providers.base import OutputSpec
from vendors.anthropic import check_schema
from vendors.common import Answer, Refusal
from vendors.families import FAMILIES, LIMA, TYPES, City, Family, Node, Trip, answer_as
from vendors.openai_chat import check_strict_schema

REFUSALS = {
    "Claude 5.5": Refusal("output_config.format.schema: this schema is too complex", type="invalid_request_error"),
    "GPT-4.1": Refusal(
        "Invalid schema for response_format 'City'", code="invalid_json_schema", param="response_format"
    ),
    "GPT-6 and 5.6": Refusal(
        "Invalid schema for response_format 'City'", code="invalid_json_schema", param="text.format.schema"
    ),
    "Gemini 4": Refusal("Invalid value at 'generation_config.response_json_schema'", type="INVALID_ARGUMENT"),
}
each_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
each_refusing_family = pytest.mark.parametrize("name", REFUSALS)


@tool
async def count(city: str) -> int:
    """Count the people of a city."""
    return 5


@each_family
async def test_tools_run_before_a_typed_answer(family: Family) -> None:
    first = Answer(calls=(("count", {"city": "Lima"}),))
    final = answer_as(family.double, '[{"name": "Lima", "people": 5}]')
    async with family.open(first, final, tools=[count]) as (double, atlas):
        result = await atlas.run("Tell", output=list[City], output_retries=0)
    assert (result.output, len(result.steps)) == ([LIMA], 1)
    assert double.refusals == []


@each_refusing_family
async def test_refused_schema_becomes_an_instruction_once_and_for_good(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    family = FAMILIES[name]
    answer = answer_as(family.double, LIMA.model_dump_json())
    async with family.open(REFUSALS[name], then=answer, system_prompt="Be brief.") as (double, atlas):
        outputs = [(await atlas.run("Tell", output=City)).output for _ in range(2)]
    assert outputs == [LIMA, LIMA]
    with_schema = [double.find_schema(body) is not None for body in double.bodies]
    assert with_schema == [True, False, False]
    assert all(double.find_system(body).startswith("Be brief.\n\nAnswer only with JSON") for body in double.bodies[1:])
    warnings = [record for record in caplog.records if "output schema" in record.getMessage()]
    assert len(warnings) == 1


async def test_refusal_of_a_tool_does_not_cost_the_output_schema() -> None:
    family = FAMILIES["GPT-4.1"]
    refusal = Refusal("Invalid schema for function 'count'", code="invalid_function_parameters", param="tools[0]")
    answer = answer_as(family.double, LIMA.model_dump_json())
    async with family.open(refusal, refusal, then=answer, tools=[count]) as (double, atlas):
        with pytest.raises(Exception, match="Invalid schema for function"):
            await atlas.run("Tell", output=City)
        assert (await atlas.run("Tell", output=City)).output == LIMA
    assert all(double.find_schema(body) for body in double.bodies)
    assert len(double.bodies) == 3, "strict, not strict, and the second run"


@pytest.mark.parametrize("name", ["model", "nested model", "dataclass", "typed dict"])
def test_schemas_for_anthropic_are_those_of_its_sdk(name: str) -> None:
    from anthropic import transform_schema  # pyrefly: ignore[missing-module-attribute] - not the module in this folder

    spec = Output(TYPES[name][0]).spec
    prepared = schemas.prepare_output(spec, "anthropic")
    assert prepared is not None
    assert prepared.schema == transform_schema(spec.schema)


@pytest.mark.parametrize("name", [name for name in TYPES if name != "discriminated union"])
def test_wrapped_schemas_for_anthropic_are_those_of_its_sdk_inside_an_object(name: str) -> None:
    from anthropic import transform_schema  # pyrefly: ignore[missing-module-attribute] - not the module in this folder

    spec = Output(TYPES[name][0]).spec
    prepared = schemas.prepare_output(spec, "anthropic")
    if prepared is not None:
        assert prepared.schema == transform_schema(schemas.wrap(spec.schema))


def test_schemas_for_openai_require_at_least_what_its_sdk_requires() -> None:
    from openai.lib._pydantic import to_strict_json_schema

    prepared = schemas.prepare_output(Output(City).spec, "openai")
    expected = to_strict_json_schema(City)
    expected["properties"]["name"].pop("minLength")  # not every compatible server knows it
    expected["properties"]["name"]["description"] = "{minLength: 1}"
    assert prepared is not None
    assert prepared.strict
    assert prepared.schema == expected


INEXPRESSIBLE: dict[str, tuple[Any, tuple[str, ...]]] = {
    "dict": (dict[str, int], ("anthropic", "openai")),
    "tuple": (tuple[int, str], ("anthropic", "openai")),
    "anything": (Any, ("anthropic", "openai")),
    "recursive": (Node, ("anthropic",)),
    "open object": ({"type": "object"}, ("anthropic", "openai")),
}


@pytest.mark.parametrize(("wanted", "dialects"), INEXPRESSIBLE.values(), ids=INEXPRESSIBLE)
def test_what_strict_mode_would_change_is_not_sent_strictly(wanted: Any, dialects: tuple[str, ...]) -> None:
    spec = Output(wanted).spec
    anthropic, openai = schemas.prepare_output(spec, "anthropic"), schemas.prepare_output(spec, "openai")
    assert (anthropic is None) == ("anthropic" in dialects)
    assert openai is not None
    assert openai.strict == ("openai" not in dialects)


SCHEMAS: dict[str, dict[str, Any]] = {
    "old definitions": {
        "type": "object",
        "properties": {"city": {"$ref": "#/definitions/city"}},
        "required": ["city"],
        "definitions": {"city": {"type": "object", "properties": {"definitions": {"type": "string"}}}},
    },
    "several types": {"type": "object", "properties": {"a": {"type": ["object", "null"], "properties": {"b": {}}}}},
    "no type": {"properties": {"a": {"type": ["string", "null"], "minLength": 2}}},
    "open with properties": {
        "type": "object",
        "properties": {"a": {"type": "integer", "default": 3}},
        "additionalProperties": True,
    },
    "single allOf": {"type": "object", "properties": {"a": {"allOf": [{"type": "integer"}], "description": "A"}}},
}


@each_refusing_family
async def test_schemas_of_other_authors_are_accepted(name: str) -> None:
    async with FAMILIES[name].open(then=Answer('{"city": {}}')) as (double, atlas):
        for schema in SCHEMAS.values():
            await atlas.run("Tell", output=schema)
    assert (double.refusals, len(double.requests)) == ([], len(SCHEMAS))


def make_schemas() -> st.SearchStrategy[Any]:
    names = st.sampled_from(["a", "b", "$ref", "properties", "definitions", "type"])
    common: list[Any] = [
        *({"type": kind} for kind in ("string", "integer", "number", "boolean", "null")),
        {"type": "string", "format": "date", "minLength": 1, "default": "a", "pattern": "(?=a)"},
        {"type": ["string", "null"], "description": "Text, or none.", "default": None},
        {"enum": ["a", 1, None], "description": "One of them.", "examples": ["a"]},
        {"type": "integer", "minimum": 1, "exclusiveMaximum": 5},
        {"$ref": "#/$defs/one", "description": "Another one."},
        {"$ref": "#/$defs/two"},
    ]
    rare: list[Any] = [True, False, {}, {"$ref": "#"}, {"const": [1]}, {"type": "array"}, {"type": "object"}]
    leaves: st.SearchStrategy[Any] = st.sampled_from([*common * 6, *rare])

    def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        properties = st.dictionaries(names, inner, max_size=3)
        objects = st.fixed_dictionaries(
            {"properties": properties},
            optional={
                "type": st.sampled_from(["object", ["object", "null"]]),
                "required": st.lists(names, unique=True, max_size=2),
                "additionalProperties": inner,
                "title": st.just("T"),
            },
        )
        lists = inner.map(lambda items: {"type": "array", "items": items, "maxItems": 3, "uniqueItems": True})
        words = st.sampled_from(["anyOf", "anyOf", "oneOf", "allOf", "prefixItems"])
        unions = st.tuples(words, st.lists(inner, min_size=1, max_size=3))
        return objects | objects | lists | unions.map(lambda pair: {pair[0]: pair[1]})

    nodes = st.recursive(leaves, extend, max_leaves=8)
    roots = nodes.filter(lambda node: isinstance(node, dict))
    definitions = st.fixed_dictionaries({"one": nodes, "two": leaves})
    return st.tuples(roots, definitions).map(lambda both: {**both[0], "$defs": both[1]})


@given(make_schemas())
@settings(max_examples=300, deadline=None)
def test_any_schema_is_sent_by_the_rules_of_the_vendor_or_as_an_instruction(schema: dict[str, Any]) -> None:
    spec = OutputSpec("answer", schema)
    before = json.dumps(schema)
    anthropic, openai = schemas.prepare_output(spec, "anthropic"), schemas.prepare_output(spec, "openai")
    gemini, plain = schemas.prepare_output(spec, "gemini"), schemas.prepare_output(spec, "plain")
    if anthropic is not None:
        check_schema(anthropic.schema, "schema")
    assert openai is not None and plain is not None
    assert openai.schema["type"] == plain.schema["type"] == "object"
    if openai.strict:
        check_strict_schema(openai.schema, "schema")
    assert gemini is None or gemini.schema["type"] == "object"
    schemas.drop_added_nulls({"a": None, "b": [{"a": None}]}, schema)
    assert json.dumps(schema) == before


def test_guide_shows_what_each_vendor_is_sent() -> None:
    page = (Path(__file__).parents[2] / "docs/guide/structured-output.md").read_text(encoding="utf-8")
    for name, (wanted, _, _) in TYPES.items():
        spec = Output(wanted).spec
        sent = [schemas.prepare_output(spec, dialect) for dialect in ("anthropic", "openai", "gemini")]
        cells = ["instruction" if each is None else "strict" if each.strict else "schema" for each in sent]
        assert f"| {' | '.join([name, *cells])} |" in page


def test_prepared_schema_is_computed_once() -> None:
    spec = Output(Trip).spec
    assert schemas.prepare_output(spec, "openai") is schemas.prepare_output(spec, "openai")
    assert Output(Trip).spec is spec
