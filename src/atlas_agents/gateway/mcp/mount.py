"""The way in for MCP clients: `/mcp` for the agent that answers by default, `/mcp/{agentId}` for another.

The protocol's own library is large, so it is loaded when the first client comes, and not on the loop's time.
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
    """What speaks the protocol; all that this file knows of the library."""

    async def run(self, ready: asyncio.Event) -> None: ...

    async def answer(self, scope: Any, receive: Receive, send: Send) -> None: ...


class McpMount:
    """Lets in who shows a token, a limited number at once, and wakes the server when the first one knocks."""

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
        """Serve one request of a client."""
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
        """No more; calls under way are told so."""
        self._serving = None
        await self._tasks.close()

    def _admitted(self, request: Request) -> Grant:
        who = who_asks(request, "read")
        if self._hub.stopping:
            raise HTTPError(503, "unavailable", "the gateway stops", retry_after=self._hub.retry_after_ms / 1000)
        if self._inside[who.principal.id] >= AT_ONCE:
            raise HTTPError(429, "too_many_requests", f"{AT_ONCE} requests of this token are under way already")
        agent_id = request.path_params.get("agent_id", "")
        if agent_id and self._hub.agent(agent_id) is None:
            raise HTTPError(404, "agent_not_found", "there is no such agent here")
        return who

    async def _awake(self) -> McpService:
        async with self._waking:
            if self._serving is None:
                try:
                    served = await asyncio.to_thread(import_module, _SERVER_MODULE)
                except ModuleNotFoundError as error:
                    words = "MCP needs an extra: pip install 'atlas-agents[mcp]'"
                    raise HTTPError(501, "not_installed", words) from error
                serving: McpService = served.McpProtocolServer(self._hub, self.offers)
                ready = asyncio.Event()
                self._tasks.spawn(serving.run(ready))
                await asyncio.wait_for(ready.wait(), _LOADS_WITHIN)
                self._serving = serving
            return self._serving


class _Endpoint:
    """An ASGI application: a route hands plain functions a request, and others everything."""

    def __init__(self, door: McpMount) -> None:
        self._door = door

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await self._door.enter(scope, receive, send)
