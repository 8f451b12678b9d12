"""What is seen of work while it is done and afterwards: a tool's last lines, pictures, the steps of a plan."""

import json
from typing import Any

import pytest
from browser import Tab
from playwright.sync_api import expect

pytestmark = pytest.mark.slow


def staged(*rounds: Any) -> str:
    return json.dumps(rounds)


def test_a_long_output_is_followed_and_kept(tab: Tab) -> None:
    tab.say(staged([["call", "build", {"lines": 1000}]]))
    tail = tab.page.locator(".tool .tail")
    expect(tail).to_contain_text("part1000.c")
    expect(tail).to_contain_text("earlier lines")
    at_end = "each => each.scrollTop + each.clientHeight >= each.scrollHeight - 2 && each.scrollHeight > 1000"
    assert tail.evaluate(at_end)
    assert tail.evaluate("each => getComputedStyle(each).fontFamily").endswith("monospace")
    tab.page.reload()
    expect(tab.page.locator(".tool .tail")).to_contain_text("part1000.c")
    tab.page.locator(".tool > button").click()
    inside = tab.page.locator(".tool .inside .tail")
    expect(inside).to_contain_text("part1000.c")
    (tab.house.home / "reports" / "go").touch()
    tab.shows("Done.")
    expect(tab.page.locator(".tool")).to_have_attribute("data-state", "ok")
    expect(inside).to_contain_text("[ 500]")


def test_a_picture_is_shown_in_the_card_and_larger_on_a_click(tab: Tab) -> None:
    tab.say(staged([["call", "draw", {"title": "Sales"}]], [["say", "Drawn."]]))
    tab.shows("Drawn.")
    tab.quiet()
    for _ in range(2):
        small = tab.page.locator(".tool .pictures img")
        assert small.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [240, 160]
        expect(small).to_have_attribute("alt", "Picture from draw: plot")
        tab.page.get_by_role("button", name="Enlarge: Picture from draw: plot").click()
        expect(tab.page.locator("dialog[open] img")).to_be_visible()
        expect(tab.page.get_by_role("button", name="Close")).to_be_focused()
        tab.page.keyboard.press("Escape")
        expect(tab.page.locator("dialog")).to_have_count(0)
        expect(tab.page.get_by_role("button", name="Enlarge: Picture from draw: plot")).to_be_focused()
        tab.page.locator(".tool > button").click()
        result = tab.page.locator(".tool .labelled pre").last
        expect(result).to_contain_text('"plot": "(image/png,')
        assert len(result.inner_text()) < 200
        tab.page.reload()
        tab.shows("Drawn.")
    assert all(each.startswith(tab.house.url) or each.startswith("data:image/png") for each in tab.requests)


def test_the_steps_of_a_plan_are_ticked_off_and_stay_so(tab: Tab) -> None:
    steps = ["Look at the sky", "Say what it is like"]
    tab.page.get_by_label("Agent", exact=True).click()
    tab.page.locator(".ant-select-item", has_text="Planner").click()
    tab.say(
        staged(
            [["call", "make_plan", {"steps": steps}]],
            [["call", "look_up", {"city": "Oslo"}]],
            [["say", "It is clear."]],
            [["call", "build", {"lines": 1}]],
            [["say", "Said."]],
            [["say", "The sky over Oslo is clear."]],
        )
    )
    states = tab.page.locator(".plan li")
    expect(states.nth(0)).to_have_attribute("data-status", "done")
    expect(states.nth(1)).to_have_attribute("data-status", "running")
    tab.page.reload()
    expect(tab.page.locator(".plan li[data-status=running]")).to_contain_text(steps[1])
    (tab.house.home / "reports" / "go").touch()
    tab.shows("The sky over Oslo is clear.")
    tab.quiet()
    for _ in range(2):
        expect(tab.page.locator(".plan")).to_contain_text("2 of 2 done")
        expect(tab.page.locator(".plan li[data-status=done]")).to_have_text(steps)
        expect(tab.page.locator(".said")).to_have_count(1)
        expect(tab.answers).to_have_count(1)
        tab.page.reload()
        tab.shows("The sky over Oslo is clear.")
