"""Logging in to a server: addresses that are no web pages are refused, tokens stay private, nobody opens a shell."""

import os
import re
import stat
from pathlib import Path

import pytest
from mcp.shared.auth import OAuthToken
from mcp_house import written

import atlas_agents
from atlas_agents.core.errors import ConfigError, Transient
from atlas_agents.mcp.client import McpConnection
from atlas_agents.mcp.config import read_servers
from atlas_agents.mcp.transports import TokenStore, check_login_url
from atlas_agents.testing import Environment

SOURCE = Path(atlas_agents.__file__).parent


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "a:$(calc)",
        "http://evil.example/authorize",
        "https://",
        "https://ok.example/\x1b]8;;evil",
        "https://ok.example/a b",
        "data:text/html,hi",
        "vscode://x",
        "",
    ],
)
def test_an_address_that_is_no_web_page_is_not_even_shown(address: str) -> None:
    with pytest.raises(ConfigError, match="refused login URL"):
        check_login_url(address)


@pytest.mark.parametrize("address", ["https://login.example/authorize?x=1", "http://127.0.0.1:8123/authorize"])
def test_a_web_page_may_be_shown(address: str) -> None:
    assert check_login_url(address) == address


async def test_tokens_are_for_their_owner_only(tmp_path: Path) -> None:
    purse = TokenStore(tmp_path / "mcp", "s")
    assert await purse.get_tokens() is None
    await purse.set_tokens(OAuthToken(access_token="a-token"))
    assert stat.S_IMODE(os.stat(purse.path).st_mode) == 0o600
    found = await TokenStore(tmp_path / "mcp", "s").get_tokens()
    assert found is not None and found.access_token == "a-token"
    purse.path.write_text("garbage")
    assert await purse.get_tokens() is None


async def test_a_server_that_cannot_be_reached_says_so(tmp_path: Path) -> None:
    (server,) = read_servers(written(tmp_path, s={"url": "http://127.0.0.1:9/mcp"})).values()
    connection = McpConnection(server, Environment({}, dotenv=None), tmp_path)
    with pytest.raises(Transient, match="the MCP server s is unreachable"):
        await connection.tools()
    await connection.close()


def test_nothing_in_the_house_opens_an_address_by_itself() -> None:
    """No browser, no `open`, no shell for an address that somebody else has made."""
    opens = re.compile(r"webbrowser|xdg-open|os\.startfile|os\.system\(|shell=True")
    rooms = [SOURCE / "mcp", SOURCE / "gateway" / "mcp", *SOURCE.glob("cli/mcp*.py")]
    files = [path for room in rooms for path in (room.rglob("*.py") if room.is_dir() else [room])]
    assert len(files) >= 10
    assert [str(path) for path in files if opens.search(path.read_text(encoding="utf-8"))] == []
