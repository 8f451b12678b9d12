"""Scorers: compare a turn's outcome with the expectations of a case. Each returns a score from 0 to 1 and a reason."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from atlas_agents.agents.output import Output
from atlas_agents.core.aio import invoke
from atlas_agents.core.errors import AtlasError, BadOutput, BadTool, ConfigError
from atlas_agents.core.json import encode
from atlas_agents.core.text import one_line, wire_name
from atlas_agents.tools.worker_pool import Workers

_SHOWN = 200
"""Maximum number of quoted characters of a value in a reason."""
_WORKERS = Workers(warm=1, at_most=4)
"""Processes that match regular expressions; they start with the first one and end with the event loop."""


class CallMade(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call of a turn.

    Attributes:
        name: Name of the tool.
        arguments: Arguments of the call.
        status: `ok`, `error`, or `unknown` if the call may have taken effect.
    """

    name: str
    arguments: dict[str, Any] = {}
    status: str = "ok"


class Outcome(msgspec.Struct, frozen=True):
    """Outcome of a turn, the input of scorers.

    Attributes:
        input: The message of the user, as text.
        answer: Text of the answer.
        calls: The tool calls in their order.
        seconds: How long the turn took, including waits for rate limits.
        tokens: Input and output tokens.
        dollars: Cost in US dollars; None if the price of the model is unknown.
        reference: The reference answer of the case.
    """

    input: str
    answer: str = ""
    calls: tuple[CallMade, ...] = ()
    seconds: float = 0.0
    tokens: int = 0
    dollars: float | None = None
    reference: str = ""


class Score(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one scorer.

    Attributes:
        name: Name of the scorer, such as `contains`.
        value: From 0 to 1.
        passed: Whether the expectation is met.
        reason: Why it failed; a model-graded or custom scorer also explains a pass.
    """

    name: str
    value: float
    passed: bool
    reason: str = ""


class RubricVerdict(msgspec.Struct, frozen=True):
    """Verdict of a grading model."""

    reason: str
    passed: bool


class Rubric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rubric that a model grades an answer by.

    Attributes:
        text: Description of a good answer.
        model: Reference of the grading model; that of the suite if empty.
    """

    text: str
    model: str = ""


Grade: TypeAlias = Callable[[Rubric, Outcome], Awaitable[RubricVerdict]]
"""Has a model grade an outcome by a rubric."""
ScoreOutcome: TypeAlias = Callable[[Outcome, Outcome, Grade], Awaitable[Score]]
"""A scorer with its expectation, ready to be called with an outcome, and the same outcome without secrets."""
_Plain: TypeAlias = Callable[[Outcome, Outcome], tuple[float, str]]
"""Returns a value from 0 to 1, and why it is not 1. A reason quotes the second outcome, which has no secrets."""


def make_scorers(expect: Mapping[str, Any], load: Callable[[str], Any]) -> tuple[ScoreOutcome, ...]:
    """Return the scorers of a case; ConfigError for an unknown name or a bad value. `load` imports `module:name`."""
    found: list[ScoreOutcome] = []
    for name, value in expect.items():
        if name == "rubric":
            found.append(_rubric(value))
        elif name == "regex":
            found.append(_regex(value))
        elif name == "function":
            found += [_function(load(each) if isinstance(each, str) else each) for each in _as_list(value)]
        elif name in _PLAIN:
            found.append(_plain(name, _PLAIN[name](value)))
        else:
            raise ConfigError(f"unknown scorer {name!r}: expected {', '.join(sorted(SCORERS))}")
    return tuple(found)


def rubrics(expect: Mapping[str, Any]) -> list[Rubric]:
    """Return the rubrics of a case."""
    return [_read_rubric(each) for each in _as_list(expect.get("rubric", []))]


def _as_list(value: Any) -> list[Any]:
    return [*cast(Sequence[Any], value)] if isinstance(value, (list, tuple)) else [value]


def _plain(name: str, check: _Plain) -> ScoreOutcome:
    async def score(outcome: Outcome, shown: Outcome, grade: Grade) -> Score:
        value, reason = check(outcome, shown)
        return Score(name, value, value == 1.0, reason)

    return score


def _quote(text: str) -> str:
    return repr(one_line(text, _SHOWN))


# The answer's text


def _texts(name: str, value: Any) -> list[str]:
    texts = _as_list(value)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ConfigError(f"{name}: expected a text or a list of texts, got {value!r}; put quotes around a value")
    return cast(list[str], texts)


def _exact(value: Any) -> _Plain:
    allowed = [text.strip() for text in _texts("exact", value)]

    def check(outcome: Outcome, shown: Outcome) -> tuple[float, str]:
        if outcome.answer.strip() in allowed:
            return 1.0, ""
        return 0.0, f"expected {' or '.join(map(_quote, allowed))}, got {_quote(shown.answer)}"

    return check


def _contains(value: Any) -> _Plain:
    texts = _texts("contains", value)

    def check(outcome: Outcome, shown: Outcome) -> tuple[float, str]:
        answer = outcome.answer.casefold()
        missing = [text for text in texts if text.casefold() not in answer]
        reason = f"missing {', '.join(map(_quote, missing))} in {_quote(shown.answer)}" if missing else ""
        return 1 - len(missing) / len(texts), reason

    return check


def _excludes(value: Any) -> _Plain:
    texts = _texts("excludes", value)

    def check(outcome: Outcome, shown: Outcome) -> tuple[float, str]:
        answer = outcome.answer.casefold()
        present = [text for text in texts if text.casefold() in answer]
        return 1 - len(present) / len(texts), f"found {', '.join(map(_quote, present))}" if present else ""

    return check


def _regex(value: Any) -> ScoreOutcome:
    patterns = _texts("regex", value)
    try:
        for pattern in patterns:
            re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"regex: invalid regular expression {error.pattern!r}: {error}") from error

    async def score(outcome: Outcome, shown: Outcome, grade: Grade) -> Score:
        missing = [each for each in patterns if not await _matches(each, outcome.answer)]
        reason = f"no match for {', '.join(map(_quote, missing))} in {_quote(shown.answer)}" if missing else ""
        return Score("regex", 1 - len(missing) / len(patterns), not missing, reason)

    return score


async def _matches(pattern: str, text: str) -> bool:
    """Search in a worker process, because `re` cannot be interrupted and blocks all threads of its process."""
    _, found = await _WORKERS.run(re.subn, {"count": 1}, positional=(pattern, "", text))
    return bool(found)


def _json_schema(value: Any) -> _Plain:
    if not isinstance(value, Mapping):
        raise ConfigError(f"json_schema: expected a JSON schema, got {value!r}")
    try:
        output = Output(dict(cast(Mapping[str, Any], value)))
    except (BadTool, ConfigError, BadOutput) as error:
        raise ConfigError(f"json_schema: {error}") from error

    def find_problem(answer: str) -> str:
        try:
            output.parse(answer)
        except BadOutput as error:
            return str(error)
        return ""

    def check(outcome: Outcome, shown: Outcome) -> tuple[float, str]:
        if not find_problem(outcome.answer):
            return 1.0, ""
        problem = find_problem(shown.answer) or "a value that is redacted"
        return 0.0, one_line(f"the answer is not JSON that matches the schema: {problem}", 2 * _SHOWN)

    return check


# Tool calls


class ExpectedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call that a case expects. Without `arguments`, any will do; `{"one_of": […]}` allows several values."""

    name: str
    arguments: dict[str, Any] | None = None

    def matches(self, call: CallMade) -> bool:
        """Whether a call has this name and these arguments, no fewer and no more."""
        if wire_name(call.name) != wire_name(self.name):  # a model knows `shop/find` as `shop__find`
            return False
        if self.arguments is None:
            return True
        optional = {name for name, value in self.arguments.items() if None in _allowed(value)}
        names = set(call.arguments)
        if names - set(self.arguments) or set(self.arguments) - names - optional:
            return False
        return all(
            any(_equal(each, value) for each in _allowed(self.arguments[name]))
            for name, value in call.arguments.items()
        )


class ExpectedCalls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tool calls that a case expects: in this order, or in any, and whether others may be between them."""

    calls: tuple[ExpectedCall, ...] = ()
    order: bool = True
    others: bool = False


def _allowed(value: Any) -> list[Any]:
    match value:
        case {"one_of": [*values], **rest} if not rest:
            return values
        case _:
            return [value]


def _equal(expected: Any, given: Any) -> bool:
    """Compare JSON values: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(expected, bool) or isinstance(given, bool):
        return expected is given
    match expected, given:
        case dict(), dict():
            one, other = cast(dict[str, Any], expected), cast(dict[str, Any], given)
            return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
        case list(), list():
            first, second = cast(list[Any], expected), cast(list[Any], given)
            return len(first) == len(second) and all(map(_equal, first, second))
        case _:
            return expected == given


def _tool_calls(value: Any) -> _Plain:
    expected = _read_calls(value)

    def check(outcome: Outcome, shown: Outcome) -> tuple[float, str]:
        matched, reason = _match_calls(expected, outcome.calls, shown.calls)
        total = max(len(expected.calls), len(outcome.calls) if not expected.others else 0)
        if not reason:
            return 1.0, ""
        made = ", ".join(map(_show_call, shown.calls)) or "no call"
        return min(matched / total, 0.99) if total else 0.0, f"{reason}; got {made}"

    return check


def _read_calls(value: Any) -> ExpectedCalls:
    listed = isinstance(value, (list, tuple))
    given = cast(Any, {} if value == "none" else {"calls": value} if listed else value)
    if isinstance(given, Mapping):
        fields = dict(cast(Mapping[str, Any], given))
        if isinstance(calls := fields.get("calls"), (list, tuple)):
            named = [{"name": each} if isinstance(each, str) else each for each in cast(Sequence[Any], calls)]
            fields["calls"] = named
        try:
            return msgspec.convert(fields, ExpectedCalls)
        except msgspec.ValidationError as error:
            raise ConfigError(f"tool_calls: {error}") from error
    raise ConfigError(
        f"tool_calls: expected none, a list of calls with name and arguments, or a mapping with calls, got {value!r}"
    )


def _match_calls(expected: ExpectedCalls, made: Sequence[CallMade], shown: Sequence[CallMade]) -> tuple[int, str]:
    """Return the number of expected calls that were made, and the first mismatch; empty if all match."""
    rest = [*zip(made, shown, strict=True)]
    missing: list[ExpectedCall] = []
    for each in expected.calls:
        at = next((at for at, (call, _) in enumerate(rest) if each.matches(call)), None)
        if at is None:
            missing.append(each)
        elif expected.order:
            skipped, rest = rest[:at], rest[at + 1 :]
            if skipped and not expected.others:
                return len(expected.calls) - len(missing) - 1, f"unexpected {_show_call(skipped[0][1])}"
        else:
            rest.pop(at)
    matched = len(expected.calls) - len(missing)
    if missing:
        return matched, f"missing {', '.join(map(_show_call, missing))}"
    if rest and not expected.others:
        return matched, f"unexpected {_show_call(rest[0][1])}" if expected.calls else "expected no tool call"
    return matched, ""


def _show_call(call: CallMade | ExpectedCall) -> str:
    arguments = "…" if call.arguments is None else encode(call.arguments).decode()
    return one_line(f"{call.name}({arguments})", _SHOWN)


# Limits


def _limit(name: str, measure: Callable[[Outcome], float | None], unit: str) -> Callable[[Any], _Plain]:
    def read(value: Any) -> _Plain:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ConfigError(f"{name}: expected a number above 0, got {value!r}")

        def check(outcome: Outcome, shown: Outcome) -> tuple[float, str]:
            used = measure(outcome)
            if used is None:
                return 0.0, "the price of the model is unknown; add it to the model catalogue"
            return (1.0, "") if used <= value else (0.0, f"used {used:.4g} {unit}, the limit is {value:.4g}")

        return check

    return read


# Judged by a model or by your own function


def _read_rubric(value: Any) -> Rubric:
    try:
        rubric = Rubric(value) if isinstance(value, str) else msgspec.convert(value, Rubric)
    except msgspec.ValidationError as error:
        raise ConfigError(f"rubric: expected a text, or a mapping with text and model: {error}") from error
    if not rubric.text.strip():
        raise ConfigError("rubric: the text is empty: expected what a good answer does")
    return rubric


def _rubric(value: Any) -> ScoreOutcome:
    read = [_read_rubric(each) for each in _as_list(value)]

    async def score(outcome: Outcome, shown: Outcome, grade: Grade) -> Score:
        verdicts = [await grade(rubric, shown) for rubric in read]
        passed = [verdict for verdict in verdicts if verdict.passed]
        reasons = "; ".join(verdict.reason for verdict in verdicts)
        return Score("rubric", len(passed) / len(verdicts), len(passed) == len(verdicts), one_line(reasons, 1000))

    return score


def _function(function: Any) -> ScoreOutcome:
    if not callable(function):
        raise ConfigError(f"function: expected a function or 'module:function', got {function!r}")
    name = f"function:{getattr(function, '__name__', type(function).__name__)}"

    async def score(outcome: Outcome, shown: Outcome, grade: Grade) -> Score:
        return _as_score(name, await invoke(function, outcome))

    return score


def _as_score(name: str, returned: Any) -> Score:
    match returned:
        case bool():
            return Score(name, float(returned), returned)
        case int() | float() if 0 <= returned <= 1:
            return Score(name, float(returned), returned == 1)
        case Score() if 0 <= returned.value <= 1:
            return msgspec.structs.replace(returned, name=returned.name or name)
        case _:
            raise AtlasError(f"{name} returned {returned!r}: expected a bool, a number from 0 to 1, or a Score")


_PLAIN: dict[str, Callable[[Any], _Plain]] = {
    "exact": _exact,
    "contains": _contains,
    "excludes": _excludes,
    "json_schema": _json_schema,
    "tool_calls": _tool_calls,
    "max_dollars": _limit("max_dollars", lambda outcome: outcome.dollars, "dollars"),
    "max_seconds": _limit("max_seconds", lambda outcome: outcome.seconds, "seconds"),
    "max_tokens": _limit("max_tokens", lambda outcome: outcome.tokens, "tokens"),
}
SCORERS = (*_PLAIN, "regex", "rubric", "function")
