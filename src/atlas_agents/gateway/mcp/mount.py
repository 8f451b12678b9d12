"""MCP endpoints: `/mcp` for the default agent, `/mcp/{agentId}` for another.

The MCP library is large, so it is imported in a thread when the first client connects.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from atlas_agents.core import install_command
from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.gateway.asgi import ApiRoute, JsonResponse, Operation, Receive, Send
from atlas_agents.gateway.auth import MCP_PATH, MCP_SCOPES, METADATA_PATH, Grant, bearer_challenge, external_url
from atlas_agents.gateway.http_api import MAX_CONCURRENT, authorize
from atlas_agents.gateway.http_errors import HTTPError, to_http_error
from atlas_agents.gateway.hub import Hub

if TYPE_CHECKING:
    from atlas_agents.gateway.mcp.server import McpProtocolServer

PATHS = (MCP_PATH, MCP_PATH + "/{agent_id:path}")
_METHODS = ["GET", "POST", "DELETE"]
_SERVER_MODULE = "atlas_agents.gateway.mcp.server"
_START_TIMEOUT = 60.0


class McpMount:
    """Authenticates MCP clients, limits concurrent requests and starts the server at the first request."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._server: McpProtocolServer | None = None
        self._tasks = BackgroundTasks("MCP server")
        self._start_lock = asyncio.Lock()
        self._in_progress: Counter[str] = Counter()

    def routes(self) -> Sequence[BaseRoute]:
        described = Operation("Describe the OAuth protected resource.", "MCP", result="application/json")
        metadata = [ApiRoute(METADATA_PATH + path, _describe_resource, described) for path in ("", *PATHS)]
        served = Operation(
            "Send a message of the Model Context Protocol (Streamable HTTP), or follow its stream.",
            "MCP",
            ("read",),
            result="application/json",
            streams=True,
        )
        return [*(ApiRoute(path, _Endpoint(self), served, _METHODS) for path in PATHS), *metadata]

    async def handle(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        try:
            grant = self._authorize(request)
            server = await self._start_server()
        except Exception as failure:  # noqa: BLE001 - every exception becomes an error response
            error = to_http_error(failure, self._hub.atlas.hide)
            headers = error.headers
            if error.status in (401, 403):
                code = error.code if error.status == 403 else ""
                headers = {**headers, "WWW-Authenticate": bearer_challenge(scope, error=code)}
            await Response(error.body, error.status, headers, "application/json")(scope, receive, send)
            return
        self._in_progress[grant.principal.id] += 1
        try:
            await server.answer(scope, receive, send)
        finally:
            self._in_progress[grant.principal.id] -= 1

    async def close(self) -> None:
        """Stop the server; running calls are cancelled."""
        self._server = None
        await self._tasks.close()

    def _authorize(self, request: Request) -> Grant:
        grant = authorize(request, "read")
        self._hub.check_accepting()
        if self._in_progress[grant.principal.id] >= MAX_CONCURRENT:
            raise HTTPError(429, "too_many_requests", f"this token already has {MAX_CONCURRENT} requests in progress")
        agent_id = request.path_params.get("agent_id", "")
        if agent_id and self._hub.agent(agent_id) is None:
            raise HTTPError(404, "agent_not_found", f"unknown agent {agent_id[:200]!r}")
        return grant

    async def _start_server(self) -> "McpProtocolServer":
        async with self._start_lock:
            if self._server is None:
                try:
                    module = await asyncio.to_thread(import_module, _SERVER_MODULE)
                except ModuleNotFoundError as error:
                    message = f"MCP support is not installed; run: {install_command('mcp')}"
                    raise HTTPError(501, "not_installed", message) from error
                server: McpProtocolServer = module.McpProtocolServer(self._hub)
                ready = asyncio.Event()
                self._tasks.spawn(server.run(ready))
                await asyncio.wait_for(ready.wait(), _START_TIMEOUT)
                self._server = server
            return self._server


async def _describe_resource(request: Request) -> Response:
    """Return the OAuth metadata of an MCP endpoint. The gateway is its own authorization server."""
    resource = request.url.path.removeprefix(METADATA_PATH) or MCP_PATH
    return JsonResponse(
        {
            "resource": external_url(request.scope, resource),
            "resource_name": "Atlas Agents",
            "authorization_servers": [external_url(request.scope, "")],
            "scopes_supported": MCP_SCOPES,  # clients ask for all of them, so `approve` must be asked for by name
            "bearer_methods_supported": ["header"],
        },
        headers={"Cache-Control": "no-store"},
    )


class _Endpoint:
    """ASGI application, because routes pass only a request to plain functions."""

    def __init__(self, mount: McpMount) -> None:
        self._mount = mount

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await self._mount.handle(scope, receive, send)
