"""Chromium, gateway processes and browser tabs for the tests of the web page."""

import json
import os
import random
import shutil
import socket
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import (
    Browser,
    BrowserContext,
    Error,
    Locator,
    Page,
    Request,
    ViewportSize,
    expect,
    sync_playwright,
)

import fork_server
from checks import TIMEOUT

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = {
    "approvals": "/approvals",
    "jobs": "/jobs",
    "schedules": "/schedules",
    "agents": "/agents",
    "runs": "/activity/runs",
    "audit": "/activity/audit",
    "usage": "/activity/usage",
}
TABS = {"schedules": "/jobs", "audit": "/activity/runs", "usage": "/activity/runs"}
"""The entries of the navigation that lead to views which are tabs of other views."""
DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}
EXECUTABLES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""The first is Chromium without windows, which takes half the CPU time."""
MISSING = "The tests of the page need Chromium: install it (Debian: apt install chromium) and run them again."
SCRIPT_ENGINE = (
    "--no-opt",
    "--no-maglev",
    "--no-regexp-optimization",
    "--no-regexp-tier-up",
    "--min-semi-space-size=16",
)
"""The page of a test does not run long enough for code that is optimized, and needs fewer collections of garbage."""
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--process-per-site",  # the tabs of a window share a process
    f"--js-flags={','.join(SCRIPT_ENGINE)}",
)
"""Disable requests of the browser itself: the tests check every request that is made."""
expect.set_options(timeout=TIMEOUT * 1000)
ANIMATIONS_ENDED = """() => document.getAnimations().every((animation) =>
  animation.playState !== "running" || animation.effect?.getComputedTiming().iterations === Infinity)"""

SIGN_OUT = """async () => {
  const changed = Object.getOwnPropertyNames(window).filter((name) => !window.unchanged?.has(name));
  const outside = [...document.querySelectorAll("body > :not(#root, noscript)")].filter((each) => each.innerText);
  if (!document.querySelector("#root > .layout") || changed.length || outside.length || localStorage.length)
    return false;
  await fetch("/api/session", { method: "DELETE" });
  history.replaceState(null, "", "/signed-out");  // so that each URL that a test opens loads the page
  return true;
}"""
SIGN_IN = """([path, token]) => {
  history.pushState(null, "", path);
  dispatchEvent(new PopStateEvent("popstate"));
  location.hash = `token=${token}`;
}"""
REMEMBER_GLOBALS = """window.unchanged = new Set(
  [...Object.getOwnPropertyNames(window), "unchanged", "axe", "__core-js_shared__"]  // axe can stay
)"""


def find_chromium() -> str:
    """Return the path of Chromium; RuntimeError if it is not installed."""
    found = next((path for name in EXECUTABLES if (path := shutil.which(name))), None)
    if found is None:
        raise RuntimeError(MISSING)
    return found


@contextmanager
def launch_browser(**environment: str) -> Generator[Browser]:
    path = find_chromium()
    with sync_playwright() as playwright:
        env: dict[str, Any] = {**os.environ, **environment}
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS), env=env)
        try:
            yield browser
        finally:
            browser.close()


class GatewayProcess:
    """A gateway in its own process, which can be killed and started again on the same port."""

    def __init__(self, home: Path, script: Path = HERE / "page_gateway.py", port: int = 0) -> None:
        self.home = home
        self.port = port
        self._script = script
        self._process: fork_server.Program | None = None

    def start(self) -> None:
        self.working_directory.mkdir(exist_ok=True)
        command = (str(self._script), str(self.home), str(self.port))
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
        with (self.home / "log").open("a") as log:
            self._process = fork_server.Program(*command, cwd=self.working_directory, stderr=log, env=env)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (self.home / "log").read_text()
        self.port = int(line)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT)
            self._process.close()
            self._process = None

    def release(self) -> None:
        """Continue a tool or model that blocks in `page_model.wait_for_release`."""
        (self.working_directory / "release").write_text("")

    @property
    def working_directory(self) -> Path:
        return self.home / "reports"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        return (self.home / "token").read_text().strip()


@contextmanager
def running_gateway(home: Path, script: Path = HERE / "page_gateway.py", port: int = 0) -> Generator[GatewayProcess]:
    gateway = GatewayProcess(home, script, port)
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.kill()


def install_weights(home: Path, weights: Path) -> None:
    """Install the small model, so that the first start downloads nothing."""
    (home / "models").mkdir(parents=True)
    (home / "models" / weights.name).symlink_to(weights)


def script(*rounds: Any) -> str:
    """Return a message that makes the model of `page_model.py` play these rounds."""
    return json.dumps(rounds)


class Tab:
    """A browser tab with the page, and the actions of a user in it."""

    def __init__(
        self, context: BrowserContext, gateway: GatewayProcess, page: Page | None = None, *, signed_out: bool = False
    ) -> None:
        self.gateway = gateway
        self._signed_out = signed_out
        self.context = context
        self.page: Page = page or context.new_page()
        self.page.set_default_timeout(TIMEOUT * 1000)
        self.requests: list[str] = []
        self._records_requests = False
        self._system_theme: Literal["light", "dark"] | None = None
        self.errors: list[str] = []
        self.page.on("pageerror", self._add_error)

    def record_requests(self) -> None:
        """Record the URL of each request from now on. Requests of other tests are not reported: that takes time."""
        self._records_requests = True
        self.page.on("request", self._add_request)

    def _add_request(self, request: Request) -> None:
        self.requests.append(request.url)

    def _add_error(self, error: Error) -> None:
        self.errors.append(str(error))

    def leave(self, viewport: ViewportSize, theme: Literal["light", "dark"]) -> bool:
        """Leave an empty page for the next test: without other tabs, cookies, storage, listeners and emulation.

        Return whether it is the page, signed out. It is another document if the test has not signed in, or changed
        what signing out does not reset: globals, preferences, messages or elements outside the page.
        """
        for page in self.context.pages:
            if page is not self.page:
                page.close()
        self.context.unroute_all()
        self.page.remove_listener("pageerror", self._add_error)
        if self._records_requests:
            self.page.remove_listener("request", self._add_request)
        signed_out = bool(self.page.evaluate(SIGN_OUT))
        if signed_out:
            self.page.get_by_label("Access token").wait_for()
        else:
            self.page.goto(f"{self.gateway.url}/logo.svg")  # of the same site, so that its process stays
        self.page.evaluate("sessionStorage.clear(), localStorage.clear()")
        self.context.clear_cookies()
        self.page.mouse.move(0, 0)  # what it hovers has other colours
        if self._system_theme not in (None, theme):
            self.page.emulate_media(color_scheme=theme)
        if self.page.viewport_size != viewport:
            self.page.set_viewport_size(viewport)
        return signed_out

    def open(self, path: str = "/") -> "Tab":
        """Sign in at a path: without loading the page again if it was signed out."""
        if self._signed_out and self.page.url.startswith(self.gateway.url):
            self.page.evaluate(SIGN_IN, [path, self.gateway.token])
        else:
            self.page.goto(f"{self.gateway.url}{path}#token={self.gateway.token}")
        self._signed_out = False
        self.wait_until_connected()
        return self

    def wait_until_connected(self) -> None:
        self.page.locator(".connection.is-online").first.wait_for(state="attached")

    def open_view(self, view: str) -> None:
        """Open a view from the sidebar, or from the menu on a phone."""
        self.bring_to_front()
        sidebar = self.page.locator(".layout > aside")
        if not sidebar.is_visible():
            self.button("Menu").tap()
            sidebar = self.page.locator(".drawer")
        sidebar.locator(f".navigation a[href='{TABS.get(view, VIEWS[view])}']").click()
        if view in TABS:
            self.page.locator(f".tabs a[href='{VIEWS[view]}']").click()
        self.page.wait_for_url(f"**{VIEWS[view]}")
        self.page.locator(".view h1").wait_for()

    def send(self, text: str) -> None:
        self.bring_to_front()
        composer = self.page.locator(".composer textarea")
        composer.fill(text)
        composer.press("Enter")

    def bring_to_front(self) -> None:
        """Show this tab: a browser draws tabs behind others only once per second."""
        if len(self.context.pages) > 1:
            self.page.bring_to_front()

    def button(self, name: str, *, exact: bool = False) -> Locator:
        self.bring_to_front()
        return self.page.get_by_role("button", name=name, exact=exact)

    @property
    def answers(self) -> Locator:
        return self.page.locator(".answer")

    def wait_for_answer(self, text: str) -> None:
        """Wait until the last answer contains this text."""
        self.page.locator(".answer", has_text=text).last.wait_for()

    def wait_until_idle(self) -> None:
        """Wait until no run is active."""
        self.button("Stop").wait_for(state="detached")

    def wait_for_animations(self) -> None:
        """Wait until finite animations and transitions have ended."""
        self.page.wait_for_function(ANIMATIONS_ENDED)

    def set_system_theme(self, theme: Literal["light", "dark"]) -> None:
        """Have the system prefer a theme, and wait until the page follows."""
        self._system_theme = theme
        self.page.emulate_media(color_scheme=theme)
        self.page.locator(f"html[data-theme='{theme}']").wait_for()

    def axe_violations(
        self, rules: Sequence[str] | None = None, *, within: str = "html", minor: bool = False
    ) -> list[dict[str, str]]:
        """Return the serious and critical violations of all or some accessibility rules, once animations have ended.

        With `within`, a selector, only that part of the page is checked, which takes less time where the test has
        checked the rest. With `minor`, the result includes other violations.
        """
        self.wait_for_animations()
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE.read_text(encoding="utf-8"))
        check = """async ({ rules, impacts, within }) => {
          const chosen = axe._audit.rules.filter(({ id, enabled, impact, tags }) =>
            rules ? rules.includes(id) : enabled && impacts.includes(impact) && !tags.includes("experimental"));
          const runOnly = chosen.map(({ id }) => id);
          const { violations } = await axe.run(within, { runOnly, resultTypes: ["violations"] });
          const describe = (node) => `${node.target} ${node.failureSummary}`;
          return violations.filter(({ impact }) => impacts.includes(impact))
            .map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.map(describe).join(" | ") }));
        }"""
        impacts = ["serious", "critical", *(["moderate", "minor"] if minor else [])]
        chosen = {"rules": rules and list(rules), "impacts": impacts, "within": within}
        return self.page.evaluate(check, chosen)

    def fits_width(self) -> bool:
        """Return whether the page does not scroll sideways."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


def open_window(browser: Browser, **options: Any) -> BrowserContext:
    """Return a browser context, which shares nothing with others; by default without animations."""
    chosen: dict[str, Any] = {"viewport": DESKTOP, "reduced_motion": "reduce", **options}
    return browser.new_context(**chosen)


def open_tabs(browser: Browser, gateway: GatewayProcess, **options: Any) -> Iterator[Tab]:
    """Yield any number of tabs in a new window, by default without animations, which only take time."""
    context = open_window(browser, **options)
    while True:
        yield Tab(context, gateway)


class Windows:
    """Windows that tests use one after the other: they keep the cache of the browser, but no state of the test."""

    def __init__(self, browser: Browser) -> None:
        self.unused: dict[str, BrowserContext] = {}
        self._signed_out = set[BrowserContext]()
        self._browser = browser
        self._used: list[tuple[dict[str, Any], list[Tab]]] = []

    def tabs(self, gateway: GatewayProcess, **options: Any) -> Iterator[Tab]:
        """Yield any number of tabs in one window with these options."""
        context = self.unused.pop(json.dumps(options), None)
        if context is None:
            context = open_window(self._browser, **options)
            context.add_init_script(REMEMBER_GLOBALS)
        page = context.pages[0] if context.pages else None
        tabs = [Tab(context, gateway, page, signed_out=context in self._signed_out)]
        self._signed_out.discard(context)
        self._used.append((options, tabs))
        while True:
            yield tabs[-1]
            tabs.append(Tab(context, gateway))

    def release(self) -> None:
        """Empty the windows that a test has used, and keep one of each kind for the next test."""
        while self._used:
            options, (tab, *_) = self._used.pop()
            with suppress(Error):  # otherwise the window is not used again: the gateway may have ended
                if tab.leave(options.get("viewport", DESKTOP), options.get("color_scheme", "light")):
                    self._signed_out.add(tab.context)
                self.unused[json.dumps(options)] = tab.context


class SharedBrowser:
    """The browser of this process: it starts when a test needs it, and runs until it is closed."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self._browser: Browser | None = None
        self._windows: Windows | None = None
        self._port = 0

    @property
    def browser(self) -> Browser:
        if self._browser is None:
            self._browser = self._running.enter_context(launch_browser())
        return self._browser

    @property
    def windows(self) -> Windows:
        self._windows = self._windows or Windows(self.browser)
        return self._windows

    def close_windows(self) -> None:
        """Close all windows but those that the next test can use."""
        kept = self._windows.unused.values() if self._windows else ()
        for context in self.browser.contexts:
            if context not in kept:
                context.close()

    def close(self) -> None:
        self._running.close()
        self._browser = self._windows = None

    def free_port(self) -> int:
        """Return the port of the gateway before, unless another process uses it.

        It is not one of those that the system gives to other processes.
        """
        while not _is_free(self._port):
            self._port = random.randrange(20_000, 32_000)
        return self._port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return port != 0
