"""One conversation that an editor, the OpenAI SDK, an MCP client and the page follow at the same time."""

from pathlib import Path

import pytest
from browser import HERE, Windows, running_gateway
from other_clients import Clients, talk_in_one_session
from playwright.sync_api import expect


@pytest.mark.slow
def test_session_is_followed_by_four_clients_at_once(windows: Windows, tmp_path: Path, port: int) -> None:
    admin_gateway = running_gateway(tmp_path, HERE / "admin_gateway.py", port)
    with admin_gateway as gateway, Clients(gateway).connected() as clients:
        tab = next(windows.tabs(gateway))
        talk_in_one_session(tab, clients)
        expect(tab.answers.last).to_contain_text("6")
        assert tab.errors == []
        windows.release()
