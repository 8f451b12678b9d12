"""MCP methods: nothing starts before it was shown, tools are approved as shown, and changes need a review."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from gateway_client import Client, connect_client

from atlas_agents.app.serve import private_gateway
from atlas_agents.config.load import load
from atlas_agents.core.paths import Environment
from checks import TIMEOUT, wait_until
from oauth_server import OAuthServer, oauth_server

SERVER = Path(__file__).parent.parent / "foreign" / "scripted_server.py"
TOOLS = [{"name": name, "description": f"The tool {name}.", "inputSchema": {"type": "object"}} for name in "abc"]


@asynccontextmanager
async def serve_workspace(home: Path) -> AsyncGenerator[Client]:
    environment = Environment({"ATLAS_HOME": str(home), "HOME": str(home)}, dotenv=None)
    settings = load({"model": "demo", "embeddings": "none", "sandbox": "none"}, environment, home.parent)
    async with (
        asyncio.timeout(TIMEOUT),
        private_gateway(settings, environment=environment) as served,
        connect_client(served.gateway, served.token.reveal()) as client,
    ):
        yield client


async def fail(client: Client, method: str, **params: Any) -> dict[str, Any]:
    answer = await client.request(method, **params)
    assert "error" in answer, answer
    return answer["error"]


def write_tools(folder: Path, tools: list[dict[str, Any]]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "tools.json").write_text(json.dumps(tools))


async def add_shop(client: Client, folder: Path) -> dict[str, Any]:
    """Add a server with three tools and a secret."""
    write_tools(folder, TOOLS)
    entry: dict[str, Any] = {"command": sys.executable, "args": ["-S", str(SERVER), str(folder)]}
    entry |= {"folders": {str(folder): "write"}, "env": {"API_KEY": "s3cret-value"}}
    tried = await client.get("mcp.put", name="shop", entry=entry, dryRun=True)
    assert "scripted_server.py" in tried["diff"] and (await client.get("mcp.servers")) == {}
    return (await client.get("mcp.put", name="shop", entry=entry))["server"]


async def approve_shop(client: Client, count: int) -> dict[str, Any]:
    shown = await client.get("mcp.inspect", name="shop")
    found = await client.get("mcp.inspect", name="shop", program=shown["program"])
    chosen = [{"name": tool["name"], "digest": tool["digest"]} for tool in found["tools"][:count]]
    return (await client.get("mcp.approve", name="shop", program=shown["program"], tools=chosen))["server"]


async def test_secret_of_a_server_is_stored_apart_and_never_returned(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with serve_workspace(home) as client:
        assert {"time", "github"} <= {each["name"] for each in (await client.get("mcp.catalog"))["servers"]}
        added = await add_shop(client, tmp_path / "shop")
        assert added.get("status", "not-approved") == "not-approved"
        assert added["entry"]["env"] == {"API_KEY": "••••"}
        assert "s3cret" not in (home / "workspace" / "mcp.json").read_text()
        secrets = home / "secrets.json"
        assert "s3cret-value" in secrets.read_text() and secrets.stat().st_mode & 0o077 == 0
        conflict = await fail(client, "mcp.put", name="shop", entry={"command": "other"})
        assert conflict["code"] == -32005 and conflict["data"]["current"]["value"]["command"] == sys.executable
        changed = {**added["entry"], "description": "The shop."}
        await client.get("mcp.put", name="shop", entry=changed, expectedVersion=added["version"])
        assert "s3cret-value" in secrets.read_text(), "the mask keeps the value"
        (server,) = (await client.get("mcp.servers"))["servers"]
        assert (await fail(client, "mcp.remove", name="shop", expectedVersion="x"))["code"] == -32005
        await client.get("mcp.remove", name="shop", expectedVersion=server["version"])
        assert (await client.get("mcp.servers")) == {} and "s3cret" not in secrets.read_text()
        assert "s3cret" not in json.dumps([conflict, server, await client.get("audit.list")])


async def test_secret_of_an_oauth_client_is_stored_apart(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with serve_workspace(home) as client:
        oauth: dict[str, Any] = {"clientId": "atlas", "clientSecret": "s3cret-value", "callbackPort": 8123}
        entry = {"url": "https://tracker.example/mcp", "oauth": oauth}
        added = (await client.get("mcp.put", name="tracker", entry=entry))["server"]
        assert added["entry"]["oauth"] == {**oauth, "clientSecret": "••••"}
        changed = {**added["entry"], "description": "Issues."}
        await client.get("mcp.put", name="tracker", entry=changed, expectedVersion=added["version"])
        written = json.loads((home / "workspace" / "mcp.json").read_text())["mcpServers"]["tracker"]
        ((variable, value),) = json.loads((home / "secrets.json").read_text())["mcp"].items()
        assert value == "s3cret-value" and written["oauth"] == {**oauth, "clientSecret": f"${{{variable}}}"}


async def test_server_starts_only_as_shown_and_offers_only_approved_tools(tmp_path: Path) -> None:
    async with serve_workspace(tmp_path / "home") as client:
        await add_shop(client, tmp_path / "shop")
        shown = await client.get("mcp.inspect", name="shop")
        assert shown["command"].startswith(f"{sys.executable} -S ") and "tools" not in shown
        assert (await fail(client, "mcp.inspect", name="shop", program="other"))["code"] == -32005
        found = await client.get("mcp.inspect", name="shop", program=shown["program"])
        assert [(tool["name"], tool["change"]) for tool in found["tools"]] == [(name, "new") for name in "abc"]
        (server,) = (await client.get("mcp.servers"))["servers"]
        assert server.get("status", "not-approved") == "not-approved", "it was stopped after the inspection"
        for program, digest in (("other", found["tools"][0]["digest"]), (shown["program"], "0")):
            tools = [{"name": "a", "digest": digest}]
            assert (await fail(client, "mcp.approve", name="shop", program=program, tools=tools))["code"] == -32005
        server = await approve_shop(client, 2)
        assert (server["status"], server["tools"]) == ("running", ["shop/a", "shop/b"])
        offered = {tool["name"] for tool in (await client.get("tools.list"))["tools"]}
        assert {"shop/a", "shop/b"} <= offered and "shop/c" not in offered
        rows = [each["entry"] for each in (await client.get("audit.list"))["entries"]]
        assert {"mcp", "mcp-start", "mcp-approval"} <= {row["entityType"] for row in rows}


async def test_changed_server_and_tools_need_a_review(tmp_path: Path) -> None:
    async with serve_workspace(tmp_path / "home") as client:
        added = await add_shop(client, tmp_path / "shop")
        await approve_shop(client, 3)
        changes = [{**TOOLS[0], "description": "Now deletes files."}, TOOLS[1]]
        write_tools(tmp_path / "shop", changes)
        same = await client.get("mcp.put", name="shop", entry=added["entry"], expectedVersion=added["version"])
        assert same["server"]["status"] == "running", "an entry that stays the same needs no review"
        renamed = {**added["entry"], "description": "The shop."}
        changed = await client.get("mcp.put", name="shop", entry=renamed, expectedVersion=added["version"])
        assert changed["server"]["status"] == "changed" and changed["server"]["changedBy"] == "owner"
        shown = await client.get("mcp.inspect", name="shop")
        found = await client.get("mcp.inspect", name="shop", program=shown["program"])
        assert [tool["change"] for tool in found["tools"]] == ["changed", "same"] and found["removed"] == ["c"]
        diff = found["tools"][0]["diff"]
        assert "-    The tool a." in diff and "+    Now deletes files." in diff


async def test_unreachable_server_and_invalid_entry_say_why(tmp_path: Path) -> None:
    async with serve_workspace(tmp_path / "home") as client:
        assert "either a command or a url" in (await fail(client, "mcp.put", name="x", entry={}))["message"]
        result = await client.get("mcp.put", name="gone", entry={"command": "no-such-program-here"})
        assert "no-such-program-here" in result["warnings"][0]
        assert "no-such-program-here" in (await fail(client, "mcp.inspect", name="gone"))["message"]
        await client.get("mcp.put", name="ends", entry={"command": sys.executable, "args": ["-c", "print('bye')"]})
        program = (await client.get("mcp.inspect", name="ends"))["program"]
        error = await fail(client, "mcp.inspect", name="ends", program=program)
        assert error["data"]["kind"] == "UNAVAILABLE" and "unreachable" in error["message"]
        assert "not found" in (await fail(client, "mcp.login", name="none"))["message"]
        assert "has no login" in (await fail(client, "mcp.login", name="ends"))["message"]


async def sign_in(url: str) -> str:
    """Open a sign-in page as a browser does, and return the page at the end of the redirects."""
    async with aiohttp.ClientSession() as browser, browser.get(url) as page:
        return await page.text()


async def wait_for_status(client: Client, status: str) -> dict[str, Any]:
    async def server() -> Any:
        (found,) = (await client.get("mcp.servers"))["servers"]
        return found if found.get("status", "not-approved") == status else None

    return await wait_until(server)


async def add_tracker(client: Client, tracker: OAuthServer) -> str:
    """Add a server that requires a login, and return what identifies its program."""
    await client.get("mcp.put", name="tracker", entry={"url": f"{tracker.url}/mcp"})
    program = (await client.get("mcp.inspect", name="tracker"))["program"]
    refused = await fail(client, "mcp.inspect", name="tracker", program=program)
    assert "requires a login" in refused["message"]
    await wait_for_status(client, "needs-sign-in")
    return program


async def test_server_is_listed_as_soon_as_it_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`atlas mcp approve` did not know a server that a person had just added to the file."""
    monkeypatch.setattr("atlas_agents.app.agents._POLL_SECONDS", 3600)
    async with serve_workspace(tmp_path / "home") as client:
        assert "servers" not in await client.get("mcp.servers")
        added = {"mcpServers": {"docs": {"url": "https://docs.example/mcp"}}}
        (tmp_path / "home" / "workspace" / "mcp.json").write_text(json.dumps(added))
        assert [each["name"] for each in (await client.get("mcp.servers"))["servers"]] == ["docs"]


async def test_refused_sign_in_is_explained(tmp_path: Path) -> None:
    async with oauth_server() as tracker, serve_workspace(tmp_path / "home") as client:
        await add_tracker(client, tracker)
        tracker.denies = True
        page = await sign_in((await client.get("mcp.login", name="tracker"))["url"])
        assert "You are not signed in." in page

        async def trouble() -> Any:
            (found,) = (await client.get("mcp.servers"))["servers"]
            return found["trouble"] == "the login was refused: Access was denied."

        await wait_until(trouble)
        (server,) = (await client.get("mcp.servers"))["servers"]
        assert server["status"] == "needs-sign-in" and "hasLogin" not in server


async def test_person_signs_in_with_oauth(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with oauth_server() as tracker, serve_workspace(home) as client:
        program = await add_tracker(client, tracker)
        url = (await client.get("mcp.login", name="tracker"))["url"]
        (waiting,) = (await client.get("mcp.servers"))["servers"]
        assert waiting["status"] == "signing-in"
        assert "You are signed in." in await sign_in(url)
        server = await wait_for_status(client, "not-approved")
        assert server["hasLogin"] and "trouble" not in server
        found = await client.get("mcp.inspect", name="tracker", program=program)
        chosen = [{"name": each["name"], "digest": each["digest"]} for each in found["tools"]]
        assert [each["name"] for each in chosen] == ["list_issues"]
        approved = await client.get("mcp.approve", name="tracker", program=program, tools=chosen)
        assert approved["server"]["status"] == "running"
        assert tracker.refused == [], "the client does everything that OAuth 2.1 requires"
        await client.get("mcp.logout", name="tracker")
        assert not list((home / "mcp").glob("login-*.json"))
        updated = [each["data"]["kind"] for each in client.events() if each["event"] == "resource.updated"]
        assert updated.count("mcp-login") == 2, "clients learn that someone signed in and out"
        audit = await client.get("audit.list")
        logins = [row["entry"] for row in audit["entries"] if row["entry"]["entityType"] == "mcp-login"]
        assert [row["meta"]["outcome"] for row in logins] == ["removed", "created"]
        assert not any(token in json.dumps(audit) for token in tracker.tokens)


async def log_in_to_tracker(client: Client) -> dict[str, Any]:
    """Log in as a person does, and return the server as it is afterwards."""
    await sign_in((await client.get("mcp.login", name="tracker"))["url"])

    async def server() -> Any:
        (found,) = (await client.get("mcp.servers"))["servers"]
        return found if found.get("status") != "signing-in" else None

    return await wait_until(server)


async def test_server_that_asks_for_a_second_login_gets_it(tmp_path: Path) -> None:
    """Each redirect has its own callback: a forged one, or a repeated one, answers none of them."""
    async with oauth_server() as tracker, serve_workspace(tmp_path / "home") as client:
        await add_tracker(client, tracker)
        tracker.scopes = {"tools/list": "issues:read"}
        first: str = (await client.get("mcp.login", name="tracker"))["url"]
        back = parse_qs(urlsplit(first).query)["redirect_uri"][0]
        assert "You are not signed in." in await sign_in(f"{back}?code=x&state=forged")
        assert "You are signed in." in await sign_in(first)

        async def second_url() -> str:
            (found,) = (await client.get("mcp.servers"))["servers"]
            assert found["status"] == "signing-in"
            return found["loginUrl"] if found["loginUrl"] != first else ""

        second = await wait_until(second_url)
        assert "resource.updated" in [each["event"] for each in client.events()]
        assert "You are signed in." in await sign_in(second)
        server = await wait_for_status(client, "not-approved")
        assert server["hasLogin"] and "loginUrl" not in server
        assert (tracker.asked, tracker.refused) == (["", "issues:read"], [])


async def call_tracker(client: Client) -> tuple[str, str]:
    """Call the tool; return what came of it, and the status of its server."""
    outcome = (await client.get("tools.invoke", name="tracker/list_issues"))["result"]
    (server,) = (await client.get("mcp.servers"))["servers"]
    return str(outcome), server["status"]


async def test_call_that_needs_a_further_scope_asks_a_person_to_log_in(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with oauth_server() as tracker, serve_workspace(home) as client:
        entry = {"url": f"{tracker.url}/mcp", "pure": ["list_issues"]}
        (home / "workspace" / "mcp.json").write_text(json.dumps({"mcpServers": {"tracker": entry}}))
        tracker.scopes = {"login": "issues:read"}
        await client.get("mcp.servers")
        await log_in_to_tracker(client)
        program = (await client.get("mcp.inspect", name="tracker"))["program"]
        found = await client.get("mcp.inspect", name="tracker", program=program)
        chosen = [{"name": each["name"], "digest": each["digest"]} for each in found["tools"]]
        await client.get("mcp.approve", name="tracker", program=program, tools=chosen)
        assert await call_tracker(client) == ("No issues.", "running")
        tracker.scopes["list_issues"] = "issues:write"
        tracker.ignores_scopes = True
        for _ in range(3):
            outcome, status = await call_tracker(client)
            assert "requires a login with the scope 'issues:write'" in outcome and status == "needs-sign-in"
            assert (await log_in_to_tracker(client))["status"] == "ready"
        outcome, status = await call_tracker(client)
        assert "still refuses the call after 3 logins" in outcome and status == "running"
        tracker.ignores_scopes = False
        await log_in_to_tracker(client)
        assert await call_tracker(client) == ("No issues.", "running")
        assert tracker.asked == ["issues:read", *["issues:read issues:write"] * 4] and tracker.refused == []


async def test_oauth_double_refuses_a_wrong_verifier_and_a_used_code() -> None:
    async with oauth_server() as tracker, aiohttp.ClientSession() as http:
        redirect = "http://127.0.0.1:9/callback"
        async with http.post(f"{tracker.url}/register", json={"redirect_uris": [redirect]}) as made:
            id = (await made.json())["client_id"]
        asked = {"client_id": id, "redirect_uri": redirect, "resource": f"{tracker.url}/mcp"}
        query = {**asked, "response_type": "code", "code_challenge": "x", "code_challenge_method": "S256", "state": "s"}
        async with http.get(f"{tracker.url}/authorize", params=query, allow_redirects=False) as page:
            code = page.headers["Location"].partition("code=")[2].partition("&")[0]
        for expected in ("wrong code verifier", "unknown or used code"):
            form = {**asked, "grant_type": "authorization_code", "code": code, "code_verifier": "y"}
            async with http.post(f"{tracker.url}/oauth/token", data=form) as answer:
                assert (answer.status, (await answer.json())["error_description"]) == (400, expected)
