"""Gateway server: serves an Atlas on a port, from startup and recovery to graceful shutdown."""

import asyncio
import ctypes
import gc
import logging
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.routing import BaseRoute

from atlas_agents.agents.atlas import Atlas
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.messages import new_id
from atlas_agents.core.store import DropRecord, PutRecord, RunRow
from atlas_agents.gateway.agui import agui_routes
from atlas_agents.gateway.asgi import App, Readiness, build_http_app
from atlas_agents.gateway.convert import agent_model
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.http_api import session_routes, upload_routes
from atlas_agents.gateway.hub import GatewayServices, Hub
from atlas_agents.gateway.mcp.mount import McpMount
from atlas_agents.gateway.methods import admin, agents, chat, connections, jobs, knowledge, sessions
from atlas_agents.gateway.oauth import oauth_routes
from atlas_agents.gateway.openai import openai_routes
from atlas_agents.gateway.protocol.events import ServerShutdown
from atlas_agents.gateway.protocol.frames import RESTART
from atlas_agents.gateway.runs import read_stored_run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.websocket import HttpProtocol, WebSocketTransport

if TYPE_CHECKING:
    from atlas_agents.gateway.cluster import ClusterMembership

logger = logging.getLogger(__name__)
_BACKLOG = 2048
_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_FLUSH_TIMEOUT = 1.0
_CLOSE_TIMEOUT = 2.0
"""Seconds after the time for turns within which they must be stored and closed."""
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
"""Parameters of glibc's mallopt."""
_PROBE_SIZE = 16 * 1024
_COLLECT_AFTER = (10_000, 5, 5)
"""New objects until the first generation is collected, and collections until the next one is. A turn leaves about a
hundred objects that only the last generation finds."""


def bind_sockets(settings: GatewaySettings) -> list[socket.socket]:
    """Return bound sockets; raise ConfigError if the address is in use or not local."""
    if settings.exposed:
        return [_bind(settings.host, settings.port)]
    first = _bind("127.0.0.1", settings.port)
    try:
        return [first, _bind("::1", first.getsockname()[1])]
    except ConfigError as error:
        if not _has_v6():
            logger.info("IPv6 loopback is unavailable; listening on 127.0.0.1 only")
            return [first]
        first.close()
        raise error


class GatewayServer(uvicorn.Server):
    """uvicorn server that leaves signals to the process, so that turns end before sockets close."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


def build_server(app: Any, settings: GatewaySettings) -> GatewayServer:
    """Build a server; run `await server.serve(sockets)` and set `server.should_exit` to stop it."""
    return GatewayServer(
        uvicorn.Config(
            app,
            http=HttpProtocol,
            ws=WebSocketTransport,
            ws_max_size=settings.first_frame,
            ws_ping_interval=settings.ping,
            ws_ping_timeout=settings.ping,
            ws_per_message_deflate=False,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=2,
        )
    )


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sets TCP_NODELAY; otherwise a second small frame waits 40 ms for the first.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise ConfigError(f"cannot listen on {host} port {port}: {reason}; choose another port") from error
    listener.setblocking(False)
    return listener


def _has_v6() -> bool:
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@contextmanager
def stop_signals(stop: Callable[[], None]) -> Generator[None, None, None]:
    """Call `stop` on every SIGTERM and SIGINT while the block runs."""
    loop = asyncio.get_running_loop()
    for each in _SIGNALS:
        loop.add_signal_handler(each, stop)
    try:
        yield
    finally:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)


async def close_atlas(atlas: Atlas, grace: float, force_stop: asyncio.Event) -> None:
    """Close the Atlas. Turns have `grace` seconds to finish, or until `force_stop` is set; the rest resume later."""
    closing, hurried = asyncio.create_task(atlas.close(grace)), asyncio.create_task(force_stop.wait())
    try:
        await asyncio.wait((closing, hurried), return_when=asyncio.FIRST_COMPLETED)
        if not closing.done():
            await atlas.close()
        await closing
    finally:
        hurried.cancel()
        closing.cancel()


def all_methods() -> Methods:
    """Return the handlers of all methods."""
    methods = Methods()
    for module in (admin, agents, chat, connections, jobs, knowledge, sessions):
        module.add_methods(methods)
    return methods


def _configure_allocator() -> None:
    """Have glibc return large blocks to the system as soon as they are freed, and reserve less address space."""
    mallopt: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 256 * 1024)
        mallopt(_M_ARENA_MAX, 2)


def run(work: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine on uvloop if it is installed, else on asyncio."""
    _configure_allocator()
    if sys.platform == "win32":
        asyncio.run(work)
    else:
        import uvloop

        uvloop.run(work)


def configure_collector() -> None:
    """Collect garbage less often, and never the objects of the start: every collection stops all turns.

    A collection of the 200,000 objects of a start alone takes 20 to 60 ms.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


class Gateway:
    """Gateway server: `await Gateway(atlas, settings).serve()`, or `async with gateway.running():`.

    Args:
        atlas: The agents that it serves.
        settings: Address, tokens and limits.
        routes: Further HTTP routes (Starlette).
        membership: Membership in a cluster; None for a single process.
        services: Optional services that the methods of the protocol use, such as knowledge and the workspace.
    """

    def __init__(
        self,
        atlas: Atlas,
        settings: GatewaySettings,
        *,
        routes: Sequence[BaseRoute] = (),
        membership: "ClusterMembership | None" = None,
        services: GatewayServices | None = None,
    ) -> None:
        self.atlas = atlas
        self.settings = settings
        self.hub = hub = Hub(atlas, settings, all_methods(), services or GatewayServices())
        jobs.follow_jobs(hub)
        self.readiness = Readiness(self._check_store)
        self.mcp = McpMount(hub)
        page_routes = [*session_routes(hub), *upload_routes(hub.uploads, atlas.hide)]
        api_routes = [*page_routes, *openai_routes(hub), *agui_routes(hub), *self.mcp.routes(), *oauth_routes(hub)]
        http = build_http_app(hub, self.readiness, [*routes, *api_routes])
        self._app = App(hub.authenticator, hub.metrics, http, hub, self.readiness.started)
        self._probe = new_id()
        self._membership = membership
        self._stop = asyncio.Event()
        self._addresses: list[tuple[str, int]] = []

    @property
    def port(self) -> int:
        """The port it listens on, also if the operating system chose it."""
        return self._addresses[0][1]

    @property
    def url(self) -> str:
        """URL for clients on this machine."""
        return self.settings.url(self.port)

    def stop(self) -> None:
        """Shut down: refuse connections, finish turns or leave them for the next start, then close the sockets.

        A second call stops waiting for turns.
        """
        (self.hub.force_stop if self._stop.is_set() else self._stop).set()

    async def serve(
        self,
        on_ready: Callable[["Gateway"], object] | None = None,
        on_stop: Callable[[], object] | None = None,
    ) -> None:
        """Serve until `stop`, SIGTERM or SIGINT. `on_ready` is called once turns are accepted, `on_stop` at the end."""
        with stop_signals(self.stop):
            async with self.running():
                configure_collector()
                if on_ready is not None:
                    on_ready(self)
                await self._stop.wait()
                if on_stop is not None:
                    on_stop()

    @asynccontextmanager
    async def running(self, *, recover: bool = True) -> AsyncGenerator["Gateway", None]:
        """Serve while the block runs. Interrupted turns are resumed first unless `recover` is False."""
        sockets = bind_sockets(self.settings)
        self._addresses = [each.getsockname()[:2] for each in sockets]
        server = build_server(self._app, self.settings)
        serving = asyncio.create_task(server.serve(sockets))
        services = BackgroundTasks("gateway")
        hub = self.hub
        for work in (
            hub.watch_tokens(),
            hub.memory.run(),
            hub.runs.writer.run(),
            hub.runs.watch_owners(),
            hub.monitor.run(),
        ):
            services.spawn(work)
        member = AsyncExitStack()
        member.enter_context(hub.log.attached())
        try:
            await admin.apply_suspensions(self.hub)
            await hub.edits.record_interrupted(hub.audit.has_edit, all_homes=self._membership is None)
            if self._membership is not None:
                await member.enter_async_context(self._membership.join(self.hub, self.url))
            elif recover:
                self.atlas.on_resume(self._follow_resumed)
                await self.atlas.recover()
                self.atlas.jobs.start()
            self.readiness.started.set()
            logger.info(
                "listening", extra={"fields": {"at": [f"{host} port {port}" for host, port in self._addresses]}}
            )
            yield self
        finally:
            await self._shut_down(server, member)
            await services.close()
            server.should_exit = True
            await serving

    async def _follow_resumed(self, row: RunRow) -> Callable[[AtlasStream], object]:
        """Read the stored state of a run that is about to be resumed, and return a function that follows it."""
        hub, agent = self.hub, self.hub.agent(row.agent_id)
        model = agent_model(agent, self.atlas.registry) if agent else ""
        current = await hub.store.run(row.tenant, row.id) or row  # more event numbers may be reserved by now
        stored = await read_stored_run(hub.store, row.tenant, current)
        return lambda stream: hub.runs.follow(stream, model, stored)

    async def _shut_down(self, server: GatewayServer, member: AsyncExitStack) -> None:
        """Shut down: accept no turns, finish or release the running ones, then notify and close all connections."""
        hub, expected = self.hub, self.settings.restart_expected
        hub.stopping = hub.runs.stopping = self.readiness.stopping = True
        for listener in server.servers if server.started else ():
            listener.close()
        hub.broadcast(ServerShutdown(None if expected is None else int(expected * 1000)))
        try:
            async with asyncio.timeout(self.settings.grace + _CLOSE_TIMEOUT):
                await member.aclose()
                await close_atlas(self.atlas, self.settings.grace, hub.force_stop)
                await hub.runs.flush(_FLUSH_TIMEOUT)
                await self.mcp.close()
        except TimeoutError:
            logger.error("shutdown takes too long, closing connections: open turns resume at the next start")
        for peer in list(hub.connections):
            peer.close(RESTART, "the gateway is shutting down")

    async def _check_store(self) -> None:
        """Check that the store accepts writes; raise if it does not. A full store can often still be read.

        The record is removed again, so each check needs new space.
        """
        store, tenant = self.hub.store, self.atlas.tenant
        await store.commit(tenant, [PutRecord("probe", self._probe, bytes(_PROBE_SIZE))])
        await store.commit(tenant, [DropRecord("probe", self._probe)])
