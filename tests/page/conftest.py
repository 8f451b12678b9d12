"""Fixtures: one browser per process, with windows that tests use one after the other; each test has its own gateway.

All gateways use the same port, so that they are one site for the browser: it neither starts a process nor reads the
scripts of the page again. A test that needs a new window calls `open_tabs`.
"""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from browser import HERE, GatewayProcess, SharedBrowser, Tab, Windows, running_gateway
from playwright.sync_api import Browser

from atlas_agents.gateway.asgi import WebUiFiles
from atlas_agents.local.models import DEFAULT
from local_weights import home_with_weights

_shared_browser = SharedBrowser()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Close the browser after the last test of this folder: while it runs, no other test can run an event loop."""
    try:
        return (yield)
    finally:
        if nextitem is None or not nextitem.path.is_relative_to(HERE):
            _shared_browser.close()


@pytest.fixture(scope="session")
def weights() -> Path:
    """The file of the small model, which another thread finds: the browser needs the event loop of this one."""
    with ThreadPoolExecutor() as executor:
        return executor.submit(home_with_weights).result() / "models" / f"{DEFAULT}.gguf"


@pytest.fixture(scope="session")
def shared_browser() -> SharedBrowser:
    assert WebUiFiles(), "The page is not built: run `make page`, then run the tests again."
    return _shared_browser


@pytest.fixture
def browser(shared_browser: SharedBrowser) -> Generator[Browser]:
    """The browser, in which every test starts without windows but the shared ones."""
    yield shared_browser.browser
    shared_browser.close_windows()


@pytest.fixture
def windows(shared_browser: SharedBrowser, browser: Browser) -> Generator[Windows]:
    """The shared windows, which are empty again after the test."""
    yield shared_browser.windows
    shared_browser.windows.release()


@pytest.fixture
def port(shared_browser: SharedBrowser) -> int:
    return shared_browser.free_port()


@pytest.fixture
def gateway(tmp_path: Path, port: int) -> Generator[GatewayProcess]:
    with running_gateway(tmp_path, port=port) as gateway:
        yield gateway


@pytest.fixture
def workspace(tmp_path: Path, port: int) -> Generator[GatewayProcess]:
    """A gateway from settings, with a workspace that has agents."""
    with running_gateway(tmp_path, HERE / "workspace_gateway.py", port) as gateway:
        yield gateway


@pytest.fixture
def tab(gateway: GatewayProcess, windows: Windows) -> Generator[Tab]:
    tab = next(windows.tabs(gateway)).open()
    yield tab
    assert tab.errors == []
