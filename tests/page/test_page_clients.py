"""One conversation that an editor, the OpenAI SDK, an MCP client and the page follow at the same time."""

from pathlib import Path

import pytest
from browser import HERE, running_gateway
from other_clients import Clients, talk_in_one_session
from playwright.sync_api import Browser, expect


@pytest.mark.slow
def test_session_is_followed_by_four_clients_at_once(browser: Browser, tmp_path: Path) -> None:
    with running_gateway(tmp_path, HERE / "admin_gateway.py") as gateway, Clients(gateway).connected() as clients:
        tab = talk_in_one_session(browser, gateway, clients)
        expect(tab.answers.last).to_contain_text("6")
        assert tab.errors == []
        tab.context.close()
