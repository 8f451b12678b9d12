"""MCP login: only web pages are accepted as login URLs, tokens are private, and nothing opens a URL."""

import asyncio
import os
import re
import socket
import stat
from pathlib import Path

import aiohttp
import anyio
import msgspec
import pytest
from mcp.shared.auth import OAuthToken
from mcp_workspace import write_config

import atlas_agents
from atlas_agents.core.errors import ConfigError, Transient
from atlas_agents.mcp.client import McpConnection
from atlas_agents.mcp.config import ServerConfig, read_servers
from atlas_agents.mcp.transports import TokenStore, check_login_url, interactive_login
from atlas_agents.testing import Environment
from checks import TIMEOUT
from oauth_server import oauth_server

SOURCE = Path(atlas_agents.__file__).parent
SECRETS = {"TRACKER_SECRET": "a-client-secret"}


@pytest.mark.parametrize(
    "url",
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
def test_login_url_that_is_not_a_web_page_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="refused login URL"):
        check_login_url(url)


@pytest.mark.parametrize("url", ["https://login.example/authorize?x=1", "http://127.0.0.1:8123/authorize"])
def test_web_page_is_accepted_as_login_url(url: str) -> None:
    assert check_login_url(url) == url


async def test_token_file_is_private(tmp_path: Path) -> None:
    store = TokenStore(tmp_path / "mcp", "s")
    assert await store.get_tokens() is None
    await store.set_tokens(OAuthToken(access_token="a-token"))
    assert stat.S_IMODE(os.stat(store.path).st_mode) == 0o600
    found = await TokenStore(tmp_path / "mcp", "s").get_tokens()
    assert found is not None and found.access_token == "a-token"
    store.path.write_text("garbage")
    assert await store.get_tokens() is None


async def open_page(url: str) -> None:
    async with aiohttp.ClientSession() as browser, browser.get(url) as page:
        await page.read()


async def log_in(server: ServerConfig, folder: Path) -> None:
    """Log in as a person does."""
    opened: list[asyncio.Task[None]] = []

    def show(url: str) -> None:
        opened.append(asyncio.create_task(open_page(url)))

    async with interactive_login(server.name, server.expanded(Environment(SECRETS, dotenv=None)), folder, show) as auth:
        connection = McpConnection(server, Environment(SECRETS, dotenv=None), folder, auth=auth)
        try:
            await connection.tools()
        finally:
            await connection.close()
    await asyncio.gather(*opened)


async def test_expired_token_is_renewed_after_a_restart(tmp_path: Path) -> None:
    """The library forgot when the token expires and where to renew it, so that a person had to log in again."""
    async with oauth_server() as tracker:
        (server,) = read_servers(write_config(tmp_path, s={"url": f"{tracker.url}/mcp"})).values()
        await log_in(server, tmp_path)
        store = TokenStore(tmp_path, "s")
        store.update(expires_at=1.0)
        connection = McpConnection(server, Environment({}, dotenv=None), tmp_path)
        assert [each.name for each in await connection.tools()] == ["list_issues"]
        await connection.close()
        assert tracker.grants == ["authorization_code", "refresh_token"] and tracker.refused == []
        assert (TokenStore(tmp_path, "s").read().expires_at or 0) > 1.0


@pytest.mark.parametrize("auth", ["client_secret_basic", "client_secret_post", "none"])
async def test_registered_client_logs_in_without_registration(auth: str, tmp_path: Path) -> None:
    environment = Environment(SECRETS, dotenv=None)
    async with oauth_server() as tracker:
        tracker.registers, tracker.token_auth = False, auth
        tracker.clients = {"atlas-at-home": ["http://127.0.0.1:*/callback"]}
        oauth = {"clientId": "atlas-at-home"}
        if auth != "none":
            tracker.secrets = {"atlas-at-home": SECRETS["TRACKER_SECRET"]}
            oauth["clientSecret"] = "${TRACKER_SECRET}"
        (server,) = read_servers(write_config(tmp_path, s={"url": f"{tracker.url}/mcp", "oauth": oauth})).values()
        await log_in(server, tmp_path)
        TokenStore(tmp_path, "s").update(expires_at=1.0)
        connection = McpConnection(server, environment, tmp_path)
        assert [each.name for each in await connection.tools()] == ["list_issues"]
        await connection.close()
        assert tracker.grants == ["authorization_code", "refresh_token"] and tracker.refused == []
        assert SECRETS["TRACKER_SECRET"] not in TokenStore(tmp_path, "s").path.read_text()
        async with oauth_server() as other:
            moved = msgspec.structs.replace(server.entry, url=f"{other.url}/mcp")
            with pytest.raises(Transient, match="its client is registered with"):
                await log_in(msgspec.structs.replace(server, entry=moved), tmp_path)
            assert other.grants == [], "no other authorization server gets the secret"


async def test_callback_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        entry = {"url": "https://tracker.example/mcp", "oauth": {"clientId": "atlas", "callbackPort": port}}
        (server,) = read_servers(write_config(tmp_path, s=entry)).values()
        with pytest.raises(ConfigError, match=f"cannot receive the callback of the login on port {port}"):
            await log_in(server, tmp_path)


async def test_login_that_fails_keeps_the_tokens_of_the_last_one(tmp_path: Path) -> None:
    async with oauth_server() as tracker:
        (server,) = read_servers(write_config(tmp_path, s={"url": f"{tracker.url}/mcp"})).values()
        await log_in(server, tmp_path)
        tracker.denies = True
        with pytest.raises(Transient, match="the login was refused: Access was denied"):
            await log_in(server, tmp_path)
        tokens = await TokenStore(tmp_path, "s").get_tokens()
        assert tokens is not None and tokens.access_token in tracker.tokens


async def test_server_that_never_has_enough_scopes_ends_the_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atlas_agents.mcp.transports.MAX_REDIRECTS", 2)
    async with oauth_server() as tracker:
        (server,) = read_servers(write_config(tmp_path, s={"url": f"{tracker.url}/mcp"})).values()
        tracker.scopes = {"initialize": "one", "tools/list": "two"}
        with pytest.raises(Transient, match="more than 2 logins in a row"):
            await log_in(server, tmp_path)
        assert tracker.asked == ["", "one"]


async def test_connection_closes_although_its_session_loses_the_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login waited forever for the earlier connection to close."""
    began = asyncio.Event()

    async def lose_cancellation(_: McpConnection) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise anyio.BrokenResourceError from None

    monkeypatch.setattr(McpConnection, "_run_session", lose_cancellation)
    (server,) = read_servers(write_config(tmp_path, s={"url": "http://127.0.0.1:9/mcp"})).values()
    connection = McpConnection(server, Environment({}, dotenv=None), tmp_path)
    waiting = asyncio.create_task(connection.tools())
    await began.wait()
    await asyncio.wait_for(connection.close(), TIMEOUT)
    waiting.cancel()


async def test_unreachable_server_is_named(tmp_path: Path) -> None:
    (server,) = read_servers(write_config(tmp_path, s={"url": "http://127.0.0.1:9/mcp"})).values()
    connection = McpConnection(server, Environment({}, dotenv=None), tmp_path)
    with pytest.raises(Transient, match="the MCP server s is unreachable"):
        await connection.tools()
    await connection.close()


def test_no_mcp_code_opens_a_url() -> None:
    """No browser and no shell is started with a URL from a server."""
    opens = re.compile(r"webbrowser|xdg-open|os\.startfile|os\.system\(|shell=True")
    folders = [SOURCE / "mcp", SOURCE / "gateway" / "mcp", *SOURCE.glob("cli/mcp*.py")]
    files = [path for folder in folders for path in (folder.rglob("*.py") if folder.is_dir() else [folder])]
    assert len(files) >= 10
    assert [str(path) for path in files if opens.search(path.read_text(encoding="utf-8"))] == []
