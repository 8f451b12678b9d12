"""An MCP server behind OAuth 2.1, as a double: dynamic client registration, PKCE with S256, codes valid once, and
scopes that some requests need.

It enforces what the specification requires of clients and refuses everything else with an OAuth error.
"""

import base64
import hashlib
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

from aiohttp import web

TOOL = {"name": "list_issues", "description": "List issues.", "inputSchema": {"type": "object"}}


class OAuthServer:
    """The authorization server and the resource server. `denies` if the person refuses access.

    `scopes` maps a method, a tool or `login` to the scope that it needs. `secrets` are those of clients registered
    beforehand, which authenticate by `token_auth`.
    """

    def __init__(self) -> None:
        self.url = ""
        self.denies = False
        self.clients: dict[str, list[str]] = {}
        self.tokens: dict[str, str] = {}
        self.scopes: dict[str, str] = {}
        self.ignores_scopes = False
        self.secrets: dict[str, str] = {}
        self.token_auth = "none"
        self.registers = True
        self.asked: list[str] = []
        self.grants: list[str] = []
        self.refused: list[str] = []
        self.calls: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}

    def routes(self) -> list[web.RouteDef]:
        protected = "/.well-known/oauth-protected-resource"
        return [
            web.get(protected, self._describe_resource),
            web.get(f"{protected}/mcp", self._describe_resource),
            web.get("/.well-known/oauth-authorization-server", self._describe_issuer),
            web.post("/register", self._register),
            web.get("/authorize", self._authorize),
            web.post("/oauth/token", self._exchange),
            web.post("/mcp", self._answer),
        ]

    async def _describe_resource(self, _: web.Request) -> web.Response:
        return web.json_response({"resource": f"{self.url}/mcp", "authorization_servers": [self.url]})

    async def _describe_issuer(self, _: web.Request) -> web.Response:
        described: dict[str, Any] = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/oauth/token",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token"],
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": [self.token_auth],
        }
        if self.registers:
            described["registration_endpoint"] = f"{self.url}/register"
        return web.json_response(described)

    def _refuse(self, error: str, why: str) -> web.Response:
        self.refused.append(why)
        return web.json_response({"error": error, "error_description": why}, status=400)

    async def _register(self, request: web.Request) -> web.Response:
        wanted: dict[str, Any] = await request.json()
        redirects: list[str] = wanted.get("redirect_uris", [])
        if not redirects or any(urlsplit(each).hostname != "127.0.0.1" for each in redirects):
            return self._refuse("invalid_redirect_uri", "expected redirect URIs on this machine")
        id = secrets.token_hex(8)
        self.clients[id] = redirects
        return web.json_response({**wanted, "client_id": id, "token_endpoint_auth_method": "none"}, status=201)

    async def _authorize(self, request: web.Request) -> web.Response:
        query = request.query
        redirect = query.get("redirect_uri", "")
        known = self.clients.get(query.get("client_id", ""), [])
        if redirect not in known and f"http://127.0.0.1:*{urlsplit(redirect).path}" not in known:
            return self._refuse("invalid_request", "unknown client or redirect URI")
        wanted = (query.get("response_type"), query.get("code_challenge_method"), query.get("resource"))
        if wanted != ("code", "S256", f"{self.url}/mcp") or not query.get("code_challenge") or not query.get("state"):
            return self._refuse("invalid_request", f"not an OAuth 2.1 request for this resource: {wanted}")
        self.asked.append(query.get("scope", ""))
        answer = {"state": query["state"], "iss": self.url}
        if self.denies:
            answer |= {"error": "access_denied", "error_description": "Access was denied."}
        else:
            answer["code"] = secrets.token_hex(8)
            self._codes[answer["code"]] = dict(query)
        raise web.HTTPFound(f"{redirect}?{urlencode(answer)}")

    def _is_authenticated(self, request: web.Request, form: Any) -> bool:
        """Return whether a client with a secret sent it as the metadata says, and others sent none."""
        id = str(form.get("client_id", ""))
        sent = (form.get("client_secret"), request.headers.get("Authorization"))
        basic = f"Basic {base64.b64encode(f'{id}:{self.secrets.get(id)}'.encode()).decode()}"
        wanted = {"client_secret_basic": (None, basic), "client_secret_post": (self.secrets.get(id), None)}
        return sent == (wanted[self.token_auth] if id in self.secrets else (None, None))

    async def _exchange(self, request: web.Request) -> web.Response:
        form = await request.post()
        if not self._is_authenticated(request, form):
            return self._refuse("invalid_client", "wrong client authentication")
        self.grants.append(str(form.get("grant_type")))
        if form.get("grant_type") == "refresh_token" and form.get("refresh_token") in self.tokens:
            return self._issue(self.tokens[str(form["refresh_token"])])
        asked = self._codes.pop(str(form.get("code", "")), None)
        if form.get("grant_type") != "authorization_code" or asked is None:
            return self._refuse("invalid_grant", "unknown or used code")
        digest = hashlib.sha256(str(form.get("code_verifier", "")).encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
            return self._refuse("invalid_grant", "wrong code verifier")
        if any(form.get(name) != asked[name] for name in ("client_id", "redirect_uri", "resource")):
            return self._refuse("invalid_grant", "another client, redirect URI or resource")
        return self._issue("" if self.ignores_scopes else asked.get("scope", ""))

    def _issue(self, scope: str) -> web.Response:
        token, refresh = secrets.token_hex(16), secrets.token_hex(16)
        self.tokens |= {token: scope, refresh: scope}
        issued = {"access_token": token, "refresh_token": refresh, "token_type": "Bearer", "expires_in": 3600}
        return web.json_response(issued)

    def _challenge(self, status: int, **fields: str) -> web.Response:
        fields["resource_metadata"] = f"{self.url}/.well-known/oauth-protected-resource"
        text = ", ".join(f'{name}="{value}"' for name, value in fields.items())
        return web.Response(status=status, headers={"WWW-Authenticate": f"Bearer {text}"})

    async def _answer(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            scope = self.scopes.get("login")
            return self._challenge(401, **({"scope": scope} if scope else {}))
        message: dict[str, Any] = await request.json()
        if "id" not in message:
            return web.Response(status=202)
        params = message.get("params", {})
        needed = {self.scopes.get(message["method"]), self.scopes.get(params.get("name", ""))} - {None}
        if not needed <= set(self.tokens[token].split()):
            return self._challenge(403, error="insufficient_scope", scope=" ".join(map(str, needed)))
        self.calls.append(message["method"])
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": params.get("protocolVersion", ""),
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "tracker", "version": "1"},
            },
            "ping": {},
            "tools/list": {"tools": [TOOL]},
            "tools/call": {"content": [{"type": "text", "text": "No issues."}]},
        }
        found = results.get(message["method"])
        body = {"result": found} if found is not None else {"error": {"code": -32601, "message": "unknown method"}}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], **body})


@asynccontextmanager
async def oauth_server() -> AsyncGenerator[OAuthServer]:
    """Serve the double on a free port."""
    server = OAuthServer()
    app = web.Application()
    app.add_routes(server.routes())
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
