"""Whatever a model, a tool or a name says: no script runs, and no request leaves for elsewhere."""

import json
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from browser import HERE, Tab, living, tabs
from payloads import SCRIPTS, pictures
from playwright.sync_api import Browser, expect

pytestmark = pytest.mark.slow
WEB = HERE.parent.parent / "web" / "src"


class Canary:
    """A server that writes down who comes."""

    def __init__(self) -> None:
        visits = self.visits = list[str]()

        class Handler(BaseHTTPRequestHandler):
            timeout = 1  # a browser may open a connection and say nothing

            def do_GET(self) -> None:
                visits.append(self.path)
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"seen")

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def canary() -> Generator[Canary]:
    found = Canary()
    thread = Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def played(tab: Tab, *rounds: object) -> None:
    tab.say(json.dumps(rounds))
    tab.page.locator(".answer .foot").last.wait_for(state="attached")
    tab.quiet()


def is_unharmed(tab: Tab) -> bool:
    return bool(tab.page.evaluate("window.pwned === undefined && document.querySelector('script[src^=data]') === null"))


def test_there_are_sixty_disguises() -> None:
    assert len(set(SCRIPTS)) >= 60


def test_no_script_runs_in_words_arguments_or_results(tab: Tab) -> None:
    for place in range(0, len(SCRIPTS), 16):
        batch = SCRIPTS[place : place + 16]
        steps = [["think", each] for each in batch[:4]] + [["say", "\n\n".join(batch)]]
        calls = [["call", "look_up", {"city": each}] for each in batch]
        played(tab, [*steps, *calls], [["say", each + "\n\n"] for each in batch])
    for _ in range(6):
        tab.page.evaluate(
            "document.querySelectorAll('.answer button[aria-expanded=false]').forEach(each => each.click())"
        )
        tab.page.mouse.move(700, 300)
        tab.page.mouse.wheel(0, -2500)
        tab.page.wait_for_timeout(100)
    for link in tab.page.locator(".markdown a").all():
        address = link.get_attribute("href") or ""
        assert address.startswith(("http:", "https:", "mailto:")), address
    assert is_unharmed(tab)
    assert (
        tab.page.locator("#root iframe, #root object, #root embed, #root script, #root style, #root form").count() == 0
    )
    assert {each.split("/")[2] for each in tab.requests} == {f"127.0.0.1:{tab.house.port}"}


@pytest.mark.parametrize("place", ["session name", "error", "progress", "file", "question", "address"])
def test_no_script_runs_in_any_other_place(place: str, tab: Tab) -> None:
    script = "".join(SCRIPTS[4:12])
    acts: dict[str, Callable[[], object]] = {
        "session name": lambda: tab.say(script),
        "error": lambda: tab.say(json.dumps([[["fail", script]]])),
        "progress": lambda: tab.say(json.dumps([[["call", "unknown" + script[:40], {}]]])),
        "file": lambda: attached(tab, script),
        "question": lambda: tab.say(json.dumps([[["call", "run_command", {"command": script}]]])),
        "address": lambda: tab.page.goto(f"{tab.house.url}/c/%3Cimg%20src=x%20onerror=window.pwned=1%3E"),
    }
    acts[place]()
    tab.page.wait_for_timeout(700)
    tab.page.locator(".places a[href='/audit']").click()
    tab.page.wait_for_timeout(400)
    assert is_unharmed(tab)


def attached(tab: Tab, script: str) -> None:
    name = f"{script[:60]}.txt".replace("/", "")
    tab.page.locator("input[type=file]").set_input_files([{"name": name, "mimeType": "text/html", "buffer": b"x"}])
    tab.say("a file")


def test_no_picture_or_style_carries_anything_out(tab: Tab, canary: Canary) -> None:
    for each in pictures(canary.url):
        played(tab, [["say", each]])
    played(tab, [["pace", 0.005], ["say", "\n\n".join(pictures(canary.url))]])
    tab.page.reload()
    tab.answers.last.wait_for()
    tab.page.wait_for_timeout(500)
    assert canary.visits == []
    assert all(each.startswith(tab.house.url) for each in tab.requests)
    link = tab.page.locator(".markdown a", has_text="Picture: x").last
    assert canary.url in (link.get_attribute("title") or "")


def test_a_reference_to_another_place_is_followed_only_by_hand(tab: Tab, canary: Canary) -> None:
    played(tab, [["say", f"[read this]({canary.url}/page)"]])
    assert canary.visits == []
    with tab.context.expect_page() as opened:
        tab.page.locator(".markdown a").last.click()
    opened.value.wait_for_load_state()
    assert canary.visits[0] == "/page"
    assert opened.value.evaluate("document.referrer + String(window.opener)") == "null"


def test_the_policy_holds_even_if_the_page_did_not(tab: Tab, canary: Canary) -> None:
    """A second wall: were there a hole, the browser itself would refuse."""
    refused = tab.page.evaluate(
        """async (url) => {
          const refused = [];
          addEventListener("securitypolicyviolation", (event) => refused.push(event.effectiveDirective));
          for (const made of ["img", "script", "iframe"]) {
            document.body.append(Object.assign(document.createElement(made), { src: url + "/" + made }));
          }
          document.body.insertAdjacentHTML("beforeend", "<b onclick='window.pwned=1'>x</b>");
          document.body.lastChild.click();
          await fetch(url).catch(() => 0);
          try { new WebSocket(url.replace("http", "ws")); } catch { refused.push("threw"); }
          await new Promise((done) => setTimeout(done, 300));
          return [...new Set(refused)].sort();
        }""",
        canary.url,
    )
    assert refused == ["connect-src", "frame-src", "img-src", "script-src-attr", "script-src-elem"]
    assert canary.visits == []
    assert is_unharmed(tab)


def test_the_page_makes_no_request_but_to_its_own_house(browser: Browser, tmp_path: Path) -> None:
    with living(tmp_path) as house:
        tab = next(tabs(browser, house)).open()
        for view in ("approvals", "agents", "jobs", "audit", "runs", "usage"):
            tab.page.locator(f".places a[href='/{view}']").click()
            expect(tab.page.locator(".view h1")).to_be_visible()
        assert all(each.startswith(house.url) for each in tab.requests), tab.requests
        assert len(tab.requests) < 60
        assert not any(each.endswith((".woff", ".woff2", ".ttf")) for each in tab.requests)


def test_no_source_makes_html_of_text() -> None:
    ways = ("dangerouslySetInnerHTML", "innerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function")
    sources = list(WEB.rglob("*.ts*"))
    assert sources
    assert [(file.name, way) for file in sources for way in ways if way in file.read_text(encoding="utf-8")] == []
