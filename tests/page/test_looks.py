"""Every view shows what the gateway has, in both colours, on a phone and by keyboard; test_access.py has the rest."""

import json
import subprocess
import sys
from typing import Any

import pytest
from browser import HERE, House, Tab, tabs
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.slow
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}
ROOT = HERE.parent.parent
VIEWS = ("approvals", "agents", "jobs", "audit", "runs", "usage")


def worked(tab: Tab) -> None:
    """A turn that leaves rows behind everywhere."""
    tab.say(json.dumps([[["call", "look_up", {"city": "Oslo"}], ["call", "break_down", {}]], [["say", "Clear."]]]))
    tab.shows("Clear.")
    tab.quiet()


def test_every_view_teaches_while_it_is_empty(tab: Tab) -> None:
    expect(tab.page.get_by_role("heading", name="Welcome to Atlas")).to_be_visible()
    words = {
        "approvals": "Nothing waits for you",
        "jobs": "No job yet",
        "audit": "Nothing was done yet",
        "runs": "No turn yet",
    }
    for view, expected in (words | {"usage": "Nothing was used yet"}).items():
        tab.page.locator(f".places a[href='/{view}']").click()
        expect(tab.page.get_by_role("heading", name=expected)).to_be_visible()


def test_the_welcome_works_with_one_click(tab: Tab) -> None:
    tab.page.get_by_text("What can you do?").click()
    tab.shows("You said: What can you do?")


def test_agents_tools_and_who_may_do_what(tab: Tab) -> None:
    tab.page.locator(".places a[href='/agents']").click()
    expect(tab.page.locator(".card")).to_have_count(3)
    row = tab.page.locator("tr", has_text="run_command")
    expect(row.get_by_role("img", name="asks a person first")).to_be_visible()
    row.locator("button").click()
    expect(tab.page.locator(".ant-drawer-open")).to_contain_text('"command"')


def test_the_audit_is_live_filtered_and_verified(browser: Browser, house: House) -> None:
    window = tabs(browser, house)
    tab, other = next(window).open(), next(window).open()
    other.page.locator(".places a[href='/audit']").click()
    expect(other.page.get_by_text("Nothing was done yet")).to_be_visible()
    worked(tab)
    expect(other.page.locator("tbody tr.ant-table-row")).to_have_count(2)
    other.page.get_by_role("button", name="Verify the chain").click()
    expect(other.page.get_by_text("All 2 lines are as written")).to_be_visible()
    other.page.get_by_label("Outcome").click()
    other.page.locator(".ant-select-item", has_text="Failed").click()
    expect(other.page.locator("tbody tr.ant-table-row")).to_have_count(1)
    other.page.locator("tbody tr.ant-table-row").click()
    other.page.get_by_text("The turn behind this line").click()
    expect(other.page.locator(".timeline li")).to_have_count(4)


def test_a_turn_is_a_picture(tab: Tab) -> None:
    worked(tab)
    tab.page.locator(".places a[href='/runs']").click()
    tab.page.locator("tbody a").first.click()
    expect(tab.page.locator(".bar.model")).to_have_count(2)
    expect(tab.page.locator(".bar.call")).to_have_count(2)
    expect(tab.page.locator(".bar.is-failed")).to_have_count(1)
    expect(tab.page.locator(".facts")).to_contain_text("done")


def test_usage_counts_what_was_used(tab: Tab) -> None:
    worked(tab)
    tab.page.locator(".places a[href='/usage']").click()
    expect(tab.page.locator(".figure").first).to_contain_text("1")
    expect(tab.page.get_by_label("tokens by agent")).to_contain_text("helper")
    expect(tab.page.locator(".sums tr", has_text="break_down")).to_contain_text("1")
    tab.page.get_by_text("Model", exact=True).click()
    expect(tab.page.get_by_label("tokens by model")).to_contain_text("staged")


def background(tab: Tab) -> tuple[int, ...]:
    found = tab.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return tuple(int(each) for each in found.removeprefix("rgb(").removesuffix(")").split(","))


def test_the_colours_follow_the_system_and_can_be_chosen(browser: Browser, house: House) -> None:
    tab = next(tabs(browser, house, color_scheme="dark")).open()
    assert max(background(tab)) < 60
    tab.page.get_by_role("button", name="Colours: as the system").click()
    tab.page.wait_for_function("document.documentElement.dataset.look === 'light'")
    assert min(background(tab)) > 200
    tab.page.reload()
    tab.page.wait_for_function("document.documentElement.dataset.look === 'light'")


def test_a_phone_shows_everything_without_scrolling_sideways(browser: Browser, house: House) -> None:
    tab = next(tabs(browser, house, **PHONE)).open()
    words = "a" * 200 + "\n\n```\n" + "long " * 60 + "\n```\n\n| a | b | c | d |\n|-|-|-|-|\n| " + "wide | " * 4
    tab.say(json.dumps([[["say", words], ["call", "run_command", {"command": "x" * 300}]], [["say", "Went on."]]]))
    tab.page.locator(".approval").wait_for()
    wide = "[document.documentElement, document.querySelector('.scroller')].some(each => each.scrollWidth > innerWidth)"
    assert tab.page.evaluate(wide) is False
    tab.page.get_by_role("button", name="Allow once").tap()
    tab.shows("Went on.")
    for view in VIEWS:
        tab.page.get_by_role("button", name="Menu").tap()
        tab.page.locator(f".ant-drawer a[href='/{view}']").tap()
        expect(tab.page.locator(".view h1")).to_be_visible()
        tab.page.wait_for_timeout(400)
        assert tab.page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view


def test_the_keyboard_is_enough(tab: Tab) -> None:
    tab.page.keyboard.press("Control+k")
    expect(tab.page.get_by_placeholder("Search in names and messages")).to_be_focused()
    tab.page.keyboard.press("Escape")
    before = tab.page.url
    tab.page.keyboard.press("Control+Shift+O")
    expect(tab.page.locator(".composer textarea")).to_be_focused()
    assert tab.page.url != before
    tab.page.keyboard.type("typed")
    tab.page.keyboard.press("Shift+Enter")
    tab.page.keyboard.type("in two lines")
    tab.page.keyboard.press("Enter")
    tab.shows("in two lines")


def test_who_wants_no_motion_gets_none(browser: Browser, house: House) -> None:
    tab = next(tabs(browser, house, reduced_motion="reduce")).open()
    tab.say(json.dumps([[["pause", 3], ["say", "x"]]]))
    dots = tab.page.locator(".dots i").first
    dots.wait_for()
    assert dots.evaluate("each => getComputedStyle(each).animationName") == "none"


def test_the_logic_of_the_page_holds() -> None:
    command = [sys.executable, "hatch_build.py", "test"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55)
    assert done.returncode == 0, done.stdout + done.stderr
