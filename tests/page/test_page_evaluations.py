"""Evaluations in the page: the list, the table of cases and models, and the comparison with an earlier one."""

from pathlib import Path

import pytest
from browser import PHONE, GatewayProcess, Tab, Windows
from playwright.sync_api import expect

from atlas_agents.evaluation import CallMade, Evaluation, Result, ResultFile, Score

pytestmark = pytest.mark.slow
MODELS = ("local/small", "local/large")


def store(home: Path, id: str, failing: str, started_at: int) -> None:
    folder = home / "evaluations"
    folder.mkdir(exist_ok=True)
    evaluation = Evaluation(
        id=id,
        name="ten tool calls",
        file="cases.yaml",
        started_at=started_at,
        fingerprint="",
        agents=("assistant",),
        models=MODELS,
        repeat=1,
        total=12,
    )
    file = ResultFile.create(folder / f"{id}.jsonl", evaluation)
    for model in MODELS:
        for case in ("weather", "time", "add", "email", "song", "timer"):
            failed = case == failing and model == MODELS[0]
            score = Score("tool_calls", 0.0, False, "missing get_time") if failed else Score("tool_calls", 1.0, True)
            file.add(
                Result(
                    case=case,
                    agent="assistant",
                    model=model,
                    status="failed" if failed else "passed",
                    score=score.value,
                    scores=(score,),
                    calls=(CallMade("get_weather", {"city": "London"}),),
                    seconds=1.5,
                    tokens=300,
                )
            )


def test_evaluation_shows_cases_models_and_differences(tab: Tab) -> None:
    store(tab.gateway.home, "first", "time", 1_700_000_000_000)
    store(tab.gateway.home, "second", "add", 1_700_000_100_000)
    tab.open("/activity/evaluations")
    page = tab.page
    expect(page.get_by_role("link", name="Evaluations")).to_have_attribute("aria-current", "page")
    expect(page.locator(".ant-table-row")).to_have_count(2)
    expect(page.locator(".ant-table-row").first).to_contain_text("assistant11 of 120.92")
    page.locator(".ant-table-row").first.click()
    expect(page.get_by_role("heading", name="ten tool calls")).to_be_visible()
    expect(page.locator(".stat")).to_have_count(2)
    expect(page.locator(".stat").first).to_contain_text("5 of 6 passed")
    expect(page.locator(".ant-tag", has_text="Failed")).to_have_count(1)
    expect(page.locator("tr", has_text="Failed")).to_contain_text("tool_calls: missing get_time")
    page.get_by_role("combobox", name="Compare with").click()
    page.locator(".ant-select-item-option", has_text="ten tool calls").click()
    expect(page.locator(".stat").first).to_contain_text("+0.00 in the mean score of 6 cases")
    expect(page.locator(".evaluation-cell", has_text="was 0.00")).to_have_count(1)
    page.locator("tr", has_text="add").get_by_role("button", name="Expand row").click()
    expect(page.locator(".ant-table-expanded-row")).to_contain_text("missing get_time")
    assert tab.axe_violations() == []
    assert tab.errors == []


def test_evaluation_fits_a_phone(gateway: GatewayProcess, windows: Windows) -> None:
    store(gateway.home, "first", "time", 1_700_000_000_000)
    tab = next(windows.tabs(gateway, **PHONE)).open("/activity/evaluations")
    expect(tab.page.get_by_text("ten tool calls")).to_be_visible()
    assert tab.fits_width()
    tab.open("/activity/evaluations/first")
    expect(tab.page.locator(".stat").first).to_contain_text("5 of 6 passed")
    assert tab.fits_width()
