"""The system's Chromium, and a gateway beside it: what every test of the page begins with."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, Locator, Page, sync_playwright

HERE = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "The tests of the page need Chromium: install it (Debian: apt install chromium) and run them again."
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
"""No request of the browser's own: those of the page are counted."""
WITHIN = 20.0


def chromium() -> str:
    """Where it is; RuntimeError with one clear sentence if it is nowhere."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise RuntimeError(MISSING)
    return found


@contextmanager
def launched(**environment: str) -> Generator[Browser]:
    path = chromium()
    with sync_playwright() as playwright:
        env: dict[str, Any] = {**os.environ, **environment}
        browser = playwright.chromium.launch(executable_path=path, args=list(QUIET), env=env)
        try:
            yield browser
        finally:
            browser.close()


class House:
    """A gateway in a process of its own, which can be killed and started again at the same port."""

    def __init__(self, home: Path, script: Path = HERE / "page_process.py") -> None:
        self.home = home
        self.port = 0
        self._script = script
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        paths = os.pathsep.join([str(HERE), *sys.path])
        command = [sys.executable, str(self._script), str(self.home), str(self.port)]
        with (self.home / "log").open("a") as log:
            place = self.home / "reports"
            place.mkdir(exist_ok=True)
            self._process = subprocess.Popen(
                command,
                cwd=place,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "PYTHONPATH": paths},
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (self.home / "log").read_text()
        self.port = int(line)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(WITHIN)
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()


@contextmanager
def living(home: Path, script: Path = HERE / "page_process.py") -> Generator[House]:
    house = House(home, script)
    house.start()
    try:
        yield house
    finally:
        house.kill()


class Tab:
    """A page of the house in the browser, and what a person does there."""

    def __init__(self, context: BrowserContext, house: House) -> None:
        self.house = house
        self.context = context
        self.page: Page = context.new_page()
        self.page.set_default_timeout(WITHIN * 1000)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, path: str = "/") -> "Tab":
        self.page.goto(f"{self.house.url}{path}#token={self.house.token}")
        self.page.get_by_text("Connected as owner").first.wait_for(state="attached")
        return self

    def say(self, words: str) -> None:
        box = self.page.locator(".composer textarea")
        box.fill(words)
        box.press("Enter")

    @property
    def answers(self) -> Locator:
        return self.page.locator(".answer")

    def shows(self, words: str) -> None:
        """Wait until the last answer has these words."""
        self.page.locator(".answer", has_text=words).last.wait_for()

    def quiet(self) -> None:
        """Wait until no turn is under way."""
        self.page.get_by_role("button", name="Stop").wait_for(state="detached")


def tabs(browser: Browser, house: House, **options: Any) -> Iterator[Tab]:
    """As many tabs as are asked for, in one browser window."""
    chosen: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, **options}
    context = browser.new_context(**chosen)
    while True:
        yield Tab(context, house)
