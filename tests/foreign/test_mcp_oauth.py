"""The gateway as an OAuth authorization server: the official MCP client logs in, and attacks on every step fail."""

import base64
import hashlib
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import httpx2
import pytest
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from atlas_agents import Agent, Atlas, tool
from atlas_agents.client import GatewayClient, GatewayError, Unauthorized
from atlas_agents.core.errors import StoreError
from atlas_agents.core.store import DropRecord, Write
from atlas_agents.gateway.auth import MAX_INVALID_TOKENS
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, says
from checks import TIMEOUT

ADA = "ada-0123456789abcdefghijklmnopqrstuvwxyz"
READER = "reader-0123456789abcdefghijklmnopqrstuvwxyz"
TOKENS = {
    "ada": {"token": ADA, "scopes": ["read", "write", "approve", "admin"], "role": "member"},
    "reader": {"token": READER, "scopes": ["read"]},
}
CALLBACK = "https://app.example/callback"
VERIFIER = "v" * 50
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()


@tool(effect="pure")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Browser:
    """A browser with the gateway's consent screen: it sends the requests of the page, with cookies and its origin."""

    def __init__(self, gateway: Gateway, http: httpx2.AsyncClient) -> None:
        self.gateway = gateway
        self.url = f"http://127.0.0.1:{gateway.port}"
        self.http = http

    async def post(self, path: str, body: object, **headers: str) -> httpx2.Response:
        return await self.http.post(self.url + path, json=body, headers={"Origin": self.url, **headers})

    async def sign_in(self, token: str = ADA) -> None:
        assert (await self.post("/api/session", {"token": token})).status_code == 200

    async def decide(self, query: str, decision: str = "allow") -> dict[str, str]:
        """Answer the consent screen and return the parameters of the redirect."""
        answer = await self.post("/api/consent", {"query": query, "decision": decision})
        assert answer.status_code == 200, answer.text
        redirect: str = answer.json()["redirect"]
        return dict(parse_qsl(urlsplit(redirect).query))

    async def register(self, *uris: str, name: str = "Connector") -> str:
        body = {"redirect_uris": uris or [CALLBACK], "client_name": name}
        answer = await self.http.post(f"{self.url}/register", json=body)
        assert answer.status_code == 201, answer.text
        return answer.json()["client_id"]

    def query(self, client: str, **changed: str | None) -> str:
        fields = {
            "response_type": "code",
            "client_id": client,
            "redirect_uri": CALLBACK,
            "state": "s t&1",
            "code_challenge": CHALLENGE,
            "code_challenge_method": "S256",
            "resource": f"{self.url}/mcp",
            "scope": "read write",
        }
        return urlencode({name: value for name, value in {**fields, **changed}.items() if value is not None})

    async def token(self, client: str, **fields: str) -> httpx2.Response:
        sent = {"client_id": client, **fields}
        return await self.http.post(f"{self.url}/token", data=sent)

    async def exchange(self, client: str, code: str, **changed: str) -> httpx2.Response:
        sent = {"redirect_uri": CALLBACK, "code_verifier": VERIFIER, **changed}
        return await self.token(client, grant_type="authorization_code", code=code, **sent)

    async def connect(self, **changed: str | None) -> dict[str, Any]:
        """Sign in, allow a new client and return its tokens, with its id as `client`."""
        await self.sign_in()
        client = await self.register()
        code = (await self.decide(self.query(client, **changed)))["code"]
        return {**(await self.exchange(client, code)).json(), "client": client}

    async def accepts(self, token: str, path: str = "/mcp") -> bool:
        """Return whether an MCP endpoint accepts a token."""
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        return (await self.http.post(self.url + path, json=ping, headers=headers)).status_code != 401

    async def audited(self) -> list[str]:
        rows = await self.gateway.hub.store.audit("default")
        return [json.loads(row.entry)["message"] for row in rows]


@asynccontextmanager
async def open_browser(home: Path) -> AsyncGenerator[Browser, None]:
    (home / "tokens.json").write_text(json.dumps(TOKENS))
    atlas = Atlas([Agent("assistant", model=Scripted(says("Hello.")), tools=[add])], store=MemoryStore())
    settings = GatewaySettings(home=home, port=0, grace=0)
    async with Gateway(atlas, settings).running() as gateway, httpx2.AsyncClient(timeout=TIMEOUT) as http:
        yield Browser(gateway, http)


class Storage:
    """Keeps the tokens and the registration of the official client."""

    tokens: OAuthToken | None = None
    info: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.info

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.info = client_info


def official_auth(browser: Browser, storage: Storage, asked: list[str]) -> OAuthClientProvider:
    async def open_link(url: str) -> None:
        asked.append(url)

    async def wait_for_callback() -> AuthorizationCodeResult:
        page = await browser.http.get(asked[-1])
        assert page.status_code == 200 and "/consent.js" in page.text
        query = urlsplit(asked[-1]).query
        shown = await browser.post("/api/consent/request", {"query": query})
        if shown.status_code == 401:
            await browser.sign_in()
            shown = await browser.post("/api/consent/request", {"query": query})
        expected = {"client": "Official", "host": "127.0.0.1:5000", "scopes": ["read", "write"], "user": "ada"}
        assert shown.json() == expected
        return AuthorizationCodeResult(**await browser.decide(query))

    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl("http://127.0.0.1:5000/callback")], client_name="Official")
    return OAuthClientProvider(f"{browser.url}/mcp", metadata, storage, open_link, wait_for_callback)


async def call_add(browser: Browser, auth: OAuthClientProvider) -> Any:
    async with (
        httpx2.AsyncClient(auth=auth, timeout=TIMEOUT) as http,
        Client(streamable_http_client(f"{browser.url}/mcp", http_client=http)) as client,
    ):
        return (await client.call_tool("add", {"a": 1, "b": 2})).content[0]


async def test_official_client_logs_in_calls_a_tool_refreshes_and_is_revoked(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        storage, asked = Storage(), list[str]()
        auth = official_auth(browser, storage, asked)
        assert (await call_add(browser, auth)).text == "3" and len(asked) == 1
        first = storage.tokens
        assert first is not None and first.expires_in == 3600 and first.scope == "read write"
        [name] = [each for each in browser.gateway.hub.tokens.entries() if each.startswith("oauth-official-")]
        entry = browser.gateway.hub.tokens.entries()[name]
        assert (entry.user, entry.scopes, entry.role, entry.client) == ("ada", ("read", "write"), "member", "Official")
        assert first.access_token not in (tmp_path / "tokens.json").read_text()

        auth.context.token_expiry_time = 1.0
        assert (await call_add(browser, auth)).text == "3" and len(asked) == 1
        second = storage.tokens
        assert second is not None and second.access_token != first.access_token
        assert not await browser.accepts(first.access_token) and await browser.accepts(second.access_token)
        messages = "\n".join(await browser.audited())
        assert "OAuth client Official: allowed" in messages and "registered" not in messages

        browser.gateway.hub.tokens.remove(name)
        assert not await browser.accepts(second.access_token)
        fields = {"grant_type": "refresh_token", "refresh_token": second.refresh_token or ""}
        answer = await browser.token(storage.info.client_id if storage.info else "", **fields)
        assert answer.json()["error"] == "invalid_grant"


INVALID: list[tuple[dict[str, str | None], str]] = [
    ({"client_id": "unknown"}, "unknown client_id"),
    ({"redirect_uri": "https://evil.example/callback"}, "redirect_uri is not"),
    ({"redirect_uri": f"{CALLBACK}/../x"}, "redirect_uri is not"),
    ({"redirect_uri": "http://127.0.0.1@evil.example/local"}, "redirect_uri is not"),
    ({"redirect_uri": None}, "redirect_uri is not"),
    ({"response_type": "token"}, "response_type"),
    ({"code_challenge": None}, "PKCE is required"),
    ({"code_challenge_method": "plain"}, "PKCE is required"),
    ({"code_challenge_method": None}, "PKCE is required"),
    ({"resource": "https://other.example/mcp"}, "resource: expected"),
    ({"scope": "admin"}, "scope: expected"),
]
UNSAFE = [
    "http://app.example/callback",
    "javascript:alert(1)",
    "https://app.example/#x",
    "https://user@app.example/",
    "https://app.example\\@evil.example/",
    "https:///callback",
    "http://127.0.0.1.evil.example/",
    "https://app.example:99999/",
    "https://app.example%E3%80%82evil.example/",
    "https://app.example&evil.example/",
]


async def test_invalid_authorization_request_is_shown_and_never_redirected(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        client = await browser.register(CALLBACK, "http://127.0.0.1/local")
        await browser.sign_in()
        for changed, reason in INVALID:
            query = browser.query(client, **changed)
            page = await browser.http.get(f"{browser.url}/authorize?{query}")
            assert page.status_code == 400 and reason in page.text and "location" not in page.headers, changed
            answer = await browser.post("/api/consent", {"query": query, "decision": "allow"})
            assert answer.status_code == 400 and reason in answer.text, changed
        twice = await browser.http.get(f"{browser.url}/authorize?{browser.query(client)}&state=x")
        assert twice.status_code == 400


async def test_client_with_an_unsafe_redirect_cannot_register(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        for uri in UNSAFE:
            answer = await browser.http.post(f"{browser.url}/register", json={"redirect_uris": [CALLBACK, uri]})
            assert answer.status_code == 400 and answer.json()["error"] == "invalid_redirect_uri", uri


async def test_consent_requires_a_signed_in_person_on_the_own_page(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        client = await browser.register("http://localhost/local", name="Evil\u202e<b>")
        query = browser.query(client, redirect_uri="http://localhost:7777/local", scope=None)
        body = {"query": query, "decision": "allow"}
        assert (await browser.post("/api/consent", body)).status_code == 401
        bearer = {"Authorization": f"Bearer {ADA}"}
        assert (await browser.post("/api/consent", body, **bearer)).status_code == 401
        await browser.sign_in()
        for origin in ("https://evil.example", "http://127.0.0.1:1", "null"):
            assert (await browser.post("/api/consent", body, Origin=origin)).status_code == 403
        assert (await browser.http.post(f"{browser.url}/api/consent", json=body)).status_code == 403
        form = {"Origin": browser.url}
        assert (await browser.http.post(f"{browser.url}/api/consent", data=body, headers=form)).status_code == 415
        page = await browser.http.get(f"{browser.url}/authorize?{query}")
        assert page.headers["X-Frame-Options"] == "DENY" and "frame-ancestors 'none'" in str(page.headers)
        shown = (await browser.post("/api/consent/request", {"query": query})).json()
        expected = {"client": "Evil<b>", "host": "localhost:7777", "scopes": ["read", "write"], "user": "ada"}
        assert shown == expected
        denied = await browser.decide(query, "deny")
        assert denied == {"error": "access_denied", "state": "s t&1", "iss": browser.url}
        assert not [row for row in await browser.gateway.hub.store.records("default", "oauth") if "code" in row.key]


async def test_code_is_bound_to_its_client_redirect_and_verifier(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        await browser.sign_in()
        client, other = await browser.register(), await browser.register(name="Other")
        for sender, changed in (
            (client, {"code_verifier": "w" * 50}),
            (client, {"code_verifier": ""}),
            (client, {"redirect_uri": "https://app.example/other"}),
            (client, {"resource": f"{browser.url}/mcp/poet"}),
            (other, {}),
        ):
            code = (await browser.decide(browser.query(client)))["code"]
            answer = await browser.exchange(sender, code, **changed)
            assert (answer.status_code, answer.json()["error"]) == (400, "invalid_grant"), changed
            assert (await browser.exchange(client, code)).status_code == 400  # an attempt uses the code up
        assert set(browser.gateway.hub.tokens.entries()) == set(TOKENS)
        assert "OAuth client Other: sent an invalid code" in await browser.audited()


async def test_reused_code_or_refresh_token_revokes_the_access(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        await browser.sign_in()
        client, other = await browser.register(), await browser.register(name="Other")
        code = (await browser.decide(browser.query(client)))["code"]
        issued = (await browser.exchange(client, code)).json()
        assert await browser.accepts(issued["access_token"])
        assert (await browser.exchange(client, code)).json()["error"] == "invalid_grant"
        assert not await browser.accepts(issued["access_token"])

        issued = (await browser.exchange(client, (await browser.decide(browser.query(client)))["code"])).json()
        refresh = {"grant_type": "refresh_token", "refresh_token": issued["refresh_token"]}
        assert (await browser.token(other, **refresh)).status_code == 400
        renewed = (await browser.token(client, **refresh)).json()
        assert await browser.accepts(renewed["access_token"])
        assert (await browser.token(client, **refresh)).status_code == 400
        assert not await browser.accepts(renewed["access_token"])
        refresh["refresh_token"] = renewed["refresh_token"]
        assert (await browser.token(client, **refresh)).status_code == 400
        assert "OAuth client Connector: used a refresh token again" in await browser.audited()


async def test_expired_code_and_access_token_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_browser(tmp_path) as browser:
        await browser.sign_in()
        client = await browser.register()
        monkeypatch.setattr("atlas_agents.gateway.oauth.CODE_SECONDS", 0)
        late = (await browser.decide(browser.query(client)))["code"]
        assert "expired" in (await browser.exchange(client, late)).json()["error_description"]
        monkeypatch.undo()
        monkeypatch.setattr("atlas_agents.gateway.oauth.OAUTH_SECONDS", 0)
        issued = (await browser.exchange(client, (await browser.decide(browser.query(client)))["code"])).json()
        for _ in range(MAX_INVALID_TOKENS + 1):  # a client that does not get 401 would not renew it
            assert not await browser.accepts(issued["access_token"])
        monkeypatch.undo()
        refresh = {"grant_type": "refresh_token", "refresh_token": issued["refresh_token"]}
        renewed = (await browser.token(client, **refresh)).json()
        assert await browser.accepts(renewed["access_token"])


async def test_access_ends_with_the_token_of_the_user_and_never_exceeds_it(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        await browser.sign_in(READER)
        client = await browser.register()
        query = browser.query(client, scope="read write approve admin")
        issued = (await browser.exchange(client, (await browser.decide(query))["code"])).json()
        assert issued["scope"] == "read" and await browser.accepts(issued["access_token"])
        browser.gateway.hub.tokens.remove("reader")
        assert not await browser.accepts(issued["access_token"])
        refresh = {"grant_type": "refresh_token", "refresh_token": issued["refresh_token"]}
        assert (await browser.token(client, **refresh)).json()["error"] == "invalid_grant"
        assert set(browser.gateway.hub.tokens.entries()) == {"ada"}


async def test_narrowed_token_of_the_user_narrows_the_access_at_once(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        tokens, path = browser.gateway.hub.tokens, tmp_path / "tokens.json"
        path.write_text(json.dumps({**TOKENS, "ada": {**TOKENS["ada"], "sessions": "all"}}))
        issued = await browser.connect()
        before = tokens.find_grant(issued["access_token"])
        assert before is not None and (before.principal.sessions, before.prefix) == ("all", "")
        entries = json.loads(path.read_text())
        entries["ada"] |= {"sessions": "own", "role": "guest", "scopes": ["read"]}
        path.write_text(json.dumps(entries))
        now = tokens.find_grant(issued["access_token"])
        assert now is not None and (now.principal.role, now.principal.scopes, now.prefix) == (
            "guest",
            ("read",),
            "@ada/",
        )
        assert not tokens.is_valid(before)


async def test_token_of_a_client_is_accepted_only_by_its_mcp_endpoint(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        token = (await browser.connect())["access_token"]
        bearer = {"Authorization": f"Bearer {token}"}
        assert await browser.accepts(token) and await browser.accepts(token, "/mcp/assistant")
        for path in ("/v1/models", "/mcp-other", "/api/uploads", "/"):
            assert (await browser.http.get(browser.url + path, headers=bearer)).status_code == 401, path
        assert (await browser.post("/api/session", {"token": token})).status_code == 401
        with pytest.raises(Unauthorized):
            async with GatewayClient(browser.url, token):
                pass
        other = (await browser.connect(resource=f"{browser.url}/mcp/assistant"))["access_token"]
        assert await browser.accepts(other, "/mcp/assistant") and not await browser.accepts(other)


async def test_user_sees_the_apps_that_they_allowed_and_can_sign_them_out(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        issued = await browser.connect()
        async with GatewayClient(browser.url, READER) as reader:
            assert await reader.call("devices.list") == {"devices": []}
        async with GatewayClient(browser.url, ADA) as ada:
            [app] = [each for each in (await ada.call("devices.list"))["devices"] if each["name"] == "Connector (app)"]
            async with GatewayClient(browser.url, browser.gateway.hub.tokens.main.reveal()) as owner:
                with pytest.raises(GatewayError, match="unknown device"):
                    await owner.call("devices.revoke", id=app["id"])
            await ada.call("devices.revoke", id=app["id"])
            assert len((await ada.call("devices.list"))["devices"]) == 1
        assert not await browser.accepts(issued["access_token"])
        fields = {"grant_type": "refresh_token", "refresh_token": issued["refresh_token"]}
        assert (await browser.token(issued["client"], **fields)).json()["error"] == "invalid_grant"
        assert f"ada removed token {app['id']}" in await browser.audited()


async def test_renewal_keeps_running_requests_and_revocation_or_suspension_ends_them(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        hub, issued = browser.gateway.hub, await browser.connect()
        grant = hub.tokens.find_grant(issued["access_token"])
        assert grant is not None
        fields = {"grant_type": "refresh_token", "refresh_token": issued["refresh_token"]}
        assert (await browser.token(issued["client"], **fields)).status_code == 200
        assert not await browser.accepts(issued["access_token"]) and hub.is_authorized(grant)
        hub.authenticator.suspended = frozenset({"ada"})
        assert not hub.is_authorized(grant)
        hub.authenticator.suspended = frozenset()
        hub.tokens.remove(grant.name)
        assert not hub.is_authorized(grant)


async def test_failure_to_delete_a_refresh_token_leaves_no_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_browser(tmp_path) as browser:
        issued, store = await browser.connect(), browser.gateway.hub.store
        fields = {"grant_type": "refresh_token", "refresh_token": issued["refresh_token"]}
        renewed = (await browser.token(issued["client"], **fields)).json()
        commit = store.commit

        async def fail_to_drop(tenant: str, writes: Sequence[Write]) -> Any:
            if any(isinstance(each, DropRecord) and each.kind == "oauth" for each in writes):
                raise StoreError("killed")
            return await commit(tenant, writes)

        monkeypatch.setattr(store, "commit", fail_to_drop)
        assert (await browser.token(issued["client"], **fields)).status_code >= 400
        monkeypatch.undo()
        assert not await browser.accepts(renewed["access_token"])
        fields["refresh_token"] = renewed["refresh_token"]
        assert (await browser.token(issued["client"], **fields)).json()["error"] == "invalid_grant"


async def test_owner_gives_access_without_the_scope_admin(tmp_path: Path) -> None:
    async with open_browser(tmp_path) as browser:
        await browser.sign_in(browser.gateway.hub.tokens.main.reveal())
        client = await browser.register()
        query = browser.query(client, scope="read write approve admin")
        issued = (await browser.exchange(client, (await browser.decide(query))["code"])).json()
        assert issued["scope"] == "read write approve"
        grant = browser.gateway.hub.tokens.find_grant(issued["access_token"])
        assert grant is not None and grant.principal.id == "owner" and not grant.allows("admin")


async def test_registrations_and_failed_exchanges_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atlas_agents.gateway.auth.LOCKOUT_SECONDS", 1e6)
    monkeypatch.setattr("atlas_agents.gateway.oauth.MAX_CLIENTS", 3)
    async with open_browser(tmp_path) as browser:
        clients = [await browser.register() for _ in range(MAX_INVALID_TOKENS)]
        rows = await browser.gateway.hub.store.records("default", "oauth")
        assert len(rows) == 3 and f"client:{clients[-1]}" in [row.key for row in rows]
        refused = await browser.http.post(f"{browser.url}/register", json={"redirect_uris": [CALLBACK]})
        assert refused.status_code == 429 and int(refused.headers["Retry-After"]) > 0
        for _ in range(MAX_INVALID_TOKENS):
            assert (await browser.exchange(clients[-1], "guessed")).status_code == 400
        assert (await browser.exchange(clients[-1], "guessed")).status_code == 429
        assert (await browser.exchange(clients[-2], "guessed")).status_code == 400  # others are not locked out
