"""A new user: from the installed command to an approved tool call in the audit log, in at most 25 clicks."""

from pathlib import Path

import pytest
from browser import PHONE, install_weights, open_tabs
from journey import (
    MOST_CLICKS,
    LocalServer,
    NewUser,
    answer_as_assistant,
    installed_gateway,
    served,
    start_without_key,
)
from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def home(weights: Path, tmp_path: Path) -> Path:
    install_weights(tmp_path / "home", weights)
    return tmp_path / "home"


def test_new_user_without_a_key_needs_25_taps_on_a_phone(home: Path, browser: Browser, tmp_path: Path) -> None:
    with (
        served(LocalServer(then=answer_as_assistant)) as server,
        installed_gateway(home, VLLM_BASE_URL=server.address) as gateway,
    ):
        tab = next(open_tabs(browser, gateway, color_scheme="dark", **PHONE))
        steps: dict[str, bool] = {}
        user = NewUser(tab, tmp_path, lambda name: steps.update({name: tab.fits_width()}))
        start_without_key(user, gateway)
        assert user.clicks <= MOST_CLICKS
        assert set(steps.values()) == {True}, steps
        assert server.refusals == [] and tab.errors == []
