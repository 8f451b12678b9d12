"""The gateway as a program: from settings to the last word."""

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

import msgspec

from atlas_agents.config.settings import Settings
from atlas_agents.core.environment import Environment
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.secret import Secret
from atlas_agents.gateway.mcp.documents import Documents
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.service.foreign import servers_shape
from atlas_agents.service.place import Running, announce
from atlas_agents.service.runtime import Runtime, Told, opened
from atlas_agents.service.telegram import telegram
from atlas_agents.workspace.prompts import read_prompts


class Serving:
    """A gateway that listens: where, and with what behind it."""

    def __init__(self, runtime: Runtime, gateway: Gateway) -> None:
        self.runtime = runtime
        self.gateway = gateway

    @property
    def url(self) -> str:
        """Where it is reached from this machine."""
        return self.gateway.url

    def announce(self) -> None:
        """Say to other commands of this user where it is."""
        home = self.runtime.settings.home
        announce(home, Running(os.getpid(), self.url, version("atlas-agents")))

    @property
    def token(self) -> Secret:
        """The token that may do everything here."""
        return self.gateway.hub.tokens.main


@asynccontextmanager
async def private_gateway(
    settings: Settings, *, environment: Environment | None = None, told: Told | None = None, idle: bool = False
) -> AsyncGenerator[Serving, None]:
    """A gateway as long as the block lasts, on any free port of this machine: for a command that needs its own.

    An `idle` one is for a command that only looks something up: it fetches no model, goes on with no turn that was cut
    short, and says nobody where it is.
    """
    own = msgspec.structs.replace(settings, host="127.0.0.1", port=0, role="alone")
    async with _gateway(own, environment, told, idle=idle) as here, here.gateway.running(recover=not idle):
        if not idle:
            here.announce()
        yield here


async def serve(
    settings: Settings,
    *,
    environment: Environment | None = None,
    told: Told | None = None,
    on_ready: Callable[[Serving], object] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT: then no more connections, turns end or are left for the next start."""
    async with (
        _gateway(settings, environment, told) as here,
        telegram(settings, here.gateway.hub.tokens) as begin_telegram,
    ):

        def ready(_: Gateway) -> None:
            here.announce()
            begin_telegram(here.url)
            if on_ready is not None:
                on_ready(here)

        await here.gateway.serve(ready)


async def work(
    settings: Settings,
    *,
    environment: Environment | None = None,
    told: Told | None = None,
    on_ready: Callable[[Runtime, str], object] | None = None,
) -> None:
    """Run turns that gateways have taken in, until SIGTERM or SIGINT: then they end or are left to others.

    `on_ready` is told where its health and its metrics are.
    """
    async with opened(settings, environment=environment, told=told) as runtime:
        if runtime.company is None:
            raise ConfigError("role: a worker works with others")

        def ready(door: str) -> None:
            if on_ready is not None:
                on_ready(runtime, door)

        await runtime.company.work(runtime.atlas, _of_gateway(settings), ready)


@asynccontextmanager
async def _gateway(
    settings: Settings, environment: Environment | None, told: Told | None, *, idle: bool = False
) -> AsyncGenerator[Serving, None]:
    async with opened(settings, environment=environment, told=told, fetch=not idle, works=not idle) as runtime:
        membership = runtime.company.membership if runtime.company is not None else None
        gateway = Gateway(runtime.atlas, _of_gateway(settings), membership=membership)
        gateway.hub.more_settings |= {each.key: each.value for each in settings.explain()}
        gateway.hub.study = runtime.study
        gateway.hub.foreign = lambda: servers_shape(runtime.servers)
        gateway.mcp.offers.library = Documents(gateway.hub, runtime.study)
        gateway.mcp.offers.prompts = lambda: read_prompts(settings.workspace)
        gateway.hub.runs.notice = lambda agent_id: runtime.crew.notices.get(agent_id, "")
        yield Serving(runtime, gateway)


def _of_gateway(settings: Settings) -> GatewaySettings:
    if settings.allowed_origins and "*" in settings.allowed_origins:
        raise ConfigError("allowed_origins: * would let every page in; name the origins")
    return GatewaySettings(
        home=settings.home,
        host=settings.host,
        port=0 if settings.role == "worker" and "port" not in settings.origins else settings.port,
        token=settings.token,
        hosts=settings.allowed_hosts,
        origins=settings.allowed_origins,
        grace=settings.drain_seconds,
    )
