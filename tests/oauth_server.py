"""An MCP server behind OAuth 2.1, as a double: dynamic client registration, PKCE with S256, and codes valid once.

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
    """The authorization server and the resource server. `denies` if the person refuses access."""

    def __init__(self) -> None:
        self.url = ""
        self.denies = False
        self.clients: dict[str, list[str]] = {}
        self.tokens: set[str] = set()
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
            web.post("/token", self._exchange),
            web.post("/mcp", self._answer),
        ]

    async def _describe_resource(self, _: web.Request) -> web.Response:
        return web.json_response({"resource": f"{self.url}/mcp", "authorization_servers": [self.url]})

    async def _describe_issuer(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "registration_endpoint": f"{self.url}/register",
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
            }
        )

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
        if redirect not in self.clients.get(query.get("client_id", ""), ()):
            return self._refuse("invalid_request", "unknown client or redirect URI")
        wanted = (query.get("response_type"), query.get("code_challenge_method"), query.get("resource"))
        if wanted != ("code", "S256", f"{self.url}/mcp") or not query.get("code_challenge") or not query.get("state"):
            return self._refuse("invalid_request", f"not an OAuth 2.1 request for this resource: {wanted}")
        answer = {"state": query["state"], "iss": self.url}
        if self.denies:
            answer |= {"error": "access_denied", "error_description": "Access was denied."}
        else:
            answer["code"] = secrets.token_hex(8)
            self._codes[answer["code"]] = dict(query)
        raise web.HTTPFound(f"{redirect}?{urlencode(answer)}")

    async def _exchange(self, request: web.Request) -> web.Response:
        form = await request.post()
        asked = self._codes.pop(str(form.get("code", "")), None)
        if form.get("grant_type") != "authorization_code" or asked is None:
            return self._refuse("invalid_grant", "unknown or used code")
        digest = hashlib.sha256(str(form.get("code_verifier", "")).encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
            return self._refuse("invalid_grant", "wrong code verifier")
        if any(form.get(name) != asked[name] for name in ("client_id", "redirect_uri", "resource")):
            return self._refuse("invalid_grant", "another client, redirect URI or resource")
        token = secrets.token_hex(16)
        self.tokens.add(token)
        return web.json_response({"access_token": token, "token_type": "Bearer", "expires_in": 3600})

    async def _answer(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            where = f"{self.url}/.well-known/oauth-protected-resource"
            return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer resource_metadata="{where}"'})
        message: dict[str, Any] = await request.json()
        if "id" not in message:
            return web.Response(status=202)
        self.calls.append(message["method"])
        params = message.get("params", {})
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
