"""A person talks to an agent in a real browser: words, tools, questions, stopping, queues, forks."""

import json
from typing import Any

import pytest
from browser import House, Tab, tabs
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.slow


def staged(*rounds: Any) -> str:
    return json.dumps(rounds)


ASKS = staged([["say", "I must ask."], ["call", "run_command", {"command": "ls -l"}]], [["say", "It went on."]])
SLOW = staged([["pace", 0.05], ["say", " ".join(f"word{number}" for number in range(400))]])


def test_an_answer_comes_as_markdown_with_what_it_cost(tab: Tab) -> None:
    tab.say(staged([["think", "hm"], ["say", "# Title\n\nSome **bold** words.\n\n```python\nx = 1\n```"]]))
    tab.quiet()
    answer = tab.answers.last
    expect(answer.locator(".level-1")).to_have_text("Title")
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.locator(".hljs-number")).to_have_text("1")
    expect(answer.locator(".spent")).to_contain_text("tokens")
    expect(answer.get_by_text("hm")).to_have_count(0)
    answer.get_by_role("button", name="Thought about it").click()
    expect(answer.locator(".thinking .inside")).to_have_text("hm")
    expect(tab.page.locator(".session.active")).to_be_visible()


def test_a_tool_is_a_card_that_opens(tab: Tab) -> None:
    tab.say(staged([["call", "look_up", {"city": "Oslo"}], ["call", "break_down", {}]], [["say", "Clear."]]))
    tab.shows("Clear.")
    tab.quiet()
    good, bad = tab.page.locator(".tool").all()
    assert (good.get_attribute("data-state"), bad.get_attribute("data-state")) == ("ok", "error")
    expect(good.locator(".state")).to_contain_text("ms")
    took = [each.locator(".state").inner_text() for each in (good, bad)]
    good.get_by_role("button").first.click()
    expect(good.locator(".inside")).to_contain_text('"degrees": 21')
    bad.get_by_role("button").first.click()
    expect(bad.locator(".inside")).to_contain_text("it always does")
    tab.page.reload()
    tab.shows("Clear.")
    assert tab.page.locator(".tool .state").all_inner_texts() == took


def test_a_tool_says_how_far_it_is(tab: Tab) -> None:
    tab.say(staged([["call", "count", {"to": 30}]]))
    expect(tab.page.locator(".tool .tail")).to_contain_text(" of 30")
    tab.shows("Done.")


def test_a_question_is_allowed(tab: Tab) -> None:
    tab.say(ASKS)
    asked = tab.page.locator(".approval")
    expect(asked.locator(".exact").first).to_have_text("ls -l")
    expect(asked.locator(".countdown")).to_contain_text("min")
    expect(tab.page.locator(".places .ant-badge")).to_contain_text("1")
    asked.get_by_role("button", name="Allow once").click()
    tab.shows("It went on.")
    expect(tab.page.locator(".approval")).to_have_count(0)
    expect(tab.page.locator(".places .ant-badge")).to_have_count(0)


def test_a_question_shows_what_would_change(tab: Tab) -> None:
    tab.say(staged([["call", "write_note", {"note": "tea\u200b"}]]))
    asked = tab.page.locator(".approval")
    expect(asked.locator(".preview .exact")).to_contain_text("-milk\n+tea")
    assert asked.locator(".preview mark").all_text_contents() == ["U+200B"]
    asked.get_by_role("button", name="Edit").click()
    expect(asked.locator(".preview")).to_contain_text("yours may differ")
    asked.get_by_role("button", name="Back").click()
    asked.get_by_role("button", name="Allow once").click()
    tab.shows("Done.")


def test_a_question_is_denied_with_a_reason_that_the_model_is_told_and_that_is_kept(tab: Tab) -> None:
    tab.say(staged([["call", "run_command", {"command": "ls -l"}]], [["say", "Told: "], ["told"]]))
    tab.page.get_by_role("button", name="Deny with a reason").click()
    tab.page.get_by_label("Why not").fill("not on a Sunday")
    tab.page.get_by_label("Why not").press("Enter")
    tab.shows('Told: [{"cancelled":true,"reason":"not on a Sunday"}]')
    card = tab.page.locator(".tool")
    expect(card.locator(".state")).to_contain_text("declined")
    tab.page.get_by_label("Timeline of this turn").click()
    expect(tab.page.get_by_role("img", name="deny by owner: not on a Sunday")).to_be_visible()


def test_a_question_is_allowed_with_other_arguments_in_the_view_of_all(tab: Tab) -> None:
    tab.say(ASKS)
    tab.page.locator(".approval").wait_for()
    tab.page.locator(".places a[href='/approvals']").click()
    tab.page.get_by_role("button", name="Edit", exact=True).click()
    box = tab.page.get_by_label("Arguments as JSON")
    box.fill("{")
    expect(tab.page.get_by_role("button", name="Allow with these")).to_be_disabled()
    box.fill('{"command": "pwd"}')
    tab.page.get_by_role("button", name="Allow with these").click()
    expect(tab.page.get_by_text("Nothing waits for you")).to_be_visible()
    tab.page.locator(".session").first.click()
    tab.shows("It went on.")
    tab.page.locator(".tool > button").click()
    expect(tab.page.locator(".tool .inside")).to_contain_text("ran pwd")


def test_a_form_is_filled_in_and_mended_where_it_does_not_fit(tab: Tab) -> None:
    tab.say(staged([["call", "order", {"what": "tea"}]], [["say", "Told: "], ["told"]]))
    form = tab.page.get_by_role("region", name="The MCP server shop asks you")
    expect(form.get_by_label("What is asked")).to_contain_text("tea?")
    assert form.locator(".exact mark").all_text_contents() == ["U+202E"] and form.locator("img, b").count() == 0
    expect(form).to_contain_text("What you answer is sent to the MCP server shop.")
    send = form.get_by_role("button", name="Send")
    expect(send).to_be_disabled()
    form.get_by_label("Size").select_option("Small")
    form.get_by_label("Count").fill("11")
    expect(form).to_contain_text("At most 9.")
    form.get_by_label("Count").fill("3")
    form.get_by_label("Mail").fill("nobody")
    form.get_by_label("sugar").check()
    form.get_by_label("Gift").select_option("Yes")
    send.click()
    expect(tab.page.get_by_text("is not a")).to_be_visible()  # what only the gateway checks
    form.get_by_label("Mail").fill("ana@example.org")
    tab.page.reload()
    tab.page.locator(".places a[href='/approvals']").click()
    form.get_by_label("Size").select_option("l")
    send.click()
    expect(tab.page.get_by_text("Nothing waits for you")).to_be_visible()
    tab.page.locator(".session").first.click()
    tab.shows("""Told: ["accept {'size': 'l', 'count': 2}"]""")


def test_a_form_is_declined_or_left_unanswered_and_an_address_is_opened_on_a_click(tab: Tab) -> None:
    for button, action in (("Decline", "decline"), ("Leave it unanswered", "cancel")):
        tab.say(staged([["call", "order", {"what": action}]], [["say", "Told: "], ["told"]]))
        tab.page.locator(".approval").get_by_role("button", name=button).click()
        tab.shows(f'Told: ["{action} {{}}"]')
    tab.context.route("https://pay.example.org/**", lambda route: route.fulfill(body="paid"))
    tab.say(staged([["call", "pay", {}]], [["say", "Told: "], ["told"]]))
    form = tab.page.locator(".approval")
    expect(form.get_by_label("The address to open")).to_have_text("https://pay.example.org/bill")
    with tab.context.expect_page() as opened:
        form.get_by_role("button", name="Open it and go on").click()
    assert opened.value.url == "https://pay.example.org/bill" and opened.value.evaluate("window.opener") is None
    tab.shows('Told: ["accept"]')


def test_nothing_hides_in_a_command(tab: Tab) -> None:
    command = "ls\u202e #\u200b" + " " * 60 + "\n\n\n\n\nrm -rf \u0430ll"
    tab.say(staged([["call", "run_command", {"command": command}]]))
    tab.page.locator(".approval").wait_for()
    marks = tab.page.locator(".approval .exact").first.locator("mark").all_text_contents()
    assert marks == ["U+202E", "U+200B", "60 spaces", "4 empty lines", "\u0430 U+0430"]


def test_a_turn_is_stopped_with_the_button_and_with_a_key_and_its_words_stay(tab: Tab) -> None:
    stops = (
        lambda: tab.page.get_by_role("button", name="Stop").click(),
        lambda: tab.page.locator(".composer textarea").press("Escape"),
    )
    for number, stop in enumerate(stops):
        tab.say(SLOW)
        answer = tab.answers.nth(number)
        answer.get_by_text("word3").wait_for()
        stop()
        tab.quiet()
        expect(answer).to_contain_text("Stopped.")
    seen = tab.page.locator(".answer .markdown").all_inner_texts()
    assert len(seen) == 2
    tab.page.reload()
    tab.answers.nth(1).get_by_text("word3").wait_for()
    assert tab.page.locator(".answer .markdown").all_inner_texts() == seen
    expect(tab.page.locator(".ended")).to_have_count(2)


def test_what_is_said_during_a_turn_waits_and_is_shown_so_in_every_tab(browser: Browser, house: House) -> None:
    window = tabs(browser, house)
    tab = next(window).open()
    tab.say(staged([["pace", 0.05], ["say", "one " * 60]]))
    tab.answers.last.wait_for()
    tab.say("second")
    expect(tab.page.locator("[data-outgoing=queued]")).to_contain_text("second")
    other = next(window)
    other.page.goto(tab.page.url)
    expect(other.page.locator("[data-outgoing=queued]")).to_contain_text("second")
    for each in (tab, other):
        each.shows("You said: second")
        expect(each.page.locator("[data-outgoing]")).to_have_count(0)
        expect(each.page.locator(".said")).to_have_count(2)


def test_two_tabs_stay_in_step_and_the_second_needs_no_token(browser: Browser, house: House) -> None:
    window = tabs(browser, house)
    tab = next(window).open()
    tab.say("hello")
    tab.shows("You said: hello")
    other = next(window)
    other.page.goto(tab.page.url)
    other.shows("You said: hello")
    other.say("from the other")
    tab.shows("You said: from the other")
    tab.page.get_by_role("button", name="More for this session").click()
    tab.page.get_by_text("Rename").click()
    tab.page.get_by_label("Name of this session").fill("A new name")
    tab.page.get_by_label("Name of this session").press("Enter")
    expect(other.page.locator(".chat-head h2")).to_have_text("A new name")
    expect(other.page.locator(".session.active")).to_have_text("A new name")


def test_a_message_is_edited_and_the_session_stays_as_it_was(tab: Tab) -> None:
    for words in ("one", "two"):
        tab.say(words)
        tab.shows(f"You said: {words}")
        tab.quiet()
    before = tab.page.url
    tab.page.locator(".said").last.hover()
    tab.page.locator(".said").last.get_by_role("button", name="Edit and send again").click()
    tab.page.get_by_label("Your message").fill("three")
    tab.page.get_by_label("Your message").press("Enter")
    tab.shows("You said: three")
    assert tab.page.url != before
    expect(tab.page.locator(".said")).to_have_count(2)
    tab.page.goto(before)
    tab.shows("You said: two")


def test_an_answer_is_tried_again_with_another_agent(tab: Tab) -> None:
    tab.say("hello")
    tab.shows("You said: hello")
    tab.quiet()
    tab.page.get_by_role("button", name="Try again").click()
    tab.page.get_by_role("menuitem", name="Writer ·").click()
    expect(tab.answers.last.locator(".spent")).to_contain_text("staged-writer")
    expect(tab.page.locator(".said")).to_have_count(1)


def test_a_draft_is_kept_and_a_session_is_found_archived_and_exported(tab: Tab) -> None:
    tab.say("about fjords")
    tab.shows("You said: about fjords")
    tab.quiet()
    tab.page.locator(".composer textarea").fill("not sent yet")
    tab.page.reload()
    expect(tab.page.locator(".composer textarea")).to_have_value("not sent yet")
    tab.page.get_by_role("button", name="More for this session").click()
    with tab.page.expect_download() as download:
        tab.page.get_by_text("Export as Markdown").click()
    assert "You said: about fjords" in download.value.path().read_text()
    tab.page.get_by_role("button", name="More for this session").click()
    tab.page.get_by_text("Archive", exact=True).click()
    expect(tab.page.locator(".session")).to_have_count(0)
    tab.page.keyboard.press("Control+k")
    tab.page.get_by_placeholder("Search in names and messages").fill("FJORD")
    tab.page.locator(".hit").first.click()
    tab.shows("You said: about fjords")


def test_a_picture_and_a_file_are_attached(tab: Tab) -> None:
    picture = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
    import base64

    files: Any = [
        {"name": "dot.png", "mimeType": "image/png", "buffer": base64.b64decode(picture)},
        {"name": "<b>notes.txt", "mimeType": "text/plain", "buffer": b"notes"},
    ]
    tab.page.locator("input[type=file]").set_input_files(files)
    expect(tab.page.locator(".chips li")).to_have_count(2)
    tab.say("look")
    tab.shows("You said: look")
    said = tab.page.locator(".said").last
    assert said.locator("img").evaluate("image => image.naturalWidth") == 1
    expect(said.locator(".file")).to_contain_text("<b>notes.txt")


def test_a_failed_turn_says_so_and_still_does_after_a_reload(tab: Tab) -> None:
    tab.say(staged([["say", "Half"], ["fail", "the key is not valid"]]))
    expect(tab.answers.last).to_contain_text("the key is not valid")
    tab.page.reload()
    expect(tab.answers.last).to_contain_text("the key is not valid")
