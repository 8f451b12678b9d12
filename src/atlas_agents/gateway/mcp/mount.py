"""MCP endpoints: `/mcp` for the default agent, `/mcp/{agentId}` for another.

The MCP library is large, so it is imported in a thread when the first client connects.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.gateway.asgi import Receive, Send
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.http_api import AT_ONCE, who_asks
from atlas_agents.gateway.http_errors import HTTPError, of_failure
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.mcp.resources import McpOffers

PATHS = ("/mcp", "/mcp/{agent_id:path}")
_METHODS = ["GET", "POST", "DELETE"]
_SERVER_MODULE = "atlas_agents.gateway.mcp.server"
_LOADS_WITHIN = 60.0


class McpService(Protocol):
    """The MCP server, as this module sees it without importing the library."""

    async def run(self, ready: asyncio.Event) -> None: ...

    async def answer(self, scope: Any, receive: Receive, send: Send) -> None: ...


class McpMount:
    """Authenticates MCP clients, limits concurrent requests and starts the server at the first request."""

    def __init__(self, hub: Hub) -> None:
        self.offers = McpOffers()
        self._hub = hub
        self._serving: McpService | None = None
        self._tasks = BackgroundTasks("MCP server")
        self._waking = asyncio.Lock()
        self._inside: Counter[str] = Counter()

    def routes(self) -> Sequence[BaseRoute]:
        return [Route(path, _Endpoint(self), methods=_METHODS) for path in PATHS]

    async def enter(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = Request(scope, receive)
        try:
            who = self._admitted(request)
            serving = await self._awake()
        except Exception as failure:  # noqa: BLE001 - the border: the client is told, the log has the rest
            trouble = of_failure(failure, self._hub.atlas.hide)
            await Response(trouble.body, trouble.status, trouble.headers, "application/json")(scope, receive, send)
            return
        self._inside[who.principal.id] += 1
        try:
            await serving.answer(scope, receive, send)
        finally:
            self._inside[who.principal.id] -= 1

    async def close(self) -> None:
        """Stop the server; running calls are cancelled."""
        self._serving = None
        await self._tasks.close()

    def _admitted(self, request: Request) -> Grant:
        who = who_asks(request, "read")
        if self._hub.stopping:
            raise HTTPError(
                503, "unavailable", "the gateway is shutting down", retry_after=self._hub.retry_after_ms / 1000
            )
        if self._inside[who.principal.id] >= AT_ONCE:
            raise HTTPError(429, "too_many_requests", f"this token already has {AT_ONCE} requests in progress")
        agent_id = request.path_params.get("agent_id", "")
        if agent_id and self._hub.agent(agent_id) is None:
            raise HTTPError(404, "agent_not_found", f"unknown agent {agent_id[:200]!r}")
        return who

    async def _awake(self) -> McpService:
        async with self._waking:
            if self._serving is None:
                try:
                    served = await asyncio.to_thread(import_module, _SERVER_MODULE)
                except ModuleNotFoundError as error:
                    words = "MCP support is not installed; run: pip install 'atlas-agents[mcp]'"
                    raise HTTPError(501, "not_installed", words) from error
                serving: McpService = served.McpProtocolServer(self._hub, self.offers)
                ready = asyncio.Event()
                self._tasks.spawn(serving.run(ready))
                await asyncio.wait_for(ready.wait(), _LOADS_WITHIN)
                self._serving = serving
            return self._serving


class _Endpoint:
    """ASGI application, because routes pass only a request to plain functions."""

    def __init__(self, door: McpMount) -> None:
        self._door = door

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await self._door.enter(scope, receive, send)
