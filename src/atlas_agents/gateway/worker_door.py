"""The door of a worker: how it is, and nothing else. It is as well guarded as a gateway's."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.applications import Starlette

from atlas_agents.gateway.app import App
from atlas_agents.gateway.listen import listeners, server_of
from atlas_agents.gateway.metrics import Metrics
from atlas_agents.gateway.porch import Porch
from atlas_agents.gateway.ready import Readiness
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.vitals import vital_routes


class WorkerDoor:
    """Where the settings say; they are those of a gateway's door."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self.url = ""
        """Where it is, once it is open."""

    @asynccontextmanager
    async def opened(self, readiness: Readiness, metrics: Metrics) -> AsyncGenerator[str, None]:
        """Open as long as the block lasts; its address."""
        settings, begun = self._settings, time.monotonic()
        porch = Porch(settings)
        routes = vital_routes(readiness, metrics, lambda: round(time.monotonic() - begun, 3), exposed=settings.exposed)
        sockets = listeners(settings)
        self.url = settings.url(sockets[0].getsockname()[1])
        server = server_of(App(porch, metrics, Starlette(routes=routes)), settings)
        serving = asyncio.create_task(server.serve(sockets))
        try:
            yield self.url
        finally:
            server.should_exit = True
            await serving
