"""Lost connections and reloads: nothing is lost or duplicated. Tokens: where they are stored and sent."""

import pytest
from browser import GatewayProcess, Tab, Windows, open_tabs, script
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.slow
TEXT = " ".join(f"w{number}" for number in range(120))
SLOW = script([["pace", 0.03], ["text", TEXT]])
NEEDS_APPROVAL = script([["call", "run_command", {"command": "ls"}]], [["text", "It continued."]])


def expect_whole_answer(tab: Tab) -> None:
    """Wait until the answer is exactly the text: nothing is missing or doubled."""
    expect(tab.answers.last.locator(".markdown")).to_have_text(TEXT)


def test_reload_during_a_stream_loses_nothing(tab: Tab) -> None:
    tab.send(SLOW)
    tab.answers.last.get_by_text("w9").wait_for()
    tab.page.reload()
    tab.answers.last.get_by_text("w9").wait_for()
    tab.wait_until_idle()
    expect_whole_answer(tab)
    expect(tab.page.locator(".user-message")).to_have_count(1)
    expect(tab.answers).to_have_count(1)


def test_killed_gateway_resumes_the_stream(tab: Tab) -> None:
    tab.gateway.kill()  # a page that has reconnected before must not subscribe twice
    tab.gateway.start()
    tab.wait_until_connected()
    tab.send(SLOW)
    tab.answers.last.get_by_text("w9").wait_for()
    tab.gateway.kill()
    expect(tab.page.get_by_text("Disconnected. Reconnecting…")).to_be_visible()
    tab.gateway.start()
    tab.wait_for_answer("w119")
    tab.wait_until_idle()
    expect_whole_answer(tab)
    expect(tab.page.locator(".user-message")).to_have_count(1)
    expect(tab.answers).to_have_count(1)
    tab.page.reload()
    tab.wait_for_answer("w119")
    expect_whole_answer(tab)


def test_approval_survives_a_reload_and_a_restart(tab: Tab) -> None:
    tab.send(NEEDS_APPROVAL)
    tab.page.locator(".approval").wait_for()
    tab.page.reload()
    expect(tab.page.locator(".approval")).to_have_count(1)
    tab.gateway.kill()
    tab.page.locator(".connection.is-offline").wait_for(state="attached")
    expect(tab.button("Allow once")).to_be_disabled()
    tab.gateway.start()
    tab.button("Allow once").click()
    tab.wait_for_answer("It continued.")
    expect(tab.page.locator(".tool-call")).to_have_count(1)
    expect(tab.page.locator(".user-message")).to_have_count(1)


def test_message_written_offline_is_sent_once(tab: Tab) -> None:
    tab.send("first")
    tab.wait_for_answer("You wrote: first")
    tab.gateway.kill()
    tab.page.locator(".connection.is-offline").wait_for(state="attached")
    tab.send("second")
    expect(tab.page.locator("[data-pending=sending]")).to_contain_text("Will be sent when reconnected")
    tab.gateway.start()
    tab.wait_for_answer("You wrote: second")
    tab.page.reload()
    tab.wait_for_answer("You wrote: second")
    expect(tab.page.locator(".user-message")).to_have_count(2)
    expect(tab.page.locator("[data-pending]")).to_have_count(0)


def test_invalid_token_is_rejected_and_a_valid_one_accepted(gateway: GatewayProcess, windows: Windows) -> None:
    tab = next(windows.tabs(gateway))
    tab.page.goto(f"{gateway.url}/#token=wrong")
    expect(tab.page.get_by_role("alert")).to_have_text("That token isn’t valid.")
    assert "token" not in tab.page.url
    expect(tab.page.get_by_label("Keep me signed in on this device for 30 days")).to_be_checked()
    tab.page.get_by_label("Access token").fill(gateway.token)
    tab.button("Sign in").click()
    tab.wait_until_connected()


def test_browser_stays_signed_in_until_it_signs_out(gateway: GatewayProcess, windows: Windows) -> None:
    window = windows.tabs(gateway)
    tab, other = next(window).open(), next(window)
    other.page.goto(gateway.url)  # the cookie is enough
    other.wait_until_connected()
    [cookie] = [each for each in tab.context.cookies() if each.get("name") == f"atlas_{gateway.port}"]
    assert cookie.get("httpOnly") and cookie.get("sameSite") == "Strict" and cookie.get("expires", 0) > 0
    stranger = next(windows.tabs(gateway)).open("/settings/devices")
    devices = stranger.page.locator(".devices li")
    expect(devices).to_have_count(2)
    expect(devices.filter(has_text="this device")).to_have_count(1)
    stranger.button("Sign out everywhere else").click()
    stranger.page.get_by_role("dialog").get_by_role("button", name="Sign out").click()
    expect(devices).to_have_count(1)
    for each in (tab, other):
        each.bring_to_front()
        expect(each.page.get_by_role("alert")).to_have_text("Your access was revoked. Sign in again.")
    stranger.page.locator(".user-button").click()
    stranger.page.get_by_role("menuitem", name="Sign out").click()
    expect(stranger.page.get_by_text("You’re signed out.")).to_be_visible()
    stranger.page.goto(gateway.url)
    expect(stranger.page.get_by_role("heading", name="Sign in to Atlas")).to_be_visible()


def test_token_is_removed_from_the_url_and_not_stored(browser: Browser, gateway: GatewayProcess) -> None:
    tab = next(open_tabs(browser, gateway))
    tab.record_requests()
    tab.open()
    assert tab.gateway.token not in tab.page.url
    assert tab.page.evaluate("history.length") <= 3
    assert tab.requests and all(tab.gateway.token not in url for url in tab.requests)
    stored = tab.page.evaluate("[localStorage, sessionStorage, document.cookie].map(JSON.stringify).join()")
    assert tab.gateway.token not in stored and "atlas_" not in stored


def test_no_url_sends_the_token_to_another_gateway(tab: Tab) -> None:
    sockets: list[str] = []
    tab.page.on("websocket", lambda socket: sockets.append(socket.url))
    for path in ("/?gatewayUrl={evil}", "/#gatewayUrl={evil}", "/c/x?gateway={evil}&token=stolen"):
        before = len(sockets)
        tab.page.goto("about:blank")
        tab.page.goto(tab.gateway.url + path.format(evil="ws://127.0.0.1:9"))
        tab.page.evaluate("window.postMessage({gatewayUrl: 'ws://127.0.0.1:9'}, '*')")
        tab.wait_until_connected()
        assert set(sockets[before:]) == {f"ws://127.0.0.1:{tab.gateway.port}/ws"}, path
