"""Tool definitions: from a name and a function, from a schema, from a typed function; and invalid ones."""

import asyncio
import gc
import inspect
import socket
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import Enum, IntEnum
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, Optional, TypedDict
from uuid import UUID

import pydantic
import pytest

from atlas_agents import Agent, BadTool, ConfigError, Tool, ToolContext, Toolset, tool
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from checks import TIMEOUT


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1
    BIG = 2


@dataclass
class Point:
    x: int
    y: int = 0


class Named(TypedDict):
    name: str
    age: NotRequired[int]


class Person(pydantic.BaseModel):
    name: str
    born: date | None = None


class Doc:
    def __init__(self, documentation: str) -> None:
        self.documentation = documentation


async def result_of(made: Any, **arguments: Any) -> Any:
    """Return (status, result) as the model sees them."""
    name = made.name if isinstance(made, Tool) else made.__name__
    async with (
        in_memory_atlas(Scripted(calls(name, **arguments), says("ok")), [made]) as atlas,
        asyncio.timeout(TIMEOUT),
    ):
        step = (await atlas.run("go")).steps[0]
    return step.status, step.output


def taking(annotation: Any, seen: list[Any]) -> Callable[..., Awaitable[None]]:
    """Return a function with one parameter of this type, which records its argument."""

    async def take(value: Any) -> None:
        seen.append(value)

    take.__annotations__ = {"value": annotation, "return": None}
    return take


def schema_of(annotation: Any) -> Any:
    found = dict(tool(taking(annotation, [])).parameters)
    if "$defs" in found:
        return found["properties"]["value"], found["$defs"]
    return found["properties"]["value"]


# Tool(name, function)


async def test_tool_from_a_name_and_a_function_takes_one_string() -> None:
    async def shout(text: str) -> str:
        """Convert to upper case."""
        return text.upper()

    made = Tool("shout", shout)
    assert (made.name, made.description) == ("shout", "Convert to upper case.")
    assert made.parameters == {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    assert await result_of(made, input="hi") == ("ok", "HI")
    assert await result_of(made, input=7) == ("error", 'input: 7 is not of type "string"')


async def test_function_may_be_passed_as_func() -> None:
    async def shout(text: str) -> str:
        return text.upper()

    assert await result_of(Tool("shout", func=shout), input="hi") == ("ok", "HI")


@pytest.mark.parametrize("first", [True, False])
async def test_single_input_tool_may_take_the_context_before_or_after_the_input(first: bool) -> None:
    async def before(context: ToolContext, text: str) -> str:
        return f"{text} for {context.agent.id}"

    async def after(text: str, context: ToolContext | None = None) -> str:
        return f"{text} for {context.agent.id if context else 'no agent'}"

    assert await result_of(Tool("t", before if first else after), input="hi") == ("ok", "hi for assistant")


# Tool(name, …parameters…)


async def test_parameters_may_be_a_complete_json_schema() -> None:
    async def book(seats: int, window: bool = False) -> str:
        return f"{seats} {'window' if window else 'aisle'}"

    schema = {
        "type": "object",
        "properties": {"seats": {"type": "integer", "minimum": 1, "maximum": 4}, "window": {"type": "boolean"}},
        "required": ["seats"],
    }
    made = Tool("book", book, description="Book seats.", parameters=schema)
    assert made.parameters == schema
    assert await result_of(made, seats=2, window=True) == ("ok", "2 window")
    assert await result_of(made, seats=2) == ("ok", "2 aisle")
    assert await result_of(made, seats=9) == ("error", "seats: 9 is greater than the maximum of 4")
    assert await result_of(made) == ("error", '"seats" is a required property')


async def test_parameters_may_be_names_with_types_or_schemas() -> None:
    async def book(city: str, nights: int, price: float, quiet: bool, tags: list[str], extra: dict[str, Any]) -> str:
        return f"{city} {nights} {price} {quiet} {tags} {extra}"

    made = Tool(
        "book",
        book,
        parameters={
            "city": {"type": "string", "description": "where"},
            "nights": int,
            "price": float,
            "quiet": bool,
            "tags": list,
            "extra": dict,
        },
    )
    assert made.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "where"},
            "nights": {"type": "integer"},
            "price": {"type": "number"},
            "quiet": {"type": "boolean"},
            "tags": {"type": "array"},
            "extra": {"type": "object"},
        },
        "required": ["city", "nights", "price", "quiet", "tags", "extra"],
        "additionalProperties": False,
    }
    given: dict[str, Any] = {"city": "Lima", "nights": 2, "price": 9.5, "quiet": True, "tags": ["a"], "extra": {"b": 1}}
    assert await result_of(made, **given) == ("ok", "Lima 2 9.5 True ['a'] {'b': 1}")


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"city": 7}, "parameter 'city' of tool 'book' must be a JSON schema or a plain type, got 7"),
        ({"type": "object", "properties": {"a": {"type": "strong"}}}, "tool 'book' are not a valid JSON schema"),
        ({"a": {"$ref": "http://127.0.0.1:9/s.json"}}, "tool 'book' refer to 'http"),
        ({"a": {"$ref": "file:///etc/passwd"}}, "only references inside the schema are supported"),
    ],
)
def test_invalid_parameters_are_rejected(parameters: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadTool, match=complaint):
        Tool("book", print, parameters=parameters)


def test_schema_reference_to_a_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text('{"type": "string"}')
    with pytest.raises(BadTool, match="only references inside the schema"):
        Tool("book", print, parameters={"a": {"$ref": f"file://{tmp_path}/s.json"}})


# tool(definition, function)


async def test_definition_and_handler_make_a_tool() -> None:
    definition = {
        "name": "weather",
        "description": "Tell the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    }

    async def handler(args: dict[str, Any], ctx: ToolContext) -> str:
        return f"sunny in {args['city']} for {ctx.agent.id}"

    async def by_name(city: str) -> str:
        return f"sunny in {city}"

    async def only_arguments(args: dict[str, Any]) -> str:
        return f"sunny in {args['city']}"

    made = tool(definition, handler)
    assert (made.name, made.description, made.parameters) == (
        "weather",
        "Tell the weather.",
        definition["parameters"],
    )
    assert await result_of(made, city="Lima") == ("ok", "sunny in Lima for assistant")
    assert await result_of(tool(definition, by_name), city="Lima") == ("ok", "sunny in Lima")
    assert await result_of(tool(definition, only_arguments), city="Lima") == ("ok", "sunny in Lima")


async def test_definition_may_have_no_parameters() -> None:
    async def handler(args: dict[str, Any], ctx: ToolContext) -> str:
        return f"{args} {ctx.agent.id}"

    async def nothing() -> str:
        return "pong"

    assert await result_of(tool({"name": "ping"}, handler)) == ("ok", "{} assistant")
    assert await result_of(tool({"name": "ping"}, nothing)) == ("ok", "pong")


def test_definition_requires_a_name() -> None:
    with pytest.raises(BadTool, match="requires a name"):
        tool({"description": "x"}, print)


SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


@pytest.mark.parametrize(
    "definition",
    [
        {"name": "weather", "description": "Tell the weather.", "parameters": SCHEMA},
        {"type": "function", "function": {"name": "weather", "description": "Tell the weather.", "parameters": SCHEMA}},
        {"name": "weather", "description": "Tell the weather.", "input_schema": SCHEMA},
        {"name": "weather", "description": "Tell the weather.", "inputSchema": SCHEMA, "annotations": {"title": "W"}},
    ],
    ids=["plain", "OpenAI", "Anthropic", "MCP"],
)
async def test_definition_may_have_the_form_of_openai_anthropic_or_mcp(definition: dict[str, Any]) -> None:
    @tool(definition, effect="pure")
    async def weather(city: str) -> str:
        return f"sunny in {city}"

    assert (weather.name, weather.description, weather.parameters) == ("weather", "Tell the weather.", SCHEMA)
    assert weather.effect == "pure"
    assert await result_of(weather, city="Lima") == ("ok", "sunny in Lima")


async def test_agent_takes_definitions_with_and_without_a_function() -> None:
    async def handler(arguments: dict[str, Any], context: ToolContext) -> str:
        return f"sunny in {arguments['city']} for {context.agent.id}"

    definition = {"name": "weather", "description": "Tell the weather.", "parameters": SCHEMA}
    for given in ({"definition": definition, "handler": handler}, definition | {"handler": handler}):
        (made,) = Agent("a", model="openai/x", tools=[given]).tools
        assert await result_of(made, city="Lima") == ("ok", "sunny in Lima for assistant")
    (bare,) = Agent("a", model="openai/x", tools=[definition]).tools
    assert (bare.spec.name, bare.spec.parameters) == ("weather", SCHEMA)
    message = "weather has no function in this program: nothing was run"
    assert await result_of(bare, city="Lima") == ("error", message)
    assert await result_of(bare.with_function(handler), city="Lima") == ("ok", "sunny in Lima for assistant")


# @tool on a typed function

PLAIN: list[tuple[Any, Any, Any, Any]] = [
    (str, {"type": "string"}, "a", "a"),
    (int, {"type": "integer"}, 5, 5),
    (float, {"type": "number"}, 5, 5.0),
    (bool, {"type": "boolean"}, True, True),
    (list, {"type": "array", "items": {}}, [1, "a"], [1, "a"]),
    (list[int], {"type": "array", "items": {"type": "integer"}}, [1, 2], [1, 2]),
    (dict, {"type": "object", "additionalProperties": True}, {"a": 1}, {"a": 1}),
    (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}, {"a": 1}),
    (Optional[int], {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, None),  # noqa: UP045 - people write it
    (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 5, 5),
    (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}, "b", "b"),
    (datetime, {"type": "string", "format": "date-time"}, "2026-01-02T03:04:05Z", None),
    (date, {"type": "string", "format": "date"}, "2026-01-02", date(2026, 1, 2)),
    (UUID, {"type": "string", "format": "uuid"}, "00000000-0000-0000-0000-000000000001", UUID(int=1)),
    (Any, {}, {"x": [1]}, {"x": [1]}),
    (tuple[int, str], None, [1, "a"], (1, "a")),
    (set[str], {"type": "array", "items": {"type": "string"}, "uniqueItems": True}, ["a"], {"a"}),
]


@pytest.mark.parametrize(("annotation", "schema", "given", "value"), PLAIN, ids=[str(case[0]) for case in PLAIN])
async def test_type_becomes_a_schema_and_json_becomes_that_type(
    annotation: Any, schema: Any, given: Any, value: Any
) -> None:
    if schema is not None:
        assert schema_of(annotation) == schema
    seen: list[Any] = []
    assert await result_of(taking(annotation, seen), value=given) == ("ok", None)
    if annotation is datetime:
        value = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert seen == [value]
    assert type(seen[0]) is type(value)


POINT = {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}}}
NAMED = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
BORN = {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}], "default": None}
PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "born": BORN}}

SHAPED: list[tuple[Any, str, dict[str, Any], Any, Any]] = [
    (Color, "Color", {"type": "string", "enum": ["red", "blue"]}, "blue", Color.BLUE),
    (Size, "Size", {"type": "integer", "enum": [1, 2]}, 2, Size.BIG),
    (Point, "Point", {**POINT, "required": ["x"], "additionalProperties": False}, {"x": 1}, Point(1, 0)),
    (Named, "Named", {**NAMED, "required": ["name"], "additionalProperties": False}, {"name": "Al"}, {"name": "Al"}),
    (Person, "Person", {**PERSON, "required": ["name"]}, {"name": "Al", "born": None}, Person(name="Al")),
]


@pytest.mark.parametrize(("annotation", "name", "schema", "given", "value"), SHAPED, ids=[case[1] for case in SHAPED])
async def test_class_becomes_a_definition_and_json_becomes_an_object(
    annotation: Any, name: str, schema: dict[str, Any], given: Any, value: Any
) -> None:
    assert schema_of(annotation) == ({"$ref": f"#/$defs/{name}"}, {name: schema})
    seen: list[Any] = []
    assert await result_of(taking(annotation, seen), value=given) == ("ok", None)
    assert seen == [value]
    assert type(seen[0]) is type(value)


async def test_nested_typed_dict_is_supported() -> None:
    seen: list[Any] = []
    take = taking(list[Named] | None, seen)
    assert await result_of(take, value=[{"name": "Al", "age": 3}]) == ("ok", None)
    assert await result_of(take, value=None) == ("ok", None)
    assert (await result_of(take, value=[{"age": 3}]))[0] == "error"
    assert seen == [[{"name": "Al", "age": 3}], None]


async def test_invalid_arguments_are_reported_by_field_and_nothing_runs() -> None:
    seen: list[Any] = []
    status, words = await result_of(taking(Point, seen), value={"x": "one"})
    assert (status, words) == ("error", 'value.x: "one" is not of type "integer"')
    status, words = await result_of(taking(datetime, seen), value="tomorrow")
    assert status == "error" and words.startswith("value: Input should be a valid datetime")
    status, words = await result_of(taking(int, seen), value=1, other=2)
    assert (status, words) == (
        "error",
        "Additional properties are not allowed ('other' was unexpected); the parameters are value",
    )
    assert seen == []


async def test_error_in_an_optional_object_names_the_inner_field() -> None:
    class Place(pydantic.BaseModel):
        lat: float

    class Address(pydantic.BaseModel):
        zip: str
        place: Place | None = None

    class Box(pydantic.BaseModel):
        number: int

    async def deliver(address: Address | None = None, to: list[Address | Box] | None = None) -> None:
        """Deliver."""

    cases: list[tuple[dict[str, Any], str]] = [
        ({"address": {"zip": 5}}, 'address.zip: 5 is not of type "string"'),
        ({"address": {}}, 'address: "zip" is a required property'),
        ({"address": {"zip": "1", "place": {"lat": "x"}}}, 'address.place.lat: "x" is not of type "number"'),
        ({"to": [{"number": "x"}]}, 'to.0.number: "x" is not of type "integer"'),
    ]
    for arguments, problem in cases:
        status, result = await result_of(deliver, **arguments)
        assert (status, problem in result) == ("error", True), result


def test_name_docstring_and_defaults_come_from_the_function() -> None:
    @tool
    async def find(query: str, limit: int = 5, deep: bool | None = None) -> None:
        """Find something."""

    assert (find.name, find.description) == ("find", "Find something.")
    assert find.parameters == {
        "type": "object",
        "properties": {
            "query": {"type": "string"},
            "limit": {"type": "integer", "default": 5},
            "deep": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None},
        },
        "required": ["query"],
        "additionalProperties": False,
    }


async def test_defaults_replace_missing_arguments() -> None:
    async def add(a: int, b: int = 10, tags: list[str] = []) -> str:  # noqa: B006 - on purpose
        tags.append("x")
        return f"{a + b} {tags}"

    assert await result_of(add, a=1) == ("ok", "11 ['x']")
    assert await result_of(add, a=1, b=2) == ("ok", "3 ['x']")


async def test_default_without_json_form_is_omitted_from_the_schema() -> None:
    nothing = object()

    async def find(query: str, after: Any = nothing) -> bool:
        return after is nothing

    assert tool(find).parameters["properties"] == {"query": {"type": "string"}, "after": {}}
    assert await result_of(find, query="x") == ("ok", True)


def test_annotated_text_describes_a_parameter() -> None:
    @tool
    async def find(
        query: Annotated[str, "what to find"],
        limit: Annotated[int, pydantic.Field(description="how many", ge=1)] = 5,
        where: Annotated[str, Doc("in which folder")] = ".",
    ) -> None: ...

    assert find.parameters["properties"] == {
        "query": {"type": "string", "description": "what to find"},
        "limit": {"type": "integer", "description": "how many", "minimum": 1, "default": 5},
        "where": {"type": "string", "description": "in which folder", "default": "."},
    }


async def test_pydantic_field_may_be_a_default() -> None:
    async def find(limit: int = pydantic.Field(5, description="how many", ge=1), name: str = pydantic.Field()) -> str:
        return f"{limit} {name}"

    made = tool(find)
    assert made.parameters["properties"] == {
        "limit": {"type": "integer", "description": "how many", "minimum": 1, "default": 5},
        "name": {"type": "string"},
    }
    assert made.parameters["required"] == ["name"]
    assert await result_of(made, name="x") == ("ok", "5 x")


async def google(city: str, days: int = 1) -> None:
    """Tell the weather.

    For today and later.

    Args:
        city: Where, with the country
            if need be.
        days: How many days.

    Returns:
        Nothing.
    """


async def numpy(city: str, days: int = 1) -> None:
    """Tell the weather.

    For today and later.

    Parameters
    ----------
    city : str
        Where, with the country
        if need be.
    days : int
        How many days.
    """


async def sphinx(city: str, days: int = 1) -> None:
    """Tell the weather.

    For today and later.

    :param city: Where, with the country if need be.
    :param days: How many days.
    :returns: Nothing.
    """


@pytest.mark.parametrize("function", [google, numpy, sphinx])
def test_docstrings_describe_tool_and_parameters(function: Callable[..., Any]) -> None:
    made = tool(function)
    assert made.description == "Tell the weather.\n\nFor today and later."
    assert made.parameters["properties"] == {
        "city": {"type": "string", "description": "Where, with the country if need be."},
        "days": {"type": "integer", "default": 1, "description": "How many days."},
    }


def test_explicit_description_overrides_the_docstring() -> None:
    @tool(name="other", description="Mine.")
    async def find(query: str) -> None:
        """From the docstring."""

    assert (find.name, find.description) == ("other", "Mine.")


async def test_parameter_names_reserved_by_libraries_can_be_used() -> None:
    async def odd(
        self_: str, schema: str, json: str, model_config: str, title: str, copy: str, validate: str, p0: str, cls: str
    ) -> str:
        return "".join([self_, schema, json, model_config, title, copy, validate, p0, cls])

    made = tool(odd)
    names = ["self_", "schema", "json", "model_config", "title", "copy", "validate", "p0", "cls"]
    assert made.parameters["required"] == names
    assert made.parameters["properties"] == {name: {"type": "string"} for name in names}
    assert await result_of(made, **dict(zip(names, "abcdefghi", strict=True))) == ("ok", "abcdefghi")


# Other callables


class Shop:
    def __init__(self, name: str) -> None:
        self.name = name

    async def price(self, item: str) -> str:
        """Return the price."""
        return f"{item} at {self.name}"

    @classmethod
    async def open(cls, day: str) -> str:
        """Return whether the shop is open."""
        return f"{cls.__name__} {day}"

    @staticmethod
    async def close(day: str) -> str:
        """Return when the shop closes."""
        return f"17:00 {day}"


@dataclass
class Search:
    """A search engine."""

    base: str

    async def __call__(self, query: str) -> str:
        """Search the web."""
        return f"{query} at {self.base}"


async def test_methods_are_tools() -> None:
    shop = Shop("Acme")
    assert (tool(shop.price).name, tool(shop.price).description) == ("price", "Return the price.")
    assert await result_of(shop.price, item="tea") == ("ok", "tea at Acme")
    assert await result_of(Shop.open, day="Monday") == ("ok", "Shop Monday")
    assert await result_of(Shop.close, day="Monday") == ("ok", "17:00 Monday")


async def test_decorated_function_can_still_be_called() -> None:
    @tool
    def add(a: int, b: int = 1) -> int:
        """Add two numbers."""
        return a + b

    @tool(effect="pure")
    async def twice(a: int) -> int:
        """Double a number."""
        return 2 * a

    assert (add(1, 2), add(a=4), await twice(3)) == (3, 5, 6)
    assert (add.__name__, add.__doc__, str(inspect.signature(add))) == (
        "add",
        "Add two numbers.",
        "(a: int, b: int = 1) -> int",
    )
    assert await result_of(add, a=1, b=2) == ("ok", 3)
    assert tool(add.function, timeout=5).timeout == 5


class Counter:
    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0

    @tool(effect="keyed", timeout=5)
    def add(self, number: int) -> str:
        """Add to the count."""
        self.count += number
        return f"{self.name}: {self.count}"

    @classmethod
    @tool(timeout=5)
    async def kind(cls, suffix: str) -> str:
        """Return the kind."""
        return cls.__name__ + suffix

    @tool
    async def show(self, context: ToolContext) -> str:
        """Show the count."""
        return f"{self.name} has {self.count} for {context.agent.id}"


async def test_decorated_methods_are_tools_of_their_object() -> None:
    one, two = Counter("one"), Counter("two")
    assert (one.add.name, one.add.description, one.add.effect) == ("add", "Add to the count.", "keyed")
    assert list(one.add.parameters["properties"]) == ["number"]
    assert await result_of(one.add, number=3) == ("ok", "one: 3")
    assert (one.add(2), two.add(number=1), one.count, two.count) == ("one: 5", "two: 1", 5, 1)
    (kind,) = Agent("a", model="openai/x", tools=[Counter.kind]).tools
    assert (kind.timeout, await result_of(kind, suffix="!")) == (5, ("ok", "Counter!"))
    assert await result_of(one.show) == ("ok", "one has 5 for assistant")
    for unbound in (Counter.add, Shop.price):
        with pytest.raises(BadTool, match=r"is a method: pass it from an object, as in (Counter|Shop)\(\).\w+"):
            Agent("a", model="openai/x", tools=[unbound])


async def test_methods_of_two_objects_are_separate_tools() -> None:
    agents = [Agent(name, model="openai/x", tools=[Shop(name).price]) for name in ("one", "two")]
    assert [await result_of(agent.tools[0], item="tea") for agent in agents] == [
        ("ok", "tea at one"),
        ("ok", "tea at two"),
    ]


async def test_callable_objects_are_tools() -> None:
    made = tool(Search("web"))
    assert (made.name, made.description) == ("Search", "Search the web.")
    assert Agent("a", model="openai/x", tools=[Search("web")]).tools[0].name == "Search"
    assert await result_of(made, query="tea") == ("ok", "tea at web")


async def test_bound_arguments_of_a_partial_are_hidden() -> None:
    async def query(sql: str, limit: int, *, key: str = "") -> str:
        """Query the database."""
        return f"{sql} {limit} {key}"

    made = tool(partial(partial(query, limit=3), key="secret"))
    assert (made.name, made.description) == ("query", "Query the database.")
    assert made.parameters["properties"] == {"sql": {"type": "string"}}
    assert await result_of(made, sql="select") == ("ok", "select 3 secret")
    assert (await result_of(made, sql="select", key="mine"))[0] == "error"
    assert await result_of(tool(partial(query, "drop")), limit=1) == ("ok", "drop 1 ")


async def test_wrapped_function_becomes_the_tool_of_its_wrapper() -> None:
    async def plain(a: int) -> int:
        """Count."""
        return a

    @wraps(plain)
    async def doubled(*args: Any, **named: Any) -> int:
        return 2 * await plain(*args, **named)

    assert await result_of(plain, a=2) == ("ok", 2)
    assert await result_of(doubled, a=2) == ("ok", 4)


def test_tools_must_be_a_list() -> None:
    async def count(a: int) -> int:
        """Count."""
        return a

    for given in (count, tool(count), {"name": "count"}):
        with pytest.raises(BadTool, match=r"tools must be a list of tools or a toolset, got .*: write tools=\[…\]"):
            Toolset(given)  # pyrefly: ignore[bad-argument-type] - wrong on purpose


def test_tools_with_almost_the_same_parameters_keep_their_own_schemas() -> None:
    def first(value: int | str = 1) -> None:
        """Do.

        Args:
            value: Text of the first.
        """

    def second(value: str | int = 1) -> None:
        """Do."""

    def third(value: int | str = True) -> None:
        """Do."""

    def fourth(value: int | str = 1) -> None:
        """Do."""

    schemas = [tool(each).parameters["properties"]["value"] for each in (first, second, third, fourth)]
    assert [each["default"] for each in schemas] == [1, 1, True, 1] and schemas[2]["default"] is True
    kinds = [[kind["type"] for kind in each["anyOf"]] for each in schemas]
    assert kinds == [["integer", "string"], ["string", "integer"], ["integer", "string"], ["integer", "string"]]
    assert [each.get("description") for each in schemas] == ["Text of the first.", None, None, None]


def test_same_parameters_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(unusual_name: str, limit: int = 7) -> None:
        """Look something up."""

    def forget(unusual_name: str, limit: int = 7) -> None:
        """Forget something."""

    found = tool(look_up).parameters
    monkeypatch.setattr(pydantic, "create_model", None)
    assert tool(forget).parameters == found


def test_shared_function_is_described_once_and_not_kept_alive() -> None:
    async def brief(a: int) -> int:
        """Count."""
        return a

    agents = [Agent("a", model="openai/x", tools=[brief]) for _ in range(3)]
    specs = {id(agent.tools[0].spec) for agent in agents}
    assert len(specs) == 1
    assert all(agent.tools[0].function is brief for agent in agents)
    gone = weakref.ref(brief)
    del brief, agents
    gc.collect()
    assert gone() is None


# Invalid tools


def unannotated(a: int, b: int) -> None: ...
def many(*rest: int) -> None: ...
def named(**rest: int) -> None: ...
def by_place(a: int, b: int, /) -> None: ...
def of_a_socket(a: int, line: socket.socket) -> None: ...
def of_a_function(a: int, then: Callable[[int], int]) -> None: ...
def of_an_unknown(a: int, b: int) -> None: ...


del unannotated.__annotations__["b"]
of_an_unknown.__annotations__["b"] = "Nowhere"


@pytest.mark.parametrize(
    ("function", "parameter"),
    [
        (unannotated, "b"),
        (many, "rest"),
        (named, "rest"),
        (by_place, "a"),
        (of_a_socket, "line"),
        (of_a_function, "then"),
    ],
)
def test_error_names_an_unsuitable_parameter_and_its_tool(function: Callable[..., Any], parameter: str) -> None:
    with pytest.raises(BadTool) as caught:
        tool(function)
    assert f"parameter {parameter!r} of tool {function.__name__!r}" in str(caught.value)
    with pytest.raises(BadTool):
        Agent("a", model="openai/x", tools=[function])


def test_error_names_an_unresolved_type() -> None:
    with pytest.raises(
        BadTool, match="cannot read the parameters of tool 'of_an_unknown': name 'Nowhere' is not defined"
    ):
        tool(of_an_unknown)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Tool("", print), "invalid tool name ''"),
        (lambda: Tool("a\nb", print), "invalid tool name"),
        (lambda: Tool("x" * 201, print), "invalid tool name"),
        (lambda: Tool("a"), "tool 'a' requires a function"),
        (lambda: Tool("a", "print"), "tool 'a' requires a function"),  # pyrefly: ignore[bad-argument-type] - wrong on purpose
        (lambda: tool(lambda: 1), "a lambda has no name"),
        (lambda: Tool("a", print, timeout=0), "timeout of tool 'a' must be more than 0 seconds, got 0"),
        (lambda: Tool("a", print, timeout=float("nan")), "timeout of tool 'a'"),
        (
            lambda: Tool("a", print, effect="loud"),  # pyrefly: ignore[bad-argument-type] - wrong on purpose
            "effect of tool 'a' must be one of pure, keyed, unsafe",
        ),
        (
            lambda: Tool("a", print, confirm="always"),  # pyrefly: ignore[bad-argument-type] - wrong on purpose
            "confirm of tool 'a' must be True, False or a function, got 'always'",
        ),
        (
            lambda: Tool("a", print, sends=1),  # pyrefly: ignore[bad-argument-type] - wrong on purpose
            "sends of tool 'a' must be True, False or a function, got 1",
        ),
        (
            lambda: Tool("a", print, untrusted=True),  # pyrefly: ignore[bad-argument-type] - wrong on purpose
            "untrusted of tool 'a' must be a text or a function, got True",
        ),
    ],
)
def test_invalid_tool_definition_is_rejected(make: Callable[[], Tool], complaint: str) -> None:
    with pytest.raises(BadTool, match=complaint):
        make()
    assert issubclass(BadTool, ConfigError)


# Options


def test_tool_has_the_given_options() -> None:
    @tool(timeout=5, permissions=["file:read"], confirm=True, effect="keyed", in_process=True)
    def read(path: str) -> str:
        """Read a file."""
        return path

    assert (read.timeout, read.permissions, read.confirm) == (5.0, ("file:read",), True)
    assert (read.effect, read.in_process) == ("keyed", True)
    plain = Tool("plain", print, permissions="file:read")
    assert (plain.timeout, plain.permissions, plain.confirm) == (30.0, ("file:read",), False)
    assert (plain.effect, plain.in_process) == ("unsafe", None)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("get_weather", "get_weather"),
        ("server/tool", "server__tool"),
        ("wörter", "w_rter_"),
        ("x" * 100, "x" * 55 + "_"),
        ("a b", "a_b_"),
    ],
)
async def test_wire_name_is_valid_for_all_vendors(name: str, sent: str) -> None:
    async def work(text: str) -> str:
        return text

    made = Tool(name, work)
    model = Scripted(calls(made.wire_name, input="hi"), says("ok"))
    async with in_memory_atlas(model, [made]) as atlas:
        result = await atlas.run("go")
    shown = model.requests[0].tools[0].name
    assert (
        shown.startswith(sent) and len(shown) <= 64 and all(c.isascii() and (c.isalnum() or c in "_-") for c in shown)
    )
    assert [(step.tool, step.output) for step in result.steps] == [(name, "hi")]
