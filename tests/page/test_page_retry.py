"""Retries of an answer: by the user with another agent or model, and by the provider after a lost connection."""

import base64
from typing import Any

import pytest
from browser import Tab, script
from page_gateway import make_png
from playwright.sync_api import expect

pytestmark = pytest.mark.slow


def try_again(tab: Tab, menu: str, choice: str) -> str:
    """Choose from the menu of the last answer, and return the URL of the original session."""
    original = tab.page.url
    tab.button("Try again").last.click()
    tab.page.get_by_role("menuitem", name=menu).hover()
    tab.page.get_by_role("menuitem", name=choice).click()
    tab.page.wait_for_function("original => location.href !== original", arg=original)
    return original


def test_retry_with_another_model_keeps_the_agent(tab: Tab) -> None:
    tab.send(script([["call", "get_weather", {"city": "Oslo"}]], [["text", "Clear."]]))
    tab.wait_for_answer("Clear.")
    tab.wait_until_idle()
    expect(tab.answers.last.locator(".speaker .muted")).to_have_text("scripted")
    original = try_again(tab, "With another model", "page/scripted-writer")
    tab.wait_for_answer("Clear.")
    tab.wait_until_idle()
    expect(tab.answers.last.locator(".speaker .muted")).to_have_text("scripted-writer")
    expect(tab.page.locator(".tool-call")).to_have_attribute("data-status", "ok")
    expect(tab.page.locator(".user-message")).to_have_count(1)
    tab.page.goto(original)
    expect(tab.answers.last.locator(".speaker .muted")).to_have_text("scripted")


def test_retry_with_another_agent_uses_its_tools_and_keeps_attachments(tab: Tab) -> None:
    files: Any = [{"name": "sky.png", "mimeType": "image/png", "buffer": make_png(8, 8)}]
    tab.page.locator("input[type=file]").set_input_files(files)
    expect(tab.page.locator(".attachments li")).to_have_count(1)
    tab.send(script([["call", "get_weather", {"city": "Oslo"}]], [["text", "Finished."]]))
    tab.wait_for_answer("Finished.")
    tab.wait_until_idle()
    try_again(tab, "With another agent", "Writer ·")
    tab.wait_for_answer("Finished.")
    tab.wait_until_idle()
    expect(tab.answers.last.locator(".speaker .muted")).to_have_text("scripted-writer")
    expect(tab.page.locator(".user-message")).to_have_count(1)
    expect(tab.page.locator(".tool-call .status")).to_contain_text("Not found")
    source = tab.page.locator(".user-message img").get_attribute("src")
    assert source is not None and base64.b64decode(source.partition(",")[2]) == make_png(8, 8)


def test_text_of_a_dropped_attempt_is_removed_when_the_provider_retries(tab: Tab) -> None:
    tab.send(script([["reasoning", "hm"], ["drop", "This text is wrong."], ["text", "This is right."]]))
    tab.wait_for_answer("This text is wrong.")
    tab.gateway.release()
    tab.wait_for_answer("This is right.")
    tab.wait_until_idle()
    for reloaded in (False, True):
        if reloaded:
            tab.page.reload()
            tab.wait_for_answer("This is right.")
        expect(tab.answers).to_have_count(1)
        assert tab.answers.last.locator(".markdown").all_inner_texts() == ["This is right."]
        expect(tab.answers.last.locator(".reasoning")).to_have_count(1)
