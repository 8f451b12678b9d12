"""The gateway as a whole: an Atlas behind a port, from the start to the last word."""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

from starlette.routing import BaseRoute

from atlas_agents.core.store import RunRow
from atlas_agents.engine.atlas import Atlas
from atlas_agents.gateway.agui.routes import agui_routes
from atlas_agents.gateway.app import App
from atlas_agents.gateway.families import all_methods
from atlas_agents.gateway.http import site
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.job_methods import follow_jobs
from atlas_agents.gateway.leaving import close_within, told_to_stop
from atlas_agents.gateway.listen import Server, listeners, server_of
from atlas_agents.gateway.mcp.door import Door
from atlas_agents.gateway.models import model_of
from atlas_agents.gateway.news import SessionNews
from atlas_agents.gateway.openai.routes import openai_routes
from atlas_agents.gateway.protocol.events import ServerShutdown
from atlas_agents.gateway.protocol.faults import RESTART
from atlas_agents.gateway.ready import Readiness
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.tenant_methods import look_who_may_not

logger = logging.getLogger(__name__)
_LAST_WORDS = 1.0


def run(work: Coroutine[Any, Any, Any]) -> None:
    """Run it on uvloop: a gateway's loop where there is one."""
    if sys.platform == "win32":
        asyncio.run(work)
    else:
        import uvloop

        uvloop.run(work)


class Membership(Protocol):
    """A place in a cluster, where turns are not run by whoever takes them in."""

    def held(self, hub: Hub, door: str) -> AbstractAsyncContextManager[None]: ...


class Gateway:
    """`await Gateway(atlas, settings).serve()` until it is told to stop, or `async with gateway.running():`."""

    def __init__(
        self,
        atlas: Atlas,
        settings: GatewaySettings,
        *,
        routes: Sequence[BaseRoute] = (),
        membership: Membership | None = None,
    ) -> None:
        self.atlas = atlas
        self.settings = settings
        self.hub = hub = Hub(atlas, settings, all_methods())
        hub.news = SessionNews(hub)
        hub.runs.on_change = hub.news.changed
        hub.runs.on_call = hub.audit.look
        hub.runs.on_question = hub.news.asked
        follow_jobs(hub)
        self.readiness = Readiness(self._look)
        self.mcp = Door(hub)
        families = [*openai_routes(hub), *agui_routes(hub), *self.mcp.routes()]
        self._app = App(hub.porch, hub.metrics, site(hub, self.readiness, [*routes, *families]), hub)
        self._membership = membership
        self._stop = asyncio.Event()
        self._addresses: list[tuple[str, int]] = []

    @property
    def port(self) -> int:
        """The port it listens on; also when it was left to the system to choose one."""
        return self._addresses[0][1]

    @property
    def url(self) -> str:
        """Where it is reached from this machine."""
        return self.settings.url(self.port)

    def stop(self) -> None:
        """Have `serve` end: no more connections, turns finished or left for the next start, then the sockets. Said once
        more, no turn is waited for."""
        (self.hub.hurry if self._stop.is_set() else self._stop).set()

    async def serve(self, ready: Callable[["Gateway"], object] | None = None) -> None:
        """Serve until `stop`, SIGTERM or SIGINT; `ready` is called once turns are taken."""
        with told_to_stop(self.stop):
            async with self.running():
                if ready is not None:
                    ready(self)
                await self._stop.wait()

    @asynccontextmanager
    async def running(self, *, recover: bool = True) -> AsyncGenerator["Gateway", None]:
        """Serve as long as the block lasts; inside it, the gateway is ready. Turns that a sudden end cut short go on,
        unless they are not to `recover`."""
        sockets = listeners(self.settings)
        self._addresses = [each.getsockname()[:2] for each in sockets]
        server = server_of(self._app, self.settings)
        serving = asyncio.create_task(server.serve(sockets))
        beside = [asyncio.create_task(work) for work in (self.hub.watch_tokens(), self.hub.runs.writer.run())]
        member = AsyncExitStack()
        try:
            await look_who_may_not(self.hub)
            if self._membership is not None:
                await member.enter_async_context(self._membership.held(self.hub, self.url))
            elif recover:
                await self._recover()
                self.atlas.jobs.start()
            self.readiness.started = True
            logger.info(
                "listening", extra={"fields": {"at": [f"{host} port {port}" for host, port in self._addresses]}}
            )
            yield self
        finally:
            await self._end(server, member)
            for task in beside:
                task.cancel()
            server.should_exit = True
            await serving

    async def _recover(self) -> None:
        """Go on with what a sudden end cut short."""
        hub, atlas = self.hub, self.atlas
        rows = {row.id: row for row in await hub.store.open_runs() if row.tenant == atlas.tenant}
        told = {row.id: await self._said(row) for row in rows.values() if row.epoch}
        for stream in await atlas.recover():
            row = rows[stream.stream_id]
            agent = hub.agent(row.agent_id)
            log = hub.runs.follow(stream, model_of(agent, atlas.registry) if agent else "", row)
            log.messages |= told.get(row.id, set())

    async def _said(self, row: RunRow) -> set[str]:
        """The messages of a run that joined its session in an earlier life."""
        rows = await self.hub.store.messages(self.atlas.tenant, row.session)
        return {each.id for each in rows if each.run_id == row.id}

    async def _end(self, server: Server, member: AsyncExitStack) -> None:
        """No new turns; those under way end, or are left for the next start; then everybody is told, and let go."""
        hub, expected = self.hub, self.settings.restart_expected
        hub.stopping = hub.runs.stopping = self.readiness.stopping = True
        for listener in server.servers if server.started else ():
            listener.close()
        hub.tell(ServerShutdown(None if expected is None else int(expected * 1000)))
        await member.aclose()
        await close_within(self.atlas, self.settings.grace, hub.hurry)
        await hub.runs.settle(_LAST_WORDS)
        await self.mcp.close()
        for peer in list(hub.connections):
            peer.close(RESTART, "the gateway stops")

    async def _look(self) -> None:
        """Raises if the store cannot be read."""
        await self.hub.store.session(self.atlas.tenant, "")
