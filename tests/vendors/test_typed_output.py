"""Structured output against strict vendor doubles: every kind of type on every wire, and what a server refuses."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypedDict, cast

import jsonschema_rs
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atlas_agents import Agent, Atlas, tool
from atlas_agents.agents.output import Output
from atlas_agents.providers import schemas
from atlas_agents.providers.anthropic import AnthropicProvider
from atlas_agents.providers.base import OutputSpec, Provider
from atlas_agents.providers.gemini import GeminiProvider
from atlas_agents.providers.openai import OpenAIProvider
from atlas_agents.providers.openai_responses import OpenAIResponsesProvider
from vendors.anthropic import AnthropicDouble, check_schema
from vendors.common import KEY, Answer, Refusal, VendorRequest
from vendors.deepseek import DeepSeekDouble
from vendors.gemini import GeminiDouble
from vendors.openai_chat import OpenAIChatDouble, check_strict_schema
from vendors.openai_compatible import MistralDouble, OpenRouterDouble
from vendors.openai_responses import OpenAIResponsesDouble


class City(pydantic.BaseModel):
    """A city."""

    name: str = pydantic.Field(min_length=1, pattern=r"^\S")
    people: int = pydantic.Field(ge=0, description="How many")


class Trip(pydantic.BaseModel):
    cities: list[City] = pydantic.Field(min_length=2)
    start: City = pydantic.Field(description="Where it starts")
    note: str = "none"
    price: float | None = None
    tags: Annotated[list[str], pydantic.Field(max_length=3)] = []


class Cat(pydantic.BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(pydantic.BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Node(pydantic.BaseModel):
    label: str
    children: list["Node"] = []


class Color(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Named(TypedDict):
    name: str


LIMA, CUSCO = City(name="Lima", people=5), City(name="Cusco", people=2)
Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]
TYPES: dict[str, tuple[Any, str, Any]] = {
    "model": (City, '{"name": "Lima", "people": 5}', LIMA),
    "nested model": (
        Trip,
        '{"cities": [{"name": "Lima", "people": 5}, {"name": "Cusco", "people": 2}], "start": {"name": "Lima", '
        '"people": 5}}',
        Trip(cities=[LIMA, CUSCO], start=LIMA),
    ),
    "list": (list[City], '[{"name": "Lima", "people": 5}]', [LIMA]),
    "number": (int, "42", 42),
    "literal": (Literal["yes", "no", 1], '"yes"', "yes"),
    "union": (City | Point, '{"x": 1}', Point(1)),
    "discriminated union": (Pet, '{"kind": "dog", "name": "Rex"}', Dog(name="Rex")),
    "optional": (City | None, "null", None),
    "dict": (dict[str, int], '{"Lima": 5}', {"Lima": 5}),
    "enum": (Color, '"blue"', Color.BLUE),
    "dataclass": (Point, '{"x": 3}', Point(3)),
    "typed dict": (Named, '{"name": "Al"}', {"name": "Al"}),
    "recursive": (Node, '{"label": "a", "children": [{"label": "b"}]}', Node(label="a", children=[Node(label="b")])),
    "tuple": (tuple[int, str], '[1, "a"]', (1, "a")),
    "anything": (dict[str, Any], '{"a": [1, null]}', {"a": [1, None]}),
    "many levels": (list[list[dict[str, City]]], '[[{"a": {"name": "Lima", "people": 5}}]]', [[{"a": LIMA}]]),
}


class Wire(Protocol):
    """How one vendor's API is used in these tests."""

    def provider(self, double: Any) -> Provider: ...

    def schema(self, body: dict[str, Any]) -> dict[str, Any] | None: ...

    def system(self, body: dict[str, Any]) -> str: ...


class Anthropic(Wire):
    double = AnthropicDouble
    refusal = Refusal("output_config.format.schema: this schema is too complex", type="invalid_request_error")

    def __init__(self, model: str) -> None:
        self.model = model

    def provider(self, double: AnthropicDouble) -> Provider:
        return AnthropicProvider(self.model, base_url=double.url, api_key=KEY)

    def schema(self, body: dict[str, Any]) -> dict[str, Any] | None:
        return body.get("output_config", {}).get("format", {}).get("schema")

    def system(self, body: dict[str, Any]) -> str:
        system = body.get("system", "")
        return system if isinstance(system, str) else "".join(block["text"] for block in system)


class Chat(Wire):
    double: type[OpenAIChatDouble] = OpenAIChatDouble
    refusal = Refusal("Invalid schema for response_format 'City'", code="invalid_json_schema", param="response_format")

    def __init__(self, model: str, double: type[OpenAIChatDouble] = OpenAIChatDouble, id: str = "openai") -> None:
        self.model, self.double, self._id = model, double, id

    def provider(self, double: OpenAIChatDouble) -> Provider:
        return OpenAIProvider(self.model, base_url=double.address, api_key=KEY, id=self._id)

    def schema(self, body: dict[str, Any]) -> dict[str, Any] | None:
        return body.get("response_format", {}).get("json_schema", {}).get("schema")

    def system(self, body: dict[str, Any]) -> str:
        return "".join(message["content"] for message in body["messages"] if message["role"] == "system")


class Responses(Wire):
    double = OpenAIResponsesDouble
    refusal = Refusal(
        "Invalid schema for response_format 'City'", code="invalid_json_schema", param="text.format.schema"
    )

    def provider(self, double: OpenAIResponsesDouble) -> Provider:
        return OpenAIResponsesProvider("gpt-6.1-sol", base_url=double.address, api_key=KEY)

    def schema(self, body: dict[str, Any]) -> dict[str, Any] | None:
        return body.get("text", {}).get("format", {}).get("schema")

    def system(self, body: dict[str, Any]) -> str:
        return body.get("instructions", "")


class Gemini(Wire):
    double = GeminiDouble
    refusal = Refusal("Invalid value at 'generation_config.response_json_schema'", type="INVALID_ARGUMENT")

    def __init__(self, model: str) -> None:
        self.model = model

    def provider(self, double: GeminiDouble) -> Provider:
        return GeminiProvider(self.model, base_url=double.base_url, api_key=KEY)

    def schema(self, body: dict[str, Any]) -> dict[str, Any] | None:
        return body.get("generationConfig", {}).get("responseJsonSchema")

    def system(self, body: dict[str, Any]) -> str:
        return "".join(part["text"] for part in body.get("systemInstruction", {}).get("parts", ()))


WIRES: dict[str, Any] = {
    "Claude 5.5": Anthropic("claude-opus-5-5"),
    "Claude 4.5": Anthropic("claude-sonnet-4-5"),
    "GPT-4.1": Chat("gpt-4.1"),
    "GPT-5": Chat("gpt-5-mini"),
    "GPT-6.1": Responses(),
    "Gemini 4": Gemini("gemini-4-argon"),
    "Gemini 2.5": Gemini("gemini-2.5-flash"),
    "DeepSeek": Chat("deepseek-v4-pro", DeepSeekDouble),
    "Mistral": Chat("mistral-large-4", MistralDouble, "mistral"),
    "Claude through OpenRouter": Chat("anthropic/claude-opus-5.5", OpenRouterDouble, "openrouter"),
}
REFUSING = {name: WIRES[name] for name in ("Claude 5.5", "GPT-4.1", "GPT-6.1", "Gemini 4")}
each_refusing_wire = pytest.mark.parametrize("wire", REFUSING.values(), ids=REFUSING)
each_wire = pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)


def answer_as(wire: Wire, text: str) -> Callable[[VendorRequest], Answer]:
    """Answer as a model that is held to the schema it was sent: wrapped, and with null for what may be left out."""

    def answer(request: VendorRequest) -> Answer:
        schema, value = wire.schema(request.body), json.loads(text)
        wraps = (schema or {}).get("properties", {}).keys() == {schemas.WRAPPED}
        if wraps or ('"required":["value"]' in wire.system(request.body)):
            value = {schemas.WRAPPED: value}
        if schema is not None:
            value = fill(value, schema, schema)
            jsonschema_rs.validator_for(schema).validate(value)
        return Answer(json.dumps(value))

    return answer


def fill(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """Add what strict mode requires of an object: null for each property that has no value."""
    if "$ref" in schema:
        return fill(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    for variant in schema.get("anyOf", ()):
        filled = fill(value, variant, root)
        if jsonschema_rs.is_valid({**variant, "$defs": root.get("$defs", {})}, filled):
            return filled
    if isinstance(value, list):
        return [fill(each, schema.get("items", {}), root) for each in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    given: dict[str, Any] = {**dict.fromkeys(schema.get("required", ())), **value}
    return {name: fill(each, properties.get(name, {}), root) for name, each in given.items()}


@each_wire
async def test_every_kind_of_type_is_answered_without_a_refusal_or_a_repair(wire: Any) -> None:
    async with wire.double() as double, Atlas([Agent("assistant", model=wire.provider(double))]) as atlas:
        for name, (wanted, text, value) in TYPES.items():
            double.add(answer_as(wire, text))
            assert (await atlas.run("Tell", output=wanted, output_retries=0)).output == value, name
            body = double.bodies[-1]
            assert (wire.schema(body) is None) == ("Answer only with JSON" in wire.system(body)), name
    assert (double.refusals, len(double.requests)) == ([], len(TYPES))


@each_wire
async def test_tools_run_before_a_typed_answer(wire: Any) -> None:
    @tool
    async def count(city: str) -> int:
        """Count the people of a city."""
        return 5

    first = Answer(calls=(("count", {"city": "Lima"}),))
    async with (
        wire.double(first, answer_as(wire, '[{"name": "Lima", "people": 5}]')) as double,
        Atlas([Agent("assistant", model=wire.provider(double), tools=[count])]) as atlas,
    ):
        result = await atlas.run("Tell", output=list[City], output_retries=0)
    assert (result.output, len(result.steps)) == ([LIMA], 1)
    assert double.refusals == []


@each_refusing_wire
async def test_refused_schema_becomes_an_instruction_once_and_for_good(
    wire: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answer = answer_as(wire, LIMA.model_dump_json())
    async with (
        wire.double(wire.refusal, then=answer) as double,
        Atlas([Agent("assistant", model=wire.provider(double), system_prompt="Be brief.")]) as atlas,
    ):
        outputs = [(await atlas.run("Tell", output=City)).output for _ in range(2)]
    assert outputs == [LIMA, LIMA]
    with_schema = [wire.schema(body) is not None for body in double.bodies]
    assert with_schema == [True, False, False]
    assert all(wire.system(body).startswith("Be brief.\n\nAnswer only with JSON") for body in double.bodies[1:])
    warnings = [record for record in caplog.records if "output schema" in record.getMessage()]
    assert len(warnings) == 1


async def test_refusal_of_a_tool_does_not_cost_the_output_schema() -> None:
    @tool
    async def count(city: str) -> int:
        """Count the people of a city."""
        return 5

    wire = Chat("gpt-4.1")
    refusal = Refusal("Invalid schema for function 'count'", code="invalid_function_parameters", param="tools[0]")
    async with (
        wire.double(refusal, then=answer_as(wire, LIMA.model_dump_json())) as double,
        Atlas([Agent("assistant", model=wire.provider(double), tools=[count])]) as atlas,
    ):
        with pytest.raises(Exception, match="Invalid schema for function"):
            await atlas.run("Tell", output=City)
        assert (await atlas.run("Tell", output=City)).output == LIMA
    assert all(wire.schema(body) for body in double.bodies)


@pytest.mark.parametrize("name", ["model", "nested model", "dataclass", "typed dict"])
def test_schemas_for_anthropic_are_those_of_its_sdk(name: str) -> None:
    from anthropic import transform_schema

    spec = Output(TYPES[name][0]).spec
    prepared = schemas.prepare_output(spec, "anthropic")
    assert prepared is not None
    assert prepared.schema == transform_schema(spec.schema)


@pytest.mark.parametrize("name", [name for name in TYPES if name != "discriminated union"])
def test_wrapped_schemas_for_anthropic_are_those_of_its_sdk_inside_an_object(name: str) -> None:
    from anthropic import transform_schema

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


@each_refusing_wire
async def test_schemas_of_other_authors_are_accepted(wire: Any) -> None:
    async with (
        wire.double(then=Answer('{"city": {}}')) as double,
        Atlas([Agent("assistant", model=wire.provider(double))]) as atlas,
    ):
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
