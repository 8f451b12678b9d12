"""First start: the set-up card, a pasted key, a downloaded model, and the settings of models."""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browser import HERE, PHONE, TIMEOUT, Tab, Windows, install_weights, running_gateway
from playwright.sync_api import expect

from atlas_agents.local.download import checksum
from atlas_agents.local.models import file_size
from model_server import Reply, run_model_server

pytestmark = pytest.mark.slow
KEY = "sk-test-0123456789abcdef4f2a"


@contextmanager
def open_first_start(windows: Windows, home: Path, port: int, **setup: Any) -> Generator[Tab]:
    """Start a gateway with a new home folder, and open its page."""
    (home / "setup.json").write_text(json.dumps(setup))
    with running_gateway(home, HERE / "setup_gateway.py", port) as gateway:
        tab = next(windows.tabs(gateway)).open()
        yield tab
        assert tab.errors == []
        windows.release()


def choose(tab: Tab, label: str, option: str) -> None:
    tab.page.get_by_role("combobox", name=label).click()
    tab.page.locator(".ant-select-item-option", has_text=option).click()


@pytest.mark.timeout(180)
def test_key_is_pasted_tested_and_used(weights: Path, windows: Windows, tmp_path: Path, port: int) -> None:
    with run_model_server(lambda request: Reply(f"{request.model} says hello")) as vendor:
        vendor.key = KEY
        install_weights(tmp_path, weights)
        with open_first_start(windows, tmp_path, port) as tab:
            paste_key(tab, vendor.url)
            run_set_up(tab)
            manage_models(tab, vendor.url)


def paste_key(tab: Tab, url: str) -> None:
    page = tab.page
    card = page.get_by_role("region", name="Choose a model")
    expect(card).to_contain_text("a tiny model for trying things out")
    assert tab.axe_violations() == []
    card.get_by_role("button", name="Add key").click()
    choose(tab, "Provider", "OpenAI-compatible server")
    page.get_by_label("Base URL").fill(url)
    page.get_by_label("API key (optional)").fill("sk-wrong")
    tab.button("Test and save").click()
    problem = page.get_by_role("alert").filter(has_text="rejected this key (401). Check that you copied all of it.")
    expect(problem).to_be_visible()
    page.get_by_label("API key (optional)").fill(KEY)
    assert tab.axe_violations() == []
    tab.button("Test and save").click()
    expect(page.get_by_text("Key works. 2 models available.")).to_be_visible()
    assert KEY not in page.content()
    page.get_by_role("radio", name="This chat").click()
    tab.button("Use rules-1").click()
    expect(page.get_by_text("Now using rules-1 in this chat")).to_be_visible()
    expect(card).to_be_hidden()
    tab.send("Hello")
    tab.wait_for_answer("rules-1 says hello")


def run_set_up(tab: Tab) -> None:
    """Choose a model, how careful agents are, and try it, as a person does who opens the set-up again."""
    page = tab.page
    page.get_by_role("link", name="Settings").first.click()
    tab.button("Run set-up again").click()
    expect(page.get_by_text("Step 1 of 3.")).to_be_visible()
    found = page.get_by_role("listitem").filter(has_text="OpenAI-compatible server: key added (••••4f2a)")
    found.get_by_role("button", name="Use").click()
    page.get_by_role("menuitem", name="rules-2").click()
    expect(page.get_by_text("Now using rules-2")).to_be_visible()
    expect(page.get_by_text("You’re using rules-2.")).to_be_visible()
    assert tab.axe_violations() == []
    tab.button("Next").click()
    choose_safety(tab)
    tab.button("Next").click()
    tab.button("What time is it?").click()
    expect(page.get_by_role("log", name="Answer")).to_contain_text("rules-2 says hello")
    expect(page.get_by_text("It works.")).to_be_visible()
    assert tab.axe_violations() == []
    tab.button("Finish").click()
    tab.send("Hello again")
    tab.wait_for_answer("rules-2 says hello")


def choose_safety(tab: Tab) -> None:
    """Choose another level, which is kept, and return to the first one."""
    page = tab.page
    expect(page.get_by_role("radio", name="Ask before running commands")).to_be_checked()
    assert tab.axe_violations() == []
    page.get_by_role("radio", name="Read only").click()
    expect(page.get_by_role("radio", name="Read only")).to_be_enabled()
    expect(page.get_by_role("radio", name="Read only")).to_be_checked()
    page.reload()
    expect(page.get_by_role("radio", name="Read only")).to_be_checked()
    page.get_by_role("radio", name="Ask before running commands").click()
    expect(page.get_by_role("radio", name="Ask before running commands")).to_be_enabled()


def manage_models(tab: Tab, url: str) -> None:
    page = tab.page
    page.get_by_role("link", name="Settings").first.click()
    row = page.locator(".setting-rows li", has_text="OpenAI-compatible server")
    expect(row).to_contain_text("Connected")
    expect(row).to_contain_text("••••4f2a, added")
    expect(row).to_contain_text(url)
    row.get_by_role("button", name="Models").click()
    expect(row.get_by_role("switch", name="rules-2")).to_be_disabled()
    switch = row.get_by_role("switch", name="rules-1")
    expect(switch).to_be_checked()
    assert tab.axe_violations() == []
    switch.click()
    expect(switch).not_to_be_checked()
    row.get_by_role("button", name="Remove").click()
    page.locator(".ant-modal-confirm").get_by_role("button", name="Remove").click()
    expect(row).to_contain_text("Needs a key")
    page.set_viewport_size(PHONE["viewport"])
    assert tab.fits_width()


class HeldFile:
    """Serves a file. A request from its beginning gets the first half, and the rest when the test allows it."""

    def __init__(self, path: Path) -> None:
        self.path, self.size = path, file_size(path)
        self.url = ""
        self.stop = threading.Event()

    @contextmanager
    def served(self) -> Generator["HeldFile"]:
        held = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing."""

            def do_GET(self) -> None:
                wanted = self.headers["range"]
                start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
                self.send_response(206 if start else 200)
                self.send_header("content-length", str(held.size - start))
                if start:
                    self.send_header("content-range", f"bytes {start}-{held.size - 1}/{held.size}")
                self.end_headers()
                with held.path.open("rb") as file:
                    file.seek(start)
                    self.wfile.write(file.read() if start else file.read(held.size // 2))
                if not start:
                    held.stop.wait(TIMEOUT)

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            self.url = f"http://127.0.0.1:{server.server_address[1]}/model"
            thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
            thread.start()
            try:
                yield self
            finally:
                self.stop.set()
                server.shutdown()
                thread.join(TIMEOUT)


def test_person_without_a_key_downloads_a_model(weights: Path, windows: Windows, tmp_path: Path, port: int) -> None:
    install_weights(tmp_path, weights)
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "AGENTS.md").write_text("## assistant\nTools: none\n")  # reading them takes long
    with HeldFile(weights).served() as file:
        model = {"url": file.url, "size": file.size, "sha256": checksum(weights)}
        with open_first_start(windows, tmp_path, port, model=model) as tab:
            card = tab.page.get_by_role("region", name="Choose a model")
            card.get_by_role("button", name="Download").click()
            expect(card).to_contain_text("49 MB of 98 MB")
            tab.page.reload()
            expect(card).to_contain_text("49 MB of 98 MB")
            card.get_by_role("button", name="Pause").click()
            expect(card).to_contain_text("Paused. 49 MB of 98 MB")
            card.get_by_role("button", name="Resume").click()
            expect(tab.page.get_by_text("Now using Qwen2.5 Coder 1.5B")).to_be_visible()
            expect(card).to_be_hidden()
            tab.send("Hello")
            tab.answers.locator(".usage").wait_for()
            expect(tab.answers.locator(".speaker")).to_contain_text("qwen2.5-coder-1.5b")
