"""Content security: no script from a model, tool or name runs, and no request leaves the gateway's origin."""

import itertools
import json
import socket
from collections.abc import Callable, Generator
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Thread
from typing import Any
from urllib.parse import urlencode

import pytest
from browser import ROOT, TIMEOUT, VIEWS, GatewayProcess, Tab, open_tabs, open_window, script
from payloads import SCRIPTS, attack_document, image_payloads
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.slow
counter = itertools.count(1)
LOADS_FINISHED = """async () => {
  for (const src of ["/logo.svg?barrier", "/missing.png"]) {
    const image = new Image();
    await new Promise((done) => Object.assign(image, { onload: done, onerror: done, src }));
  }
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""
"""Load two images and wait two frames: loads and error handlers that content had started before have run by then."""


class Canary:
    """An HTTP server that records every request, and the datagrams to its port; at `/page` it serves `page`."""

    def __init__(self) -> None:
        self.visits = list[str]()
        self.page = "seen"
        self._recorded = Condition()
        canary = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 1  # a browser may open a connection without sending a request

            def do_GET(self) -> None:
                canary.record(self.path)
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write((canary.page if self.path == "/page" else "seen").encode())

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.datagrams.bind(("127.0.0.1", self.server.server_port))

    def record(self, visit: str) -> None:
        with self._recorded:
            self.visits.append(visit)
            self._recorded.notify_all()

    def wait_for(self, *visits: str) -> bool:
        """Wait until all of these were recorded."""
        with self._recorded:
            return self._recorded.wait_for(lambda: set(visits) <= set(self.visits), TIMEOUT)

    def receive_datagrams(self) -> None:
        while self.datagrams.recv(2048) != b"end":
            self.record("datagram")


@pytest.fixture
def canary() -> Generator[Canary]:
    canary = Canary()
    threads = [Thread(target=canary.server.serve_forever), Thread(target=canary.receive_datagrams)]
    for thread in threads:
        thread.start()
    yield canary
    canary.server.shutdown()
    canary.datagrams.sendto(b"end", canary.datagrams.getsockname())
    for thread in threads:
        thread.join()
    canary.server.server_close()
    canary.datagrams.close()


def run_script(tab: Tab, *rounds: list[list[Any]]) -> None:
    """Make the model play these rounds, and wait for the words that end the last one."""
    end = f"end {next(counter)}."
    tab.send(script(*rounds[:-1], [*rounds[-1], ["text", f"\n\n{end}"]]))
    tab.wait_for_answer(end)
    tab.wait_until_idle()


def no_script_ran(tab: Tab) -> bool:
    tab.page.evaluate(LOADS_FINISHED)
    return bool(tab.page.evaluate("window.pwned === undefined && document.querySelector('script[src^=data]') === null"))


def test_there_are_sixty_script_payloads() -> None:
    assert len(set(SCRIPTS)) >= 60


def test_no_script_runs_in_text_arguments_or_results(tab: Tab) -> None:
    tab.record_requests()
    for start in range(0, len(SCRIPTS), 16):
        batch = SCRIPTS[start : start + 16]
        steps = [["reasoning", payload] for payload in batch[:4]] + [["text", "\n\n".join(batch)]]
        calls = [["call", "get_weather", {"city": payload}] for payload in batch]
        run_script(tab, [*steps, *calls], [["text", payload + "\n\n"] for payload in batch])
    for _ in range(6):
        tab.page.evaluate(
            "document.querySelectorAll('.answer button[aria-expanded=false]').forEach(each => each.click())"
        )
        tab.page.mouse.move(700, 300)
        tab.page.mouse.wheel(0, -2500)
        tab.page.evaluate(LOADS_FINISHED)
    for link in tab.page.locator(".markdown a").all():
        url = link.get_attribute("href") or ""
        assert url.startswith(("http:", "https:", "mailto:")), url
    assert no_script_ran(tab)
    active_elements = "#root iframe, #root object, #root embed, #root script, #root style, #root form"
    assert tab.page.locator(active_elements).count() == 0
    assert {url.split("/")[2] for url in tab.requests} == {f"127.0.0.1:{tab.gateway.port}"}


def test_no_script_runs_elsewhere(tab: Tab) -> None:
    payload = "".join(SCRIPTS[4:12])
    places: dict[str, tuple[Callable[[], object], str]] = {
        "session name": (lambda: tab.send(payload), ".chat-header h2"),
        "error": (lambda: tab.send(script([["fail", payload]])), ".failed"),
        "tool name": (lambda: tab.send(script([["call", "unknown" + payload[:40], {}]])), ".tool-call"),
        "file name": (lambda: attach_file(tab, payload), ".user-message .file"),
        "command": (lambda: tab.send(script([["call", "run_command", {"command": payload}]])), ".approval"),
        "approvals": (lambda: tab.open_view("approvals"), ".approval"),
        "audit log": (lambda: tab.open_view("audit"), "tbody tr.ant-table-row"),
        "url": (
            lambda: tab.page.goto(f"{tab.gateway.url}/c/%3Cimg%20src=x%20onerror=window.pwned=1%3E"),
            ".not-found",
        ),
    }
    for place, (act, shown) in places.items():
        act()
        tab.page.locator(shown).first.wait_for()
        assert no_script_ran(tab), place


def attach_file(tab: Tab, payload: str) -> None:
    name = f"{payload[:60]}.txt".replace("/", "")
    tab.page.locator("input[type=file]").set_input_files([{"name": name, "mimeType": "text/html", "buffer": b"x"}])
    tab.send("a file")


def test_no_image_or_style_sends_a_request_to_another_site(tab: Tab, canary: Canary) -> None:
    tab.record_requests()
    payloads = image_payloads(canary.url)
    texts = [[["text", payload], ["call", "get_weather", {"city": payload}]] for payload in payloads]
    for start in range(0, len(texts), 8):  # a call ends a text, so that each is parsed alone
        run_script(tab, *texts[start : start + 8], [["text", "No more."]])
    run_script(tab, [["pace", 0.005], ["text", "\n\n".join(payloads)]])
    tab.page.reload()
    tab.answers.last.wait_for()
    tab.page.evaluate(LOADS_FINISHED)
    assert canary.visits == []
    assert tab.requests and all(url.startswith(tab.gateway.url) for url in tab.requests)
    link = tab.page.locator(".markdown a", has_text="Image: x").last
    assert canary.url in (link.get_attribute("title") or "")


def test_html_artifact_reaches_neither_the_network_nor_the_page(browser: Browser, tab: Tab, canary: Canary) -> None:
    attack = attack_document(canary.url)
    run_script(tab, [["text", f"```html\n{attack}\n```\n"]])
    tab.answers.last.get_by_role("button", name="Preview").click()
    frame = tab.page.frame_locator("iframe.html-preview")
    expect(frame.locator("output")).to_contain_text('"top"')
    found = json.loads(frame.locator("output").inner_text())
    refused = {"storage": "SecurityError", "cookie": "SecurityError", "parent": "SecurityError", "top": "SecurityError"}
    assert {name: found[name] for name in refused} == refused
    assert len(tab.page.frames) == 2  # a frame inside would have WebRTC
    assert (found["open"], found["rtc"], found["socket"]) == ("null", "ReferenceError", "ReferenceError")
    tab.page.evaluate(LOADS_FINISHED)
    leaving = f'<meta http-equiv="refresh" content="0;url={canary.url}/refresh"><a href="{canary.url}/link">go</a>'
    run_script(tab, [["text", f"```html\n{leaving}<p>stays</p>\n```\n"]])
    tab.answers.last.get_by_role("button", name="Preview").click()
    frame.get_by_text("go").click()
    expect(frame.get_by_text("stays")).to_be_visible()
    frame.locator("body").evaluate("(_, url) => void (location = `${url}/self`)", canary.url)
    expect(frame.get_by_text("stays")).to_have_count(0)  # the browser shows that it blocked the document
    tab.page.evaluate(LOADS_FINISHED)
    assert canary.visits == []
    expect(tab.page.locator(".answer").last).to_be_visible()
    assert set(tab.errors) <= {"RTCPeerConnection is not defined"}
    tab.errors.clear()
    canary.page = attack.partition('attempt("rtc"')[0] + "</script>"  # not every browser without windows has WebRTC
    window = browser.new_context()
    window.new_page().goto(f"{canary.url}/page")
    expected = ("/fetch", "/request", "/socket", "/image", "/script", "/style", "/frame", "/object")
    assert canary.wait_for(*expected), canary.visits
    window.close()  # it would connect again and again while the server shuts down


def test_external_link_is_followed_only_on_click(tab: Tab, canary: Canary) -> None:
    run_script(tab, [["text", f"[read this]({canary.url}/page)"]])
    assert canary.visits == []
    with tab.context.expect_page() as opened:
        tab.page.locator(".markdown a").last.click()
    opened.value.wait_for_load_state()
    assert canary.visits[0] == "/page"
    assert opened.value.evaluate("document.referrer + String(window.opener)") == "null"


def test_content_security_policy_blocks_injected_elements(tab: Tab, canary: Canary) -> None:
    """The second line of defence: even if the page rendered unsafe content, the browser would block it."""
    expected = ["connect-src", "frame-src", "img-src", "script-src-attr", "script-src-elem"]
    tab.page.evaluate(
        """async (url) => {
          window.blocked = new Set();
          addEventListener("securitypolicyviolation", (event) => window.blocked.add(event.effectiveDirective));
          for (const name of ["img", "script", "iframe"]) {
            document.body.append(Object.assign(document.createElement(name), { src: url + "/" + name }));
          }
          document.body.insertAdjacentHTML("beforeend", "<b onclick='window.pwned=1'>x</b>");
          document.body.lastChild.click();
          await fetch(url).catch(() => 0);
          new WebSocket(url.replace("http", "ws"));
        }""",
        canary.url,
    )
    tab.page.wait_for_function("count => window.blocked.size >= count", arg=len(expected))
    assert tab.page.evaluate("[...window.blocked].sort()") == expected
    assert canary.visits == []
    assert no_script_ran(tab)


def test_page_sends_requests_only_to_its_own_gateway(gateway: GatewayProcess, browser: Browser) -> None:
    tab = next(open_tabs(browser, gateway))
    tab.record_requests()
    tab.open()
    for view in VIEWS:
        tab.open_view(view)
        expect(tab.page.locator(".view h1")).to_be_visible()
    assert all(url.startswith(gateway.url) for url in tab.requests), tab.requests
    assert len(tab.requests) < 120
    assert not any(url.endswith((".woff", ".woff2", ".ttf")) for url in tab.requests)


def test_no_source_file_creates_html_from_text() -> None:
    unsafe = ("dangerouslySetInnerHTML", "innerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function")
    sources = list((ROOT / "web" / "src").rglob("*.ts*"))
    assert sources
    assert [(file.name, name) for file in sources for name in unsafe if name in file.read_text(encoding="utf-8")] == []


def test_consent_screen_asks_for_sign_in_shows_the_client_and_sends_the_decision(
    browser: Browser, gateway: GatewayProcess
) -> None:
    """The link comes from another site, so the browser sends the cookie only with the requests of the screen itself."""
    callback = "https://app.example/callback"
    with open_window(browser) as window:
        page = window.new_page()
        registered = {"redirect_uris": [callback], "client_name": "App <img src=x onerror=alert(1)>"}
        client = page.request.post(f"{gateway.url}/register", data=registered).json()["client_id"]
        fields = {"response_type": "code", "client_id": client, "redirect_uri": callback, "state": "1"}
        query = urlencode({**fields, "code_challenge": "c" * 43, "code_challenge_method": "S256"})
        link = f'<a href="{escape(f"{gateway.url}/authorize?{query}")}">Connect</a>'
        page.route("https://app.example/**", lambda route: route.fulfill(body=link, content_type="text/html"))
        page.goto("https://app.example/start")
        page.get_by_text("Connect").click()
        page.get_by_label("Access token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_have_text("invalid token")
        page.get_by_label("Access token").fill(gateway.token)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading")).to_contain_text("App <img src=x onerror=alert(1)>")
        expect(page.locator("#host")).to_have_text("app.example")
        page.get_by_role("button", name="Allow").click()
        page.wait_for_url(f"{callback}?code=*&state=1&iss=*")
        page.get_by_text("Connect").click()
        page.get_by_role("button", name="Deny").click()
        page.wait_for_url(f"{callback}?error=access_denied&state=1&iss=*")
