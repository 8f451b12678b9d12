"""Fixtures: one browser per test module, one gateway and one tab per test."""

from collections.abc import Generator
from pathlib import Path

import pytest
from browser import GatewayProcess, Tab, launch_browser, open_tabs, running_gateway
from playwright.sync_api import Browser

from atlas_agents.gateway.asgi import WebUiFiles


@pytest.fixture(scope="module")  # while it runs, no other test of the process can run an event loop
def browser_process() -> Generator[Browser]:
    assert WebUiFiles(), "The page is not built: run `make page`, then run the tests again."
    with launch_browser() as browser:
        yield browser


@pytest.fixture
def browser(browser_process: Browser) -> Generator[Browser]:
    """The browser, in which every test starts without windows."""
    yield browser_process
    for context in browser_process.contexts:
        context.close()


@pytest.fixture
def gateway(tmp_path: Path) -> Generator[GatewayProcess]:
    with running_gateway(tmp_path) as gateway:
        yield gateway


@pytest.fixture
def tab(browser: Browser, gateway: GatewayProcess) -> Generator[Tab]:
    tab = next(open_tabs(browser, gateway)).open()
    yield tab
    assert tab.errors == []
    tab.context.close()
