"""An answer is tried again: by a person with another agent or model, or by a provider in the middle of a word."""

import base64
import json
from typing import Any

import pytest
from browser import Tab
from page_process import painted
from playwright.sync_api import expect

pytestmark = pytest.mark.slow


def staged(*rounds: Any) -> str:
    return json.dumps(rounds)


def tried_again(tab: Tab, choice: str) -> str:
    """Choose from the menu; the address of the session as it was."""
    before = tab.page.url
    tab.page.get_by_role("button", name="Try again").last.click()
    tab.page.get_by_role("menuitem", name=choice).click()
    tab.page.wait_for_function("before => location.href !== before", arg=before)
    return before


def test_with_another_model_the_agent_stays_the_same(tab: Tab) -> None:
    tab.say(staged([["call", "look_up", {"city": "Oslo"}]], [["say", "Clear."]]))
    tab.shows("Clear.")
    tab.quiet()
    expect(tab.answers.last.locator(".spent")).to_contain_text("staged ·")
    before = tried_again(tab, "the same agent · stage/staged-writer")
    tab.shows("Clear.")
    tab.quiet()
    expect(tab.answers.last.locator(".spent")).to_contain_text("staged-writer ·")
    expect(tab.page.locator(".tool")).to_have_attribute("data-state", "ok")
    expect(tab.page.locator(".said")).to_have_count(1)
    tab.page.goto(before)
    expect(tab.answers.last.locator(".spent")).to_contain_text("staged ·")


def test_with_another_agent_its_tools_count_and_what_was_attached_goes_along(tab: Tab) -> None:
    files: Any = [{"name": "sky.png", "mimeType": "image/png", "buffer": painted(8, 8)}]
    tab.page.locator("input[type=file]").set_input_files(files)
    expect(tab.page.locator(".chips li")).to_have_count(1)
    tab.say(staged([["call", "look_up", {"city": "Oslo"}]], [["say", "So it is."]]))
    tab.shows("So it is.")
    tab.quiet()
    tried_again(tab, "Writer ·")
    tab.shows("So it is.")
    tab.quiet()
    expect(tab.page.locator(".tool .state")).to_contain_text("not found")
    sent = tab.page.locator(".said img").get_attribute("src")
    assert sent is not None and base64.b64decode(sent.partition(",")[2]) == painted(8, 8)


def test_words_of_a_broken_answer_are_withdrawn_when_the_provider_tries_again(tab: Tab) -> None:
    tab.say(staged([["think", "hm"], ["slip", "These words are wrong."], ["say", "These are right."]]))
    tab.shows("These words are wrong.")
    tab.shows("These are right.")
    tab.quiet()
    for _ in range(2):
        expect(tab.answers).to_have_count(1)
        assert tab.answers.last.locator(".markdown").all_inner_texts() == ["These are right."]
        expect(tab.answers.last.locator(".thinking")).to_have_count(1)
        tab.page.reload()
        tab.shows("These are right.")


def test_words_are_withdrawn_in_a_tab_that_came_in_the_middle(tab: Tab) -> None:
    tab.say(staged([["slip", "These words are wrong."], ["pace", 0.05], ["say", "These are right. " * 8]]))
    tab.shows("These words are wrong.")
    tab.page.reload()
    tab.shows("These are right.")
    tab.quiet()
    assert tab.answers.last.locator(".markdown").inner_text() == ("These are right. " * 8).strip()
