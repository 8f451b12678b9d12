"""Model settings on every wire, against the strict doubles: where each is sent, and what is dropped."""

import json
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypedDict, cast

import pytest

from atlas_agents import (
    Agent,
    AnthropicProvider,
    Atlas,
    GeminiProvider,
    OpenAIProvider,
    OpenAIResponsesProvider,
    tool,
)
from atlas_agents.core.paths import Environment
from vendors.anthropic import AnthropicDouble
from vendors.common import KEY, Answer, Refusal, VendorDouble
from vendors.deepseek import DeepSeekDouble
from vendors.gemini import GeminiDouble
from vendors.openai_chat import OpenAIChatDouble
from vendors.openai_responses import OpenAIResponsesDouble

NOTHING = Environment({}, dotenv=None)
HELLO = Answer("Hello.")


@tool
async def weather(city: str) -> str:
    """Return the weather in a city."""
    return city


class Wire:
    """A vendor's double, and the provider that speaks its wire."""

    def __init__(self, double: Callable[..., VendorDouble], provider: Callable[..., Any], path: str = "") -> None:
        self.double, self._provider, self._path = double, provider, path

    def connect(self, vendor: VendorDouble, model: str) -> Any:
        return self._provider(model, base_url=f"{vendor.url}{self._path}", api_key=KEY, environment=NOTHING)


ANTHROPIC = Wire(AnthropicDouble, AnthropicProvider)
CHAT = Wire(OpenAIChatDouble, OpenAIProvider, "/v1")
RESPONSES = Wire(OpenAIResponsesDouble, OpenAIResponsesProvider, "/v1")
GEMINI = Wire(GeminiDouble, GeminiProvider)
DEEPSEEK = Wire(DeepSeekDouble, partial(OpenAIProvider, id="deepseek"), "/v1")
WIRES = {"anthropic": ANTHROPIC, "chat": CHAT, "responses": RESPONSES, "gemini": GEMINI, "deepseek": DEEPSEEK}


def _find(body: dict[str, Any], path: str) -> Any:
    found: Any = body
    for name in path.split("."):
        found = cast(dict[str, Any], found).get(name) if isinstance(found, dict) else None
    return found


@pytest.mark.parametrize(
    ("wire", "model", "settings", "sent"),
    [
        ("anthropic", "claude-opus-5-5", {"effort": "high"}, {"output_config.effort": "high"}),
        ("anthropic", "claude-opus-5-5", {"effort": "none"}, {"output_config.effort": "low"}),
        ("anthropic", "claude-sonnet-5-5", {"effort": "none"}, {"thinking.type": "between_tools"}),
        ("anthropic", "claude-haiku-5-5", {"effort": "none"}, {"thinking.type": "disabled"}),
        ("anthropic", "claude-opus-5", {"effort": 9000}, {"output_config.effort": "medium"}),
        ("anthropic", "claude-opus-4-7", {"effort": "max"}, {"output_config.effort": "max"}),
        ("anthropic", "claude-opus-4-6", {"effort": "xhigh"}, {"output_config.effort": "high"}),
        ("anthropic", "claude-sonnet-4-5", {"effort": "medium"}, {"thinking.budget_tokens": 8192}),
        ("anthropic", "claude-sonnet-4-5", {"effort": 2000, "max_tokens": 3000}, {"thinking.budget_tokens": 2000}),
        ("anthropic", "claude-sonnet-4-5", {"effort": "high", "max_tokens": 600}, {"thinking": None}),
        ("anthropic", "claude-opus-5-5", {"temperature": 0.3, "top_p": 0.5}, {"temperature": None, "top_p": None}),
        ("anthropic", "claude-opus-4-6", {"temperature": 0.3}, {"temperature": 0.3}),
        ("anthropic", "claude-opus-5-5", {"seed": 7, "stop": ("END",)}, {"seed": None, "stop_sequences": ["END"]}),
        (
            "anthropic",
            "claude-opus-5-5",
            {"parallel_tool_calls": False, "service_tier": "standard_only"},
            {"tool_choice.disable_parallel_tool_use": True, "service_tier": "standard_only"},
        ),
        ("chat", "gpt-5.2", {"effort": "high", "max_tokens": 900}, {"reasoning_effort": "high"}),
        ("chat", "gpt-5.2", {"effort": "high", "temperature": 0.3}, {"reasoning_effort": "high", "temperature": None}),
        ("chat", "gpt-5.2", {"temperature": 0.3, "seed": 7}, {"temperature": 0.3, "seed": 7}),
        ("chat", "gpt-5", {"effort": "none"}, {"reasoning_effort": "minimal"}),
        ("chat", "gpt-4.1", {"effort": "high", "top_p": 0.5}, {"reasoning_effort": None, "top_p": 0.5}),
        (
            "chat",
            "gpt-4.1",
            {"parallel_tool_calls": False, "service_tier": "flex", "stop": ("END",)},
            {"parallel_tool_calls": False, "service_tier": "flex", "stop": ["END"]},
        ),
        ("responses", "gpt-5.6", {"effort": "max"}, {"reasoning.effort": "max"}),
        (
            "responses",
            "gpt-5.6",
            {"effort": "none", "temperature": 0.3},
            {"reasoning.effort": "none", "temperature": 0.3},
        ),
        ("responses", "gpt-5.6", {"effort": "minimal"}, {"reasoning.effort": "low"}),
        ("responses", "gpt-5.6", {"effort": 30_000}, {"reasoning.effort": "max"}),
        ("responses", "gpt-6-astra", {"effort": "none"}, {"reasoning.effort": "low"}),
        ("responses", "gpt-5.6", {"temperature": 0.3, "seed": 7}, {"temperature": None, "seed": None}),
        (
            "responses",
            "gpt-5.6",
            {"parallel_tool_calls": False, "service_tier": "flex", "stop": ("END",)},
            {"parallel_tool_calls": False, "service_tier": "flex", "stop": None},
        ),
        ("gemini", "gemini-3.8-flash", {"effort": "high"}, {"generationConfig.thinkingConfig.thinkingLevel": "HIGH"}),
        ("gemini", "gemini-3.8-flash", {"effort": "none"}, {"generationConfig.thinkingConfig.thinkingLevel": "LOW"}),
        ("gemini", "gemini-2.5-flash", {"effort": "none"}, {"generationConfig.thinkingConfig.thinkingBudget": 0}),
        ("gemini", "gemini-2.5-pro", {"effort": "none"}, {"generationConfig.thinkingConfig.thinkingBudget": 128}),
        ("gemini", "gemini-2.5-flash", {"effort": 4000}, {"generationConfig.thinkingConfig.thinkingBudget": 4000}),
        (
            "gemini",
            "gemini-3.8-flash",
            {"top_p": 0.5, "seed": 7, "stop": ("END",), "parallel_tool_calls": False},
            {"generationConfig.topP": 0.5, "generationConfig.seed": 7, "generationConfig.stopSequences": ["END"]},
        ),
        ("deepseek", "deepseek-v4-pro", {"effort": "none"}, {"thinking.type": "disabled"}),
        ("deepseek", "deepseek-v4-pro", {"effort": "medium"}, {"reasoning_effort": "high"}),
        ("deepseek", "deepseek-v4-pro", {"effort": 1000, "max_tokens": 2000}, {"reasoning_effort": "low"}),
        (
            "gemini",
            "gemini-3.8-flash",
            {"top_p": 0.5, "extra_body": {"generationConfig": {"topK": 5}}},
            {"generationConfig.topP": 0.5, "generationConfig.topK": 5},
        ),
    ],
)
async def test_setting_is_sent_as_the_vendor_knows_it(
    wire: str, model: str, settings: dict[str, Any], sent: dict[str, Any]
) -> None:
    async with WIRES[wire].double(HELLO) as vendor:
        agent = Agent("a", model=WIRES[wire].connect(vendor, model), tools=[weather])
        async with Atlas(agents=[agent]) as atlas:
            assert (await atlas.ask("Hi", settings=settings)).text == "Hello."
        assert [str(refusal) for refusal in vendor.refusals] == []
        assert {path: _find(vendor.bodies[0], path) for path in sent} == sent


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("extra", [{"extra_body": {"of_next_year": {"a": 1}}}, {"extra_headers": {"X-Tag": "one"}}])
async def test_extra_fields_and_headers_are_sent_on_every_wire(wire: str, extra: dict[str, Any]) -> None:
    model = {"anthropic": "claude-opus-5-5", "chat": "gpt-5.2", "responses": "gpt-5.6", "gemini": "gemini-3.8-flash"}
    model["deepseek"] = "deepseek-v4-pro"
    async with WIRES[wire].double(then=HELLO) as vendor:
        agent = Agent("a", model=WIRES[wire].connect(vendor, model[wire]), settings=extra)
        await agent.call("Hi")
        await agent.close()
        (request,) = vendor.requests
    if "extra_body" in extra:
        assert request.body["of_next_year"] == {"a": 1}
    else:
        assert request.headers["x-tag"] == "one"


@pytest.mark.parametrize(
    ("wire", "model", "settings", "refusal", "field"),
    [
        (
            "anthropic",
            "claude-opus-4-6",
            {"temperature": 0.3},
            Refusal("`temperature` is deprecated for this model.", type="invalid_request_error"),
            "temperature",
        ),
        (
            "anthropic",
            "claude-opus-5-5",
            {"service_tier": "auto"},
            Refusal("service_tier: Extra inputs are not permitted", type="invalid_request_error"),
            "service_tier",
        ),
        (
            "chat",
            "gpt-5.2",
            {"effort": "xhigh"},
            Refusal("Unsupported value: 'reasoning_effort' …", param="reasoning_effort", code="unsupported_value"),
            "reasoning_effort",
        ),
        (
            "responses",
            "gpt-5.6",
            {"service_tier": "flex"},
            Refusal("Invalid service_tier argument", param="service_tier", type="invalid_request_error"),
            "service_tier",
        ),
        (
            "gemini",
            "gemini-3.8-flash",
            {"effort": "medium"},
            Refusal("Thinking level is not supported for this model.", type="INVALID_ARGUMENT"),
            "generationConfig.thinkingConfig",
        ),
        (
            "gemini",
            "gemini-3.8-flash",
            {"seed": 7},
            Refusal('Invalid JSON payload received. Unknown name "seed": Cannot find field.', type="INVALID_ARGUMENT"),
            "generationConfig.seed",
        ),
    ],
)
async def test_refused_setting_is_dropped_once_and_for_all(
    wire: str, model: str, settings: dict[str, Any], refusal: Refusal, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with WIRES[wire].double(refusal, then=HELLO) as vendor:
        agent = Agent("a", model=WIRES[wire].connect(vendor, model), settings=settings)
        async with Atlas(agents=[agent]) as atlas:
            assert [(await atlas.ask("Hi")).text for _ in range(2)] == ["Hello.", "Hello."]
        assert [_find(body, field) is not None for body in vendor.bodies] == [True, False, False]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and f"setting={next(iter(settings))}" in warnings[0]


# Reasoning

SIGNATURE = "messages.1.content.0: Invalid `signature` in `thinking` block"


@pytest.mark.parametrize(
    ("wire", "model", "event"),
    [
        ("anthropic", "claude-opus-5-5", {"error": {"type": "invalid_request_error", "message": SIGNATURE}}),
        ("responses", "gpt-5.6", {"code": "invalid_encrypted_content", "message": "The content is not verified."}),
        ("deepseek", "deepseek-v4-pro", {"error": {"code": 400, "message": SIGNATURE}}),
    ],
)
async def test_reasoning_that_a_stream_refuses_is_not_returned(wire: str, model: str, event: dict[str, Any]) -> None:
    data = json.dumps({"type": "error", **event})
    refusal = Answer(events=(f"event: error\ndata: {data}\n\n".encode(),))
    async with WIRES[wire].double(Answer("Hi.", thinking=("Hm.",)), refusal, HELLO) as vendor:
        async with Atlas([Agent("a", model=WIRES[wire].connect(vendor, model), settings={"effort": "high"})]) as atlas:
            await atlas.ask("Hi")
            stream = atlas.send("Well?")
            names = [event.type async for event in stream]
            assert (await stream.reply()).text == "Hello."
        assert "stream:reset" not in names
        sent = [json.dumps(body) for body in vendor.bodies]
        assert ["Hm." in each or 'encrypted_content":' in each for each in sent] == [False, True, False]


# Strict tools


class Place(TypedDict):
    city: str
    country: str | None


@tool
async def locate(place: Place, unit: Literal["C", "F"], near: str | None = None) -> str:
    """Return where a place is."""
    return f"{place['city']} {unit} {near}"


@tool
async def guess(city: str, days: int = 3) -> str:
    """Guess the weather."""
    return city


@tool
async def note(values: dict[str, int]) -> str:
    """Take a note of any values."""
    return str(values)


STRICT_TOOLS = [locate, guess, note]


def _strict_tools(body: dict[str, Any]) -> list[str]:
    tools = [cast(dict[str, Any], each.get("function", each)) for each in body["tools"]]
    return [each["name"] for each in tools if each.get("strict")]


@pytest.mark.parametrize(
    ("wire", "model", "setting", "strict"),
    [
        ("chat", "gpt-4.1", None, ["locate"]),
        ("responses", "gpt-5.6", None, ["locate"]),
        ("responses", "gpt-5.6", False, []),
        ("anthropic", "claude-opus-5-5", None, []),
        ("anthropic", "claude-opus-5-5", True, ["locate", "guess"]),
        ("deepseek", "deepseek-v4-pro", True, []),
        ("gemini", "gemini-3.8-flash", True, []),
    ],
)
async def test_tools_are_strict_where_their_schema_means_the_same(
    wire: str, model: str, setting: bool | None, strict: list[str]
) -> None:
    arguments = {"place": {"city": "Lima", "country": None}, "unit": "C", "near": None}
    async with WIRES[wire].double(Answer(calls=(("locate", arguments),)), HELLO) as vendor:
        provider = WIRES[wire].connect(vendor, model)
        agent = Agent("a", model=provider, tools=STRICT_TOOLS, settings={"strict_tools": setting})
        async with Atlas([agent]) as atlas:
            result = await atlas.run("Where?")
        assert [step.output for step in result.steps] == ["Lima C None"]
        assert vendor.refusals == []
        if wire != "gemini":
            assert _strict_tools(vendor.bodies[0]) == strict


@pytest.mark.parametrize(
    ("wire", "model", "refusal"),
    [
        ("chat", "gpt-4.1", Refusal("Invalid schema for function 'locate'", code="invalid_function_parameters")),
        ("chat", "gpt-4.1", Refusal("Unknown parameter: 'tools[0].function.strict'.", code="unknown_parameter")),
        ("responses", "gpt-5.6", Refusal("Invalid schema for function 'locate'", code="invalid_function_parameters")),
        ("anthropic", "claude-opus-5-5", Refusal("The compiled grammar is too large. Simplify your strict tools.")),
    ],
)
async def test_strict_tools_that_a_server_refuses_are_sent_as_others(
    wire: str, model: str, refusal: Refusal, caplog: pytest.LogCaptureFixture
) -> None:
    async with WIRES[wire].double(refusal, HELLO, HELLO) as vendor:
        agent = Agent(
            "a", model=WIRES[wire].connect(vendor, model), tools=STRICT_TOOLS, settings={"strict_tools": True}
        )
        async with Atlas([agent]) as atlas:
            assert (await atlas.ask("Where?")).text == "Hello."
            assert (await atlas.ask("Where?")).text == "Hello."
        assert [bool(_strict_tools(body)) for body in vendor.bodies] == [True, False, False]
    assert sum("setting=strict" in each.message for each in caplog.records) == 1


async def test_strict_tools_stay_within_the_limits_of_anthropic() -> None:
    many = [guess.named(f"guess_{number}") for number in range(30)]
    async with AnthropicDouble(HELLO) as vendor:
        provider = ANTHROPIC.connect(vendor, "claude-opus-5-5")
        async with Atlas([Agent("a", model=provider, tools=many, settings={"strict_tools": True})]) as atlas:
            assert (await atlas.ask("Where?")).text == "Hello."
        assert len(_strict_tools(vendor.bodies[0])) == 20
        assert vendor.refusals == []


# Warnings


async def test_reply_names_the_settings_that_were_not_sent() -> None:
    refusal = Refusal("Unsupported parameter: 'seed'", code="unsupported_parameter", param="seed")
    async with OpenAIChatDouble(refusal, then=HELLO) as vendor:
        agent = Agent("a", model=CHAT.connect(vendor, "gpt-4.1"), settings={"seed": 7})
        async with Atlas([agent]) as atlas:
            first = await atlas.ask("Hi", settings={"effort": "high"})
            second = await atlas.ask("Hi", settings={"effort": "high"})
            third = await atlas.ask("Hi", settings={"effort": "high"}, session="other")
        async with Atlas([Agent("b", model=CHAT.connect(vendor, "gpt-4.1"))]) as atlas:
            assert "warnings" not in (await atlas.ask("Hi")).metadata
    effort = "model setting not sent: model=gpt-4.1 setting=effort reason=the model does not reason"
    seed = "model setting not sent: model=gpt-4.1 setting=seed reason=the server refused it"
    assert first.metadata["warnings"][0] == effort and first.metadata["warnings"][1].startswith(seed)
    assert sorted(second.metadata["warnings"]) == sorted(third.metadata["warnings"]) == [effort, seed]
