"""Reports of evaluations: pass rates with confidence intervals, a paired comparison of two runs, JSON and JUnit."""

import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from xml.etree import ElementTree

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import write_json
from atlas_agents.core.text import list_known
from atlas_agents.evaluation.runner import Evaluation, Result, ResultFile

_Z = 1.959964
"""Quantile of the normal distribution for 95 %."""
_RESAMPLES = 5000
SUFFIX = ".jsonl"
"""Ending of the names of result files."""
_NOT_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_MIN_PAIRS = 5
"""Minimum number of cases for a confidence interval; with fewer, it would be meaningless."""


class Interval(msgspec.Struct, frozen=True):
    """A 95 % confidence interval.

    Attributes:
        low: Lower end.
        high: Upper end.
    """

    low: float
    high: float


class ColumnSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one agent with one model.

    `pass_rate` is the share of results that passed; an error counts as not passed. `interval` is where the pass rate of
    further cases like these lies with 95 % confidence (Wilson).

    Attributes:
        agent: Id of the agent.
        model: Reference of the model.
        results: Number of results.
        passed: How many of them passed.
        errors: How many of them are errors.
        pass_rate: Share of results that passed.
        interval: Confidence interval of the pass rate.
        mean_score: Mean of the scores; an error counts as 0.
        tokens: Input and output tokens.
        dollars: Cost; None if no price is known.
        median_seconds: Median of how long the turns took.
    """

    agent: str
    model: str
    results: int
    passed: int
    errors: int
    pass_rate: float
    interval: Interval
    mean_score: float
    tokens: int
    dollars: float | None
    median_seconds: float


class TagSummary(msgspec.Struct, frozen=True):
    """How many results with a tag passed with one model.

    Attributes:
        tag: The tag.
        model: Reference of the model.
        passed: How many results passed.
        results: How many results there are.
    """

    tag: str
    model: str
    passed: int
    results: int


class CaseChange(msgspec.Struct, frozen=True):
    """A case whose score differs from that of the earlier evaluation.

    Attributes:
        case: Id of the case.
        before: Its score in the earlier evaluation.
        after: Its score now.
    """

    case: str
    before: float
    after: float


class ScoreComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One agent with one model, compared with an earlier evaluation on the cases that both have.

    `difference` is that of the mean scores. `interval` is where it lies with 95 % confidence (paired bootstrap over the
    cases with a fixed seed); None with too few cases.

    Attributes:
        agent: Id of the agent.
        model: Reference of the model.
        earlier_agent: Id of the agent in the earlier evaluation.
        earlier_model: Reference of the model in the earlier evaluation.
        cases: Number of cases that both have.
        only_now: Number of cases that only this one has.
        only_earlier: Number of cases that only the earlier one has.
        difference: Difference of the mean scores.
        interval: Confidence interval of the difference.
        changes: Cases whose score differs, the worst first.
    """

    agent: str
    model: str
    earlier_agent: str
    earlier_model: str
    cases: int
    only_now: int
    only_earlier: int
    difference: float
    interval: Interval | None
    changes: tuple[CaseChange, ...]

    @property
    def is_worse(self) -> bool:
        """Whether the interval is below zero: the scores are worse beyond chance."""
        return self.interval is not None and self.interval.high < 0

    @property
    def is_better(self) -> bool:
        """Whether the interval is above zero: the scores are better beyond chance."""
        return self.interval is not None and self.interval.low > 0


class EvaluationReport(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation with its summaries and, if one was asked for, the comparison with an earlier one.

    Attributes:
        evaluation: The evaluation.
        columns: A summary of each agent and model.
        tags: How many results of each tag passed.
        earlier: Id of the earlier evaluation; empty if there is none.
        comparisons: The comparison of each agent and model.
    """

    evaluation: Evaluation
    columns: tuple[ColumnSummary, ...]
    tags: tuple[TagSummary, ...] = ()
    earlier: str = ""
    comparisons: tuple[ScoreComparison, ...] = ()


def make_report(evaluation: Evaluation, earlier: Evaluation | None = None) -> EvaluationReport:
    """Summarise an evaluation, and compare it with an earlier one."""
    return EvaluationReport(
        evaluation=evaluation,
        columns=tuple(_summarise(*key, results) for key, results in _columns(evaluation).items()),
        tags=_tags(evaluation),
        earlier=earlier.id if earlier is not None else "",
        comparisons=compare(evaluation, earlier) if earlier is not None else (),
    )


def _tags(evaluation: Evaluation) -> tuple[TagSummary, ...]:
    found: dict[tuple[str, str], list[bool]] = {}
    for result in evaluation.results:
        for tag in result.tags:
            found.setdefault((tag, result.model), []).append(result.status == "passed")
    return tuple(TagSummary(*key, sum(passed), len(passed)) for key, passed in found.items())


def _columns(evaluation: Evaluation) -> dict[tuple[str, str], list[Result]]:
    found: dict[tuple[str, str], list[Result]] = {}
    for result in evaluation.results:
        found.setdefault((result.agent, result.model), []).append(result)
    return found


def _summarise(agent: str, model: str, results: Sequence[Result]) -> ColumnSummary:
    passed = sum(result.status == "passed" for result in results)
    costs = [result.dollars for result in results if result.dollars is not None]
    return ColumnSummary(
        agent=agent,
        model=model,
        results=len(results),
        passed=passed,
        errors=sum(result.status == "error" for result in results),
        pass_rate=passed / len(results),
        interval=wilson(passed, len(results)),
        mean_score=fmean(result.score for result in results),
        tokens=sum(result.tokens for result in results),
        dollars=sum(costs) if costs else None,
        median_seconds=median(result.seconds for result in results),
    )


def wilson(passed: int, total: int) -> Interval:
    """Return the Wilson score interval of a share: unlike the normal one, it stays within 0 and 1 for few cases."""
    share, square = passed / total, _Z * _Z
    middle = share + square / (2 * total)
    half = _Z * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    below = 1 + square / total
    return Interval(max(0.0, (middle - half) / below), min(1.0, (middle + half) / below))


def compare(now: Evaluation, earlier: Evaluation) -> tuple[ScoreComparison, ...]:
    """Compare each agent and model with itself in an earlier evaluation.

    If both evaluations have only one agent and model, these are compared even if they differ.
    """
    columns, before = _columns(now), _columns(earlier)
    if len(columns) == len(before) == 1:
        pairs = [(next(iter(columns)), next(iter(before)))]
    else:
        pairs = [(key, key) for key in columns if key in before]
    if not pairs:
        known = list_known("agents and models of the earlier one", [f"{agent} {model}" for agent, model in before])
        raise ConfigError(f"evaluation {earlier.id} has no agent and model in common with this one; {known}")
    return tuple(_compare(key, columns[key], other, before[other]) for key, other in pairs)


def _compare(
    key: tuple[str, str], results: Iterable[Result], other: tuple[str, str], before: Iterable[Result]
) -> ScoreComparison:
    after_scores, before_scores = _case_scores(results), _case_scores(before)
    shared = [case for case in after_scores if case in before_scores]
    differences = [after_scores[case] - before_scores[case] for case in shared]
    changes = [
        CaseChange(case, before_scores[case], after_scores[case])
        for case, difference in zip(shared, differences, strict=True)
        if abs(difference) > 1e-9
    ]
    return ScoreComparison(
        agent=key[0],
        model=key[1],
        earlier_agent=other[0],
        earlier_model=other[1],
        cases=len(shared),
        only_now=len(after_scores) - len(shared),
        only_earlier=len(before_scores) - len(shared),
        difference=fmean(differences) if differences else 0.0,
        interval=bootstrap(differences),
        changes=tuple(sorted(changes, key=lambda change: change.after - change.before)),
    )


def _case_scores(results: Iterable[Result]) -> dict[str, float]:
    """Return the mean score of each case over its repetitions."""
    found: dict[str, list[float]] = {}
    for result in results:
        found.setdefault(result.case, []).append(result.score)
    return {case: fmean(scores) for case, scores in found.items()}


def bootstrap(differences: Sequence[float]) -> Interval | None:
    """Return the bootstrap interval of the mean of paired differences; None if there are too few.

    The cases are drawn with replacement from a fixed seed, so the same results always give the same interval.
    """
    count = len(differences)
    if count < _MIN_PAIRS:
        return None
    draw = random.Random(0)
    means = sorted(fmean(draw.choices(differences, k=count)) for _ in range(_RESAMPLES))
    return Interval(means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES) - 1])


# Files


class _Document(msgspec.Struct, frozen=True):
    evaluation: Evaluation


def write_report(path: Path, report: EvaluationReport) -> None:
    """Write a report as JSON."""
    _write(path, lambda: write_json(path, report))


def read_evaluation(path: Path) -> Evaluation:
    """Read an evaluation from its result file, or from a report that `write_report` wrote."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Document).evaluation
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ResultFile.read(path).evaluation  # its errors say what is wrong


def list_evaluations(folder: Path, limit: int = 1000) -> list[Evaluation]:
    """Return the latest evaluations whose result files are in a folder, newest first, without unreadable ones."""
    found: list[Evaluation] = []
    paths = sorted(folder.glob(f"*{SUFFIX}"), key=_changed_at, reverse=True)
    for path in paths[:limit]:
        with suppress(ConfigError):
            found.append(ResultFile.read(path).evaluation)
    return sorted(found, key=lambda evaluation: evaluation.started_at, reverse=True)


def _changed_at(path: Path) -> float:
    """Return the modification time of a file; 0 if it was removed meanwhile, or is a broken link."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def write_junit(path: Path, evaluation: Evaluation) -> None:
    """Write the results as JUnit XML, which CI systems show: one test suite per agent and model."""
    root = ElementTree.Element("testsuites", name=_printable(evaluation.name))
    for (agent, model), results in _columns(evaluation).items():
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_printable(f"{agent} {model}"),
            tests=str(len(results)),
            failures=str(sum(result.status == "failed" for result in results)),
            errors=str(sum(result.status == "error" for result in results)),
            time=f"{sum(result.seconds for result in results):.3f}",
        )
        for result in results:
            _add_case(suite, result)
    content = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    _write(path, lambda: path.write_bytes(content))


def _add_case(suite: ElementTree.Element, result: Result) -> None:
    name = result.case if result.repeat == 1 else f"{result.case} (repeat {result.repeat})"
    case = ElementTree.SubElement(
        suite,
        "testcase",
        name=_printable(name),
        classname=_printable(f"{result.agent}.{result.model}"),
        time=f"{result.seconds:.3f}",
    )
    if result.status == "failed":
        ElementTree.SubElement(case, "failure", message=_printable(explain(result))).text = _printable(result.answer)
    elif result.status == "error":
        ElementTree.SubElement(case, "error", message=_printable(result.error))


def explain(result: Result) -> str:
    """Explain why a result did not pass."""
    if result.status == "error":
        return result.error
    return "; ".join(f"{score.name}: {score.reason}" for score in result.scores if not score.passed)


def _printable(text: str) -> str:
    """Remove the characters that XML cannot contain."""
    return _NOT_XML.sub("", text)


def _write(path: Path, write: Callable[[], object]) -> None:
    try:
        write()
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; check the folder and its permissions") from error
