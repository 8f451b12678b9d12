"""Statistics of reports: intervals with known values, pairs of cases, and XML that every parser reads."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from atlas_agents import ConfigError
from atlas_agents.evaluation import (
    Evaluation,
    Result,
    make_report,
    read_evaluation,
    write_junit,
    write_report,
)
from atlas_agents.evaluation.report import bootstrap, wilson


def evaluation(scores: dict[str, float], agent: str = "bot", model: str = "fake/one", id: str = "e1") -> Evaluation:
    results = [
        Result(case=case, agent=agent, model=model, score=score, status="passed" if score == 1 else "failed", seconds=1)
        for case, score in scores.items()
    ]
    fields: dict[str, Any] = {"agents": (agent,), "models": (model,), "repeat": 1, "total": len(results)}
    return Evaluation(id=id, name="s", file="f", started_at=0, fingerprint="", results=tuple(results), **fields)


@pytest.mark.parametrize(
    ("passed", "total", "low", "high"),
    [(0, 10, 0.0, 0.278), (7, 10, 0.397, 0.892), (10, 10, 0.722, 1.0), (1, 1, 0.207, 1)],
)
def test_wilson_interval_has_the_known_values(passed: int, total: int, low: float, high: float) -> None:
    found = wilson(passed, total)
    assert (found.low, found.high) == (pytest.approx(low, abs=0.001), pytest.approx(high, abs=0.001))


def test_bootstrap_interval_is_reproducible_and_contains_the_mean() -> None:
    differences = [1.0, 0.0, -1.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    found = bootstrap(differences)
    assert found is not None and found == bootstrap(differences)
    assert found.low < sum(differences) / 8 < found.high
    assert bootstrap([1.0] * 4) is None
    constant = bootstrap([-0.5] * 9)
    assert constant is not None and constant.low == constant.high == -0.5


def test_comparison_pairs_cases_and_counts_the_others() -> None:
    before = evaluation({f"c{n}": 0.0 for n in range(10)} | {"gone": 1.0}, id="e0")
    now = evaluation({f"c{n}": 1.0 for n in range(10)} | {"new": 1.0})
    (found,) = make_report(now, before).comparisons
    assert (found.cases, found.only_now, found.only_earlier, found.difference) == (10, 1, 1, 1.0)
    assert found.is_better and not found.is_worse and found.changes[0].before == 0.0


def test_single_models_are_compared_with_each_other() -> None:
    before = evaluation({"a": 0.0}, model="fake/old", id="e0")
    (found,) = make_report(evaluation({"a": 1.0}), before).comparisons
    assert (found.earlier_model, found.model, found.interval) == ("fake/old", "fake/one", None)
    two = evaluation({"a": 1.0})
    other = evaluation({"a": 1.0}, agent="x").results + evaluation({"a": 1.0}, agent="y").results
    with pytest.raises(ConfigError, match="no agent and model in common"):
        make_report(two, msgspec.structs.replace(two, results=other))


def test_report_is_read_back(tmp_path: Path) -> None:
    report = make_report(evaluation({"a": 1.0, "b": 0.5}))
    write_report(tmp_path / "report.json", report)
    assert read_evaluation(tmp_path / "report.json") == report.evaluation


def test_junit_contains_no_character_that_xml_forbids(tmp_path: Path) -> None:
    bad = "a\x00b\x1b[31mc\ud800d\uffffe <&\"'>"
    result = Result(case=bad, agent="bot", model="m/x", status="error", error=bad)
    given = evaluation({"a": 1.0})
    write_junit(tmp_path / "junit.xml", msgspec.structs.replace(given, results=(result,), name=bad))
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert root.attrib["name"] == "ab[31mcde <&\"'>"
