"""Fixtures: one browser and one window per test module; each test has its own gateway and an empty page.

A test that needs a window of its own calls `open_tabs`.
"""

import socket
from collections.abc import Generator
from pathlib import Path

import pytest
from browser import GatewayProcess, Tab, launch_browser, open_window, running_gateway
from playwright.sync_api import Browser, BrowserContext

from atlas_agents.gateway.asgi import WebUiFiles
from atlas_agents.local.models import DEFAULT
from local_weights import home_with_weights


class SharedPage:
    """A page that the tests of a module use one after the other, each with its own gateway on the same port.

    For the browser it is the same site, so that it neither starts a process nor reads the scripts again.
    """

    def __init__(self, browser: Browser) -> None:
        self.port = 0
        self.context: BrowserContext | None = None
        self._browser = browser

    def free_port(self) -> int:
        """Return the port of the test before, or 0 if another process has taken it."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError:
                return 0
        return self.port

    def tab(self, gateway: GatewayProcess) -> Tab:
        """Return the page as a new tab; after a failed test in a new window."""
        context, self.context = self.context or open_window(self._browser), None
        return Tab(context, gateway, context.pages[0] if context.pages else None)

    def release(self, tab: Tab) -> None:
        """Keep the page for the next test."""
        tab.leave()
        self.context = tab.context


@pytest.fixture(scope="module")
def weights() -> Path:
    """The file of the small model; requested before the browser, which needs the event loop of the process."""
    return home_with_weights() / "models" / f"{DEFAULT}.gguf"


@pytest.fixture(scope="module")  # while it runs, no other test of the process can run an event loop
def browser_process() -> Generator[Browser]:
    assert WebUiFiles(), "The page is not built: run `make page`, then run the tests again."
    with launch_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def shared_page(browser_process: Browser) -> SharedPage:
    return SharedPage(browser_process)


@pytest.fixture
def browser(browser_process: Browser, shared_page: SharedPage) -> Generator[Browser]:
    """The browser, in which every test starts without windows but the shared one."""
    yield browser_process
    for context in browser_process.contexts:
        if context is not shared_page.context:
            context.close()


@pytest.fixture
def gateway(tmp_path: Path, shared_page: SharedPage) -> Generator[GatewayProcess]:
    with running_gateway(tmp_path, port=shared_page.free_port()) as gateway:
        shared_page.port = gateway.port
        yield gateway


@pytest.fixture
def tab(shared_page: SharedPage, browser: Browser, gateway: GatewayProcess) -> Generator[Tab]:
    tab = shared_page.tab(gateway).open()
    yield tab
    assert tab.errors == []
    shared_page.release(tab)
