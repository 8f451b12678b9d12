"""What a tool shows while it runs and when it is done: its last lines, and pictures."""

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
