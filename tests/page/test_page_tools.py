"""Tool output: live lines, images and plans, during a run and after a reload."""

import pytest
from browser import Tab, script
from playwright.sync_api import expect

pytestmark = pytest.mark.slow


def test_progress_is_shown_while_the_tool_runs(tab: Tab) -> None:
    tab.send(script([["call", "build", {"lines": 30}]]))
    expect(tab.page.locator(".tool-call .output.live")).to_contain_text("part30.c")
    expect(tab.page.locator(".tool-call .status")).to_have_text("Running")
    tab.gateway.release()
    tab.wait_for_answer("Done.")


def test_long_output_is_followed_and_kept(tab: Tab) -> None:
    tab.send(script([["call", "build", {"lines": 1000}]]))
    output = tab.page.locator(".tool-call .output")
    expect(output).to_contain_text("part1000.c")
    expect(output).to_contain_text("earlier lines omitted")
    at_end = "each => each.scrollTop + each.clientHeight >= each.scrollHeight - 2 && each.scrollHeight > 1000"
    tab.page.wait_for_function(at_end, arg=output.element_handle())
    assert output.evaluate("each => getComputedStyle(each).fontFamily").endswith("monospace")
    tab.page.reload()
    expect(output).to_contain_text("part1000.c")
    tab.page.locator(".tool-call > button").click()
    expanded = tab.page.locator(".tool-call-body .output")
    expect(expanded).to_contain_text("part1000.c")
    tab.gateway.release()
    tab.wait_for_answer("Done.")
    expect(tab.page.locator(".tool-call")).to_have_attribute("data-status", "ok")
    expect(expanded).to_contain_text("[ 500]")


def test_image_is_shown_in_the_card_and_enlarged_on_click(tab: Tab) -> None:
    tab.record_requests()
    tab.send(script([["call", "draw", {"title": "Sales"}]], [["text", "Drawn."]]))
    tab.wait_for_answer("Drawn.")
    tab.wait_until_idle()
    enlarge = tab.button("Enlarge Image from draw: plot")
    for reloaded in (False, True):
        if reloaded:
            tab.page.reload()
            tab.wait_for_answer("Drawn.")
        thumbnail = tab.page.locator(".tool-call .images img")
        size = "image => image.decode().then(() => [image.naturalWidth, image.naturalHeight])"
        assert thumbnail.evaluate(size) == [240, 160]
        expect(thumbnail).to_have_attribute("alt", "Image from draw: plot")
        enlarge.click()
        expect(tab.page.locator("dialog[open] img")).to_be_visible()
        expect(tab.button("Close")).to_be_focused()
        tab.page.keyboard.press("Escape")
        expect(tab.page.locator("dialog")).to_have_count(0)
        expect(enlarge).to_be_focused()
        tab.page.locator(".tool-call > button").click()
        result = tab.page.locator(".tool-call .labeled-block pre").last
        expect(result).to_contain_text('"plot": "(image/png,')
        assert len(result.inner_text()) < 200
    assert tab.requests and all(url.startswith((tab.gateway.url, "data:image/png")) for url in tab.requests)


def test_plan_steps_are_checked_off(tab: Tab) -> None:
    steps = ["Look at the sky", "Describe it"]
    tab.page.get_by_label("Agent", exact=True).select_option("Planner")
    tab.send(
        script(
            [["call", "make_plan", {"steps": steps}]],
            [["call", "get_weather", {"city": "Oslo"}]],
            [["text", "It is clear."]],
            [["call", "build", {"lines": 1}]],
            [["text", "Described."]],
            [["text", "The sky over Oslo is clear."]],
        )
    )
    items = tab.page.locator(".plan li")
    expect(items.nth(0)).to_have_attribute("data-status", "done")
    expect(items.nth(1)).to_have_attribute("data-status", "running")
    tab.page.reload()
    expect(tab.page.locator(".plan li[data-status=running]")).to_contain_text(steps[1])
    tab.gateway.release()
    tab.wait_for_answer("The sky over Oslo is clear.")
    tab.wait_until_idle()
    for reloaded in (False, True):
        if reloaded:
            tab.page.reload()
            tab.wait_for_answer("The sky over Oslo is clear.")
        expect(tab.page.locator(".plan")).to_contain_text("2 of 2 done")
        expect(tab.page.locator(".plan li[data-status=done]")).to_have_text(steps)
        expect(tab.page.locator(".user-message")).to_have_count(1)
        expect(tab.answers).to_have_count(1)
