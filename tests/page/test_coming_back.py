"""The page and the gateway part, in every way that happens, and nothing is lost or doubled."""

import json
from typing import Any

import pytest
from browser import House, Tab, tabs
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.slow
WORDS = " ".join(f"w{number}" for number in range(120))


def staged(*rounds: Any) -> str:
    return json.dumps(rounds)


SLOW = staged([["pace", 0.03], ["say", WORDS]])
ASKS = staged([["call", "run_command", {"command": "ls"}]], [["say", "It went on."]])


def words_of(tab: Tab) -> str:
    return tab.answers.last.locator(".markdown").inner_text()


def test_a_reload_in_mid_stream_loses_nothing(tab: Tab) -> None:
    tab.say(SLOW)
    tab.answers.last.get_by_text("w9").wait_for()
    tab.page.reload()
    tab.answers.last.get_by_text("w9").wait_for()
    tab.quiet()
    assert words_of(tab) == WORDS
    expect(tab.page.locator(".said")).to_have_count(1)
    expect(tab.answers).to_have_count(1)


def test_a_gateway_that_is_killed_in_mid_stream_goes_on_where_it_was(tab: Tab) -> None:
    tab.say(SLOW)
    tab.answers.last.get_by_text("w9").wait_for()
    tab.house.kill()
    expect(tab.page.get_by_text("The connection was lost.")).to_be_visible()
    tab.house.start()
    tab.shows("w119")
    tab.quiet()
    assert words_of(tab) == WORDS
    expect(tab.page.locator(".said")).to_have_count(1)
    expect(tab.answers).to_have_count(1)
    tab.page.reload()
    tab.shows("w119")
    assert words_of(tab) == WORDS


def test_a_question_outlives_a_reload_and_a_gateway(tab: Tab) -> None:
    tab.say(ASKS)
    tab.page.locator(".approval").wait_for()
    tab.page.reload()
    expect(tab.page.locator(".approval")).to_have_count(1)
    tab.house.kill()
    expect(tab.page.get_by_text("Not connected")).to_be_attached()
    expect(tab.page.get_by_role("button", name="Allow once")).to_be_disabled()
    tab.house.start()
    tab.page.get_by_role("button", name="Allow once").click()
    tab.shows("It went on.")
    expect(tab.page.locator(".tool")).to_have_count(1)
    expect(tab.page.locator(".said")).to_have_count(1)


def test_what_is_said_while_the_gateway_is_away_goes_out_once(tab: Tab) -> None:
    tab.say("first")
    tab.shows("You said: first")
    tab.house.kill()
    expect(tab.page.get_by_text("Not connected")).to_be_attached()
    tab.say("second")
    expect(tab.page.locator("[data-outgoing=sending]")).to_contain_text("Goes out when the gateway is back")
    tab.house.start()
    tab.shows("You said: second")
    tab.page.reload()
    tab.shows("You said: second")
    expect(tab.page.locator(".said")).to_have_count(2)
    expect(tab.page.locator("[data-outgoing]")).to_have_count(0)


def test_words_that_are_withdrawn_are_gone(tab: Tab) -> None:
    tab.house.kill()  # a kill in mid-answer withdraws what was said and not kept
    tab.house.start()
    tab.page.get_by_text("Connected as owner").first.wait_for()
    tab.say(SLOW)
    tab.answers.last.get_by_text("w20").wait_for()
    tab.house.kill()
    tab.house.start()
    tab.shows("w119")
    tab.quiet()
    assert words_of(tab).count("w20 ") == 1


def test_a_wrong_token_is_refused_and_a_right_one_taken(browser: Browser, house: House) -> None:
    tab = next(tabs(browser, house))
    tab.page.goto(f"{house.url}/#token=wrong")
    expect(tab.page.get_by_text("This token is not valid here.")).to_be_visible()
    assert "token" not in tab.page.url
    tab.page.get_by_label("Token").fill(house.token)
    tab.page.get_by_role("button", name="Open").click()
    expect(tab.page.get_by_text("Connected as owner").first).to_be_visible()


def test_the_address_forgets_the_token_at_once(tab: Tab) -> None:
    assert tab.house.token not in tab.page.url
    assert tab.page.evaluate("history.length") <= 3
    assert all(tab.house.token not in each for each in tab.requests)
    kept = tab.page.evaluate("[JSON.stringify(localStorage), document.cookie].join()")
    assert tab.house.token not in kept


@pytest.mark.parametrize("place", ["/?gatewayUrl={evil}", "/#gatewayUrl={evil}", "/c/x?gateway={evil}&token=stolen"])
def test_no_address_leads_the_token_elsewhere(place: str, browser: Browser, house: House) -> None:
    tab = next(tabs(browser, house))
    sockets: list[str] = []
    tab.page.on("websocket", lambda socket: sockets.append(socket.url))
    tab.open()
    tab.page.goto(house.url + place.format(evil="ws://127.0.0.1:9"))
    tab.page.evaluate("window.postMessage({gatewayUrl: 'ws://127.0.0.1:9'}, '*')")
    expect(tab.page.get_by_text("Connected as owner").first).to_be_visible()
    assert set(sockets) == {f"ws://127.0.0.1:{house.port}/ws"}
