"""A new user: from the installed command to an approved tool call in the audit log, in at most 25 clicks."""

from pathlib import Path

import pytest
from browser import PHONE, Windows, install_weights
from journey import (
    MOST_CLICKS,
    LocalServer,
    NewUser,
    OpenAIAccount,
    answer_as_assistant,
    installed_gateway,
    served,
    start_with_key,
    start_without_key,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def home(weights: Path, tmp_path: Path) -> Path:
    install_weights(tmp_path / "home", weights)
    return tmp_path / "home"


def test_new_user_with_a_key_needs_25_clicks(home: Path, windows: Windows, tmp_path: Path, port: int) -> None:
    with (
        served(OpenAIAccount(then=answer_as_assistant)) as vendor,
        installed_gateway(home, ATLAS_PORT=str(port)) as gateway,
    ):
        tab = next(windows.tabs(gateway))
        user = NewUser(tab, tmp_path)
        start_with_key(user, gateway, vendor.address)
        assert user.clicks <= MOST_CLICKS
        assert vendor.refusals == [] and tab.errors == []
        windows.release()


def test_new_user_without_a_key_needs_25_taps_on_a_phone(
    home: Path, windows: Windows, tmp_path: Path, port: int
) -> None:
    with (
        served(LocalServer(then=answer_as_assistant)) as server,
        installed_gateway(home, ATLAS_PORT=str(port), VLLM_BASE_URL=server.address) as gateway,
    ):
        tab = next(windows.tabs(gateway, color_scheme="dark", **PHONE))
        steps: dict[str, bool] = {}
        user = NewUser(tab, tmp_path, lambda name: steps.update({name: tab.fits_width()}))
        start_without_key(user, gateway)
        assert user.clicks <= MOST_CLICKS
        assert set(steps.values()) == {True}, steps
        assert server.refusals == [] and tab.errors == []
        windows.release()
