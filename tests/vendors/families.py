"""Model families, and what their tests share: how each family is reached, its strict double, and types of answers."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict, cast

import jsonschema_rs
import pydantic
import pytest

from atlas_agents import Agent, Atlas, History, ModelSettings, RetryPolicy, tool
from atlas_agents.providers import schemas
from atlas_agents.testing import Environment, Registry
from vendors.anthropic import AnthropicDouble
from vendors.common import KEY, Answer, Script, VendorDouble, VendorRequest
from vendors.deepseek import DeepSeekDouble
from vendors.gemini import GeminiDouble
from vendors.openai_chat import OpenAIChatDouble
from vendors.openai_compatible import GroqDouble, MistralDouble, OpenRouterDouble, VLLMDouble, XAIDouble
from vendors.openai_responses import OpenAIResponsesDouble

NO_SETTINGS = ModelSettings()
NO_FILES = "not offered by the vendor: the model gets a note with the file's name in its place, and the log a warning"
UNREASONED = 'with `effort="none"`, because chat completions refuse tools while this model reasons'
AUTOMATIC = "by the vendor or the server itself; nothing is sent for it"
NO_IMAGES = "not offered by the vendor: the model gets a note in its place, and the log a warning"


@dataclass(frozen=True)
class Family:
    """A model family: the reference that users write, and the double of its vendor."""

    name: str
    model: str
    double: type[VendorDouble]
    thinking: str = ""
    """What a request contains for each piece of reasoning that it returns; empty if the vendor takes none back."""
    host: str = ""
    """The vendor's address, if Atlas knows the vendor only by it; the double is the proxy on the way."""
    settings: ModelSettings = NO_SETTINGS
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """What there is to know about a column that works."""
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the user gets in the columns that the vendor does not offer."""

    @asynccontextmanager
    async def open(
        self, *answers: Script, then: Script | None = None, history: History | None = None, **options: Any
    ) -> AsyncGenerator[tuple[Any, Atlas]]:
        """Open the double, and an Atlas whose agent uses the family's model."""
        prefix = self.model.partition("/")[0].upper()
        settings = self.settings.merge(options.pop("settings", NO_SETTINGS))
        async with self.double(*answers, then=then) as double:
            with pytest.MonkeyPatch.context() as patch:
                if self.host:
                    patch.setenv("http_proxy", double.url)
                values = {f"{prefix}_BASE_URL": self.host or double.address, f"{prefix}_API_KEY": KEY}
                retry = RetryPolicy(order="given", backoff=0.001)
                agent = Agent("assistant", model=self.model, retry=retry, settings=settings, **options)
                registry = Registry(Environment(values, dotenv=None))
                async with Atlas([agent], registry=registry, history=history) as atlas:
                    yield double, atlas


_OPENAI = "http://api.openai.com/v1"
_FAMILIES = (
    Family("Claude 5.5", "anthropic/claude-opus-5-5", AnthropicDouble, '"signature":"sig/'),
    Family("Claude 5", "anthropic/claude-opus-5", AnthropicDouble, '"signature":"sig/'),
    Family("Claude 4.5", "anthropic/claude-sonnet-4-5", AnthropicDouble, '"signature":"sig/'),
    Family("GPT-6 and 5.6", "openai/gpt-6.1-sol", OpenAIResponsesDouble, '"encrypted_content":"', host=_OPENAI),
    Family(
        "GPT-5.6 at a server without the Responses API",
        "openai/gpt-5.6-sol",
        OpenAIChatDouble,
        settings=ModelSettings(effort="none"),
        missing={"thinking kept": "not offered by the vendor: reasoning is turned off, with one warning"},
        notes={"tools": UNREASONED, "parallel calls": UNREASONED, "caching": AUTOMATIC},
    ),
    Family(
        "GPT-4.1",
        "openai/gpt-4.1",
        OpenAIChatDouble,
        host=_OPENAI,
        missing={"thinking kept": "the model does not reason: `effort` is dropped, with one warning"},
    ),
    Family("Gemini 4", "google/gemini-4-argon", GeminiDouble, '"thoughtSignature":"', notes={"caching": AUTOMATIC}),
    Family("Gemini 3", "google/gemini-3.8-flash", GeminiDouble, '"thoughtSignature":"', notes={"caching": AUTOMATIC}),
    Family("Gemini 2.5", "google/gemini-2.5-flash", GeminiDouble, '"thoughtSignature":"', notes={"caching": AUTOMATIC}),
    Family(
        "DeepSeek 4",
        "deepseek/deepseek-v4-pro",
        DeepSeekDouble,
        '"reasoning_content":"I look it up."',
        notes={"caching": AUTOMATIC, "typed output": "in JSON mode, with the schema as an instruction"},
        missing={"images": NO_IMAGES, "PDFs": NO_FILES},
    ),
    Family("Grok 4", "xai/grok-4.7", XAIDouble, '"encrypted_content":"'),
    Family(
        "Mistral",
        "mistral/mistral-large-4",
        MistralDouble,
        '{"type":"thinking","thinking":[{"type":"text","text":"I look it up."}]}',
    ),
    Family(
        "gpt-oss at Groq",
        "groq/openai/gpt-oss-120b",
        GroqDouble,
        '"reasoning":"I look it up."',
        notes={"caching": AUTOMATIC},
        missing={"images": NO_IMAGES, "PDFs": NO_FILES},
    ),
    Family(
        "Claude through OpenRouter",
        "openrouter/anthropic/claude-opus-5.5",
        OpenRouterDouble,
        '"signature":"signed I look it up."',
    ),
    Family(
        "vLLM and other self-hosted servers",
        "vllm/Qwen/Qwen4-VL-32B",
        VLLMDouble,
        '"reasoning":"I look it up."',
        notes={"caching": AUTOMATIC, "images": "if the model has vision; otherwise it gets a note"},
        missing={"PDFs": NO_FILES},
    ),
)
FAMILIES = {family.name: family for family in _FAMILIES}


@tool
async def weather(city: str) -> str:
    """Return the weather in a city."""
    return f"{city}: sunny"


# Typed answers


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


def answer_as(double: type[VendorDouble], text: str) -> Callable[[VendorRequest], Answer]:
    """Answer as a model that is held to the schema it was sent: wrapped, and with null for what may be left out."""

    def answer(request: VendorRequest) -> Answer:
        schema, value = double.find_schema(request.body), json.loads(text)
        wraps = (schema or {}).get("properties", {}).keys() == {schemas.WRAPPED}
        if wraps or ('"required":["value"]' in double.find_system(request.body)):
            value = {schemas.WRAPPED: value}
        if schema is not None:
            value = _fill(value, schema, schema)
            jsonschema_rs.validator_for(schema).validate(value)
        return Answer(json.dumps(value))

    return answer


def _fill(value: Any, schema: dict[str, Any], root: dict[str, Any]) -> Any:
    """Add what strict mode requires of an object: null for each property that has no value."""
    if "$ref" in schema:
        return _fill(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    for variant in schema.get("anyOf", ()):
        filled = _fill(value, variant, root)
        if jsonschema_rs.is_valid({**variant, "$defs": root.get("$defs", {})}, filled):
            return filled
    if isinstance(value, list):
        return [_fill(each, schema.get("items", {}), root) for each in cast(list[Any], value)]
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    given: dict[str, Any] = {**dict.fromkeys(schema.get("required", ())), **value}
    return {name: _fill(each, properties.get(name, {}), root) for name, each in given.items()}


# Long sessions

LONG_ANSWER = "It is sunny. " + "y" * 400


@tool(name="weather")
async def long_weather(city: str) -> str:
    """Return the weather in a city."""
    return f"{city}: sunny " + "z" * 1500


class LongSession:
    """A model that makes two rounds with a tool call each, then answers; it also writes summaries."""

    def __init__(self, *, thinks: bool) -> None:
        self.thinking = ("I look it up.",) if thinks else ()
        self.rounds = 0
        self.summaries = 0

    def __call__(self, request: VendorRequest) -> Answer:
        if "You compress the history" in str(request.body):
            self.summaries += 1
            return Answer("<summary>The user asks for the weather.</summary>")
        self.rounds += 1
        if self.rounds % 3:
            return Answer(calls=(("weather", {"city": f"City {self.rounds}"}),), thinking=self.thinking)
        return Answer(LONG_ANSWER, thinking=self.thinking)


async def check_long_session(family: Family, history: History, turns: int = 14) -> LongSession:
    """Ask many questions in one session; no request may be refused or grow without limit."""
    model = LongSession(thinks=bool(family.thinking))
    async with family.open(then=model, history=history, tools=[long_weather]) as (double, atlas):
        for number in range(turns):
            reply = await atlas.ask(f"Question {number} " + "x" * 300)
            assert reply.text == LONG_ANSWER
    assert [str(refusal) for refusal in double.refusals] == []
    assert len(double.requests) == 3 * turns + model.summaries
    assert max(len(request.raw) for request in double.requests) < 25_000
    return model
