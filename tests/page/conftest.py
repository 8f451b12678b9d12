"""A browser for a file of tests, a house for each of them."""

from collections.abc import Generator
from pathlib import Path

import pytest
from browser import House, Tab, launched, living, tabs
from playwright.sync_api import Browser

from atlas_agents.gateway.page import BuiltPage


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    assert BuiltPage(), "The page was not built: say `make page`, then run this again."
    with launched() as found:
        yield found


@pytest.fixture
def house(tmp_path: Path) -> Generator[House]:
    with living(tmp_path) as found:
        yield found


@pytest.fixture
def tab(browser: Browser, house: House) -> Generator[Tab]:
    found = next(tabs(browser, house)).open()
    yield found
    assert found.errors == []
    found.context.close()
