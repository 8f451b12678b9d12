"""A new user: from the installed command to an approved tool call in the audit log, in at most 25 clicks."""

from pathlib import Path

import pytest
from browser import PHONE, install_weights, open_tabs
from journey import (
    LOCAL_MODELS,
    MODELS,
    MOST_CLICKS,
    LocalServer,
    NewUser,
    OpenAIAccount,
    answer_as_assistant,
    installed_gateway,
    served,
)
from playwright.sync_api import Browser

from vendors.common import KEY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def home(weights: Path, tmp_path: Path) -> Path:
    install_weights(tmp_path / "home", weights)
    return tmp_path / "home"


def test_new_user_with_a_key(home: Path, browser: Browser, tmp_path: Path) -> None:
    with (
        served(OpenAIAccount(then=answer_as_assistant)) as vendor,
        installed_gateway(home) as gateway,
    ):
        tab = next(open_tabs(browser, gateway))
        user = NewUser(tab, tmp_path)
        user.open_link(gateway)
        user.paste_key(vendor.address, KEY)
        user.pick_model(MODELS[1])
        finish(user, MODELS[1])
        assert vendor.refusals == [] and tab.errors == []


def test_new_user_without_a_key_on_a_phone(home: Path, browser: Browser, tmp_path: Path) -> None:
    with (
        served(LocalServer(then=answer_as_assistant)) as server,
        installed_gateway(home, VLLM_BASE_URL=server.address) as gateway,
    ):
        tab = next(open_tabs(browser, gateway, **PHONE))
        user = NewUser(tab, tmp_path)
        user.open_link(gateway)
        user.pick_found_model(LOCAL_MODELS[0])
        finish(user, LOCAL_MODELS[0])
        assert server.refusals == [] and tab.errors == []


def finish(user: NewUser, model: str) -> None:
    user.say_hello(model)
    user.add_mcp_server()
    user.create_agent()
    user.upload_document()
    user.ask_and_approve()
    user.read_audit_log()
    print(f"{user.clicks} clicks")
    assert user.clicks <= MOST_CLICKS
