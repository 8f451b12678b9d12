"""Scorers: what passes, what fails, and the reason that a person reads."""

from typing import Any

import pytest

from atlas_agents import AtlasError
from atlas_agents.core.errors import ConfigError
from atlas_agents.evaluation import CallMade, Outcome, Score
from atlas_agents.evaluation.scorers import Rubric, RubricVerdict, make_scorers


async def no_grade(rubric: Rubric, outcome: Outcome) -> RubricVerdict:
    raise AssertionError("not graded")


async def score(name: str, expected: Any, outcome: Outcome) -> Score:
    scorers = make_scorers({name: expected}, lambda reference: None)
    return await scorers[0](outcome, outcome, no_grade)


def answered(text: str, *calls: CallMade, **fields: Any) -> Outcome:
    return Outcome("Q", text, calls, **fields)


LIMA, OSLO = CallMade("weather", {"city": "Lima"}), CallMade("weather", {"city": "Oslo"})
EXPECT_LIMA = {"name": "weather", "arguments": {"city": "Lima"}}


TABLE: list[tuple[str, Any, Outcome, float, str]] = [
    ("exact", "42", answered(" 42\n"), 1.0, ""),
    ("exact", ["42", "forty-two"], answered("forty-two"), 1.0, ""),
    ("exact", "42", answered("It is 42."), 0.0, "expected '42', got 'It is 42.'"),
    ("contains", "paris", answered("Paris it is"), 1.0, ""),
    ("contains", ["Paris", "Rome"], answered("Paris"), 0.5, "missing 'Rome' in 'Paris'"),
    ("excludes", "sorry", answered("Sorry, no"), 0.0, "found 'sorry'"),
    ("excludes", "sorry", answered("Yes"), 1.0, ""),
    ("regex", r"\d+ degrees", answered("18 degrees"), 1.0, ""),
    ("regex", r"^\d+$", answered("18 degrees"), 0.0, r"no match for '^\\d+$' in '18 degrees'"),
    ("json_schema", {"type": "object", "required": ["a"]}, answered('```json\n{"a": 1}\n```'), 1.0, ""),
    ("json_schema", {"type": "object", "required": ["a"]}, answered('{"b": 1}'), 0.0, "a"),
    ("json_schema", {"type": "object"}, answered("no JSON"), 0.0, "JSON"),
    ("max_seconds", 2, answered("", seconds=1.5), 1.0, ""),
    ("max_seconds", 2, answered("", seconds=2.5), 0.0, "used 2.5 seconds, the limit is 2"),
    ("max_tokens", 100, answered("", tokens=101), 0.0, "used 101 tokens, the limit is 100"),
    ("max_dollars", 0.01, answered("", dollars=0.02), 0.0, "used 0.02 dollars, the limit is 0.01"),
    ("max_dollars", 0.01, answered(""), 0.0, "the price of the model is unknown"),
    ("tool_calls", "none", answered("Hi"), 1.0, ""),
    ("tool_calls", "none", answered("Hi", LIMA), 0.0, "expected no tool call; got weather("),
    ("tool_calls", [EXPECT_LIMA], answered("", LIMA), 1.0, ""),
    ("tool_calls", ["weather"], answered("", LIMA), 1.0, ""),
    ("tool_calls", [EXPECT_LIMA], answered(""), 0.0, 'missing weather({"city":"Lima"}); got no call'),
    ("tool_calls", [EXPECT_LIMA], answered("", OSLO), 0.0, 'missing weather({"city":"Lima"}); got weather('),
    ("tool_calls", [EXPECT_LIMA], answered("", LIMA, OSLO), 0.5, 'unexpected weather({"city":"Oslo"})'),
    (
        "tool_calls",
        ["weather", "time"],
        answered("", CallMade("time"), CallMade("weather")),
        0.5,
        "unexpected time",
    ),
    (
        "tool_calls",
        {"calls": ["weather", "time"], "order": False},
        answered("", CallMade("time"), CallMade("weather")),
        1.0,
        "",
    ),
    ("tool_calls", {"calls": [EXPECT_LIMA], "others": True}, answered("", OSLO, LIMA, OSLO), 1.0, ""),
    ("tool_calls", [{"name": "add", "arguments": {"a": 1}}], answered("", CallMade("add", {"a": 1.0})), 1.0, ""),
    (
        "tool_calls",
        [{"name": "set", "arguments": {"on": 1}}],
        answered("", CallMade("set", {"on": True})),
        0.0,
        "m",
    ),
    (
        "tool_calls",
        [{"name": "weather", "arguments": {"city": {"one_of": ["Lima", "Lima, Peru"]}}}],
        answered("", LIMA),
        1.0,
        "",
    ),
    (
        "tool_calls",
        [{"name": "weather", "arguments": {"city": "Lima", "unit": {"one_of": ["C", None]}}}],
        answered("", LIMA),
        1.0,
        "",
    ),
    ("tool_calls", [{"name": "weather", "arguments": {}}], answered("", LIMA), 0.0, "missing weather({})"),
]


@pytest.mark.parametrize(("name", "expected", "outcome", "value", "reason"), TABLE)
async def test_scorer_returns_a_value_and_a_reason(
    name: str, expected: Any, outcome: Outcome, value: float, reason: str
) -> None:
    found = await score(name, expected, outcome)
    assert (found.name, found.value, found.passed) == (name, pytest.approx(value, abs=0.01), value == 1.0)
    assert reason in found.reason and bool(reason) == bool(found.reason)


async def test_own_function_returns_a_bool_a_number_or_a_score() -> None:
    async def later(outcome: Outcome) -> float:
        return 0.25

    def mine(outcome: Outcome) -> Score:
        return Score("style", 1.0, True, "fine")

    def fine(outcome: Outcome) -> bool:
        return True

    assert await score("function", fine, answered("")) == Score("function:fine", 1.0, True)
    assert await score("function", later, answered("")) == Score("function:later", 0.25, False)
    assert await score("function", mine, answered("")) == Score("style", 1.0, True, "fine")
    for bad in (None, 3, "yes", Score("x", 7.0, True)):

        def wrong(outcome: Outcome, bad: Any = bad) -> Any:
            return bad

        with pytest.raises(AtlasError, match="expected a bool, a number from 0 to 1, or a Score"):
            await score("function", wrong, answered(""))
    with pytest.raises(ConfigError, match="expected a function or 'module:function'"):
        await score("function", 7, answered(""))
