"""Jobs and schedules in the page: seen as they go, stopped, tried again; added, rested, run and removed."""

import json
import re
from collections.abc import Generator
from typing import Any

import pytest
from browser import HERE, House, Tab, tabs
from playwright.sync_api import Browser, Locator, expect

pytestmark = pytest.mark.slow
AXE = HERE.parent.parent / "web" / "node_modules" / "axe-core" / "axe.min.js"
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}
ENDLESS = json.dumps([[["pause", 3600]]])
QUICK = json.dumps([[["say", "A poem about **roses**."]]])
BROKEN = json.dumps([[["fail", "the key is not valid"]]])
WRONG = """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
  .map((each) => `${each.id}: ${each.nodes.map((node) => `${node.target} ${node.failureSummary}`).join(" | ")}`)"""


def hand_on(tab: Tab, *tasks: str, **more: str) -> None:
    """Have the helper give these tasks to the writer."""
    calls = [["call", "delegate_task", {"target_agent": "writer", "task_description": task, **more}] for task in tasks]
    tab.say(json.dumps([calls, [["say", "Handed on."]]]))
    tab.answers.first.wait_for()


def rows(tab: Tab) -> Locator:
    return tab.page.locator(".jobs tbody tr.ant-table-row")


def written(tab: Tab, name: str, task: str, cron: str) -> None:
    """Fill in the form of a schedule, and send it."""
    for label, words in (("Name", name), ("Task", task), ("When", cron)):
        tab.page.get_by_label(label, exact=True).fill(words)
    tab.page.get_by_role("button", name="Add", exact=True).click()


def looked(tab: Tab, place: str) -> None:
    """Axe finds nothing here, and nothing hangs over the side."""
    tab.page.wait_for_timeout(350)  # what moves in has come to rest
    if not tab.page.evaluate("'axe' in window"):
        tab.page.evaluate(AXE.read_text(encoding="utf-8"))
    assert tab.page.evaluate(WRONG) == [], place
    assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place


@pytest.fixture(params=["dark", "phone"])
def shown(request: pytest.FixtureRequest, browser: Browser, house: House) -> Generator[Tab]:
    look: dict[str, Any] = PHONE if request.param == "phone" else {"color_scheme": request.param}
    tab = next(tabs(browser, house, **look)).open("/jobs")
    yield tab
    assert tab.errors == []
    tab.context.close()


def test_a_job_appears_is_stopped_and_tried_again_while_one_looks(browser: Browser, house: House) -> None:
    window = tabs(browser, house)
    tab, other = next(window).open(), next(window).open("/jobs")
    expect(other.page.get_by_role("heading", name="No job yet")).to_be_visible()
    hand_on(tab, ENDLESS, priority="urgent", deadline="2 hours")
    row = rows(other)
    expect(row).to_have_count(1)
    for words in ("under way", "1 try", "urgent", "in 1 h", "helper", "writer"):
        expect(row).to_contain_text(words)
    row.get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("stopped")
    expect(row).to_contain_text("by owner")
    row.get_by_role("button", name="Try again").click()
    expect(row).to_contain_text("under way")
    expect(row).to_contain_text("2 tries")
    house.kill()  # what happens to it meanwhile is seen when the gateway is back
    expect(row.get_by_role("button", name="Cancel")).to_be_disabled()
    house.start()
    row.get_by_role("button", name="Cancel").click()
    expect(row).to_contain_text("stopped")
    assert tab.errors == other.errors == []


def test_one_job_shows_its_end_its_session_and_its_turns(tab: Tab) -> None:
    hand_on(tab, QUICK, BROKEN)
    tab.page.locator(".places a[href='/jobs']").click()
    expect(rows(tab)).to_have_count(2)
    failed = rows(tab).filter(has_text="failed")
    expect(failed).to_contain_text("the key is not valid")
    expect(rows(tab).filter(has_text="done").get_by_role("button")).to_have_count(0)
    tab.page.get_by_label("State").click()
    tab.page.locator(".ant-select-item", has_text="failed").click()
    expect(rows(tab)).to_have_count(1)
    failed.get_by_role("link").click()
    page = tab.page.locator(".job")
    expect(page.get_by_role("alert")).to_contain_text("the key is not valid")
    tab.page.get_by_role("button", name="Try again").click()
    expect(page).to_contain_text("2 tries")
    expect(page.locator(".turns li")).to_have_count(2)
    tab.page.reload()
    expect(page.locator(".turns li")).to_have_count(2)
    page.locator(".turns a").first.click()
    expect(tab.page.get_by_role("heading", name="One turn")).to_be_visible()
    tab.page.go_back()
    tab.page.get_by_role("button", name="All jobs").click()
    rows(tab).filter(has_text="done").click()
    expect(page.locator("strong", has_text="roses")).to_be_visible()
    page.get_by_role("link", name="open").click()
    tab.shows("A poem about roses.")
    tab.page.reload()
    tab.shows("A poem about roses.")
    tab.page.go_back()
    page.get_by_role("link", name="helper").click()
    tab.shows("Handed on.")


def test_an_address_of_no_job_says_so(tab: Tab) -> None:
    tab.open("/jobs/0000000000000000")
    expect(tab.page.get_by_text("there is no such job")).to_be_visible()


def test_a_schedule_is_added_rests_runs_and_is_removed(tab: Tab) -> None:
    page = tab.page
    page.locator(".places a[href='/jobs']").click()
    page.locator(".tabs").get_by_role("link", name="Schedules").click()
    expect(page.get_by_text("atlas schedule add")).to_be_visible()
    page.get_by_role("button", name="New schedule").click()
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator(".field [role=alert]")).to_have_count(3)
    written(tab, "news", "What is new?", "99 9 * * *")
    expect(page.locator(".field", has_text="When").get_by_role("alert")).to_contain_text("is no cron expression")
    page.get_by_role("button", name="Working days at 09:00").click()
    page.get_by_role("button", name="Add", exact=True).click()
    card = page.locator(".card", has_text="news")
    expect(card).to_contain_text("Working days at 09:00")
    expect(card).to_contain_text("next in")
    card.get_by_role("switch").click()
    expect(card).to_contain_text("rests")
    page.reload()
    expect(card.get_by_role("switch")).not_to_be_checked()
    card.get_by_role("switch").click()
    expect(card).to_contain_text("next in")
    page.get_by_role("button", name="New schedule").click()
    written(tab, "news", "What is new?", "@daily")
    expect(page.locator(".field", has_text="Name").get_by_role("alert")).to_have_text(
        re.compile("of this name already")
    )
    page.keyboard.press("Escape")
    card.get_by_role("button", name="Run now: news").click()
    expect(page.locator(".job")).to_contain_text("You said: What is new?")
    page.locator(".job .facts").get_by_role("link", name="news").click()
    card.get_by_role("button", name="Remove news").click()
    page.locator(".ant-modal").get_by_role("button", name="Remove").click()
    expect(page.get_by_role("heading", name="No schedule yet")).to_be_visible()


def test_axe_finds_nothing_and_a_phone_does_not_scroll_sideways(shown: Tab) -> None:
    page = shown.page
    looked(shown, "no job")
    shown.open("/")
    hand_on(shown, "w" * 300, ENDLESS, BROKEN, priority="urgent", deadline="5 minutes")
    shown.open("/jobs")
    expect(rows(shown)).to_have_count(3)
    expect(rows(shown).filter(has_text="failed")).to_have_count(1)
    looked(shown, "jobs")
    rows(shown).filter(has_text="www").get_by_role("link").click()
    expect(page.locator(".job .panel")).to_be_visible()
    looked(shown, "one job")
    page.get_by_role("button", name="All jobs").click()
    page.locator(".tabs").get_by_role("link", name="Schedules").click()
    expect(page.get_by_role("heading", name="No schedule yet")).to_be_visible()
    looked(shown, "no schedule")
    page.get_by_role("button", name="New schedule").click()
    page.get_by_role("button", name="Add", exact=True).click()
    looked(shown, "the form, with faults")
    written(shown, "n" * 64, "t" * 300, "1,2,3,4,5,6 9-17 1,15 * mon-fri")
    page.locator(".card").get_by_role("switch").click()
    expect(page.locator(".card")).to_contain_text("rests")
    looked(shown, "schedules")
