"""The gateway as a program: from settings to the last word."""

import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version

import msgspec

from atlas_agents.app.agents import servers_shape
from atlas_agents.app.app import Runtime, Told, opened
from atlas_agents.app.home_lock import RunningGateway, publish_address
from atlas_agents.builtin_tools.telegram_api import BotApi
from atlas_agents.channels.telegram.channel import TelegramChannel
from atlas_agents.channels.telegram.state import Pairing, StateFile
from atlas_agents.client.client import GatewayAddress
from atlas_agents.config.open import is_postgres
from atlas_agents.config.settings import Settings
from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Environment, Secret
from atlas_agents.dispatch.members import ClusterStatus
from atlas_agents.gateway.auth import TokenFile
from atlas_agents.gateway.mcp.resources import Documents
from atlas_agents.gateway.protocol.types import Scope
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.workspace.skills import read_prompts

logger = logging.getLogger(__name__)
_SCOPES: tuple[Scope, ...] = ("read", "write", "approve")


def is_on(settings: Settings) -> bool:
    """The channel runs where there is a bot, and somebody is let in or it was asked for."""
    if settings.telegram_token is None or settings.telegram_channel is False:
        if settings.telegram_channel:
            raise ConfigError("telegram_channel: there is no bot to talk through: set ATLAS_TELEGRAM_TOKEN")
        return False
    return bool(settings.telegram_channel or Pairing(settings.home).pairs())


class Borrowed:
    """Each guest has a token of their own, which may read, write and approve in their own sessions and nothing else."""

    def __init__(self, tokens: TokenFile, url: str) -> None:
        self._tokens = tokens
        self._url = url

    async def let_in(self, user: int) -> GatewayAddress:
        return GatewayAddress(self._url, self._tokens.lend(f"telegram-{user}", _SCOPES).reveal())

    def send_away(self, user: int) -> None:
        self._tokens.take_back(f"telegram-{user}")


@asynccontextmanager
async def telegram(settings: Settings, tokens: TokenFile) -> AsyncGenerator[Callable[[str], None], None]:
    """The channel as long as the block lasts, from when it is told where the gateway is."""
    tasks = BackgroundTasks("Telegram channel")
    wanted = is_on(settings)

    def begin(url: str) -> None:
        if settings.telegram_token is None or not wanted:
            return
        api, pairing = BotApi(settings.telegram_token, settings.telegram_url), Pairing(settings.home)
        channel = TelegramChannel(api, pairing, StateFile(pairing.folder, api.bot_id), Borrowed(tokens, url))
        tasks.spawn(channel.run())

    try:
        yield begin
    finally:
        await tasks.close()


class ServedGateway:
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
        publish_address(home, RunningGateway(os.getpid(), self.url, version("atlas-agents")))

    @property
    def token(self) -> Secret:
        """The token that may do everything here."""
        return self.gateway.hub.tokens.main


@asynccontextmanager
async def private_gateway(
    settings: Settings, *, environment: Environment | None = None, told: Told | None = None, idle: bool = False
) -> AsyncGenerator[ServedGateway, None]:
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
    on_ready: Callable[[ServedGateway], object] | None = None,
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
) -> AsyncGenerator[ServedGateway, None]:
    async with opened(settings, environment=environment, told=told, fetch=not idle, works=not idle) as runtime:
        membership = runtime.company.membership if runtime.company is not None else None
        gateway = Gateway(runtime.atlas, _of_gateway(settings), membership=membership)
        gateway.hub.more_settings |= {each.key: each.value for each in settings.explain()}
        gateway.hub.study = runtime.study
        gateway.hub.foreign = lambda: servers_shape(runtime.servers)
        gateway.mcp.offers.library = Documents(gateway.hub, runtime.study)
        gateway.mcp.offers.prompts = lambda: read_prompts(settings.workspace)
        gateway.hub.runs.notice = lambda agent_id: runtime.crew.notices.get(agent_id, "")
        yield ServedGateway(runtime, gateway)


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


async def cluster_status(settings: Settings) -> ClusterStatus:
    """One look; ConfigError where there is no cluster, StoreError where Postgres cannot be asked."""
    if not is_postgres(settings):
        raise ConfigError(
            "there is no cluster here: this database is used by one process alone; set "
            "ATLAS_DATABASE_URL=postgresql://… to the database of the cluster"
        )
    try:
        import psycopg

        from atlas_agents.dispatch.members import read_status
        from atlas_agents.storage.postgres_connection import connect, translate_error
    except ImportError as error:
        raise ConfigError("a cluster needs an extra: pip install 'atlas-agents[cluster]'") from error
    try:
        async with await connect(settings.database_url.reveal()) as line:
            return await read_status(line)
    except psycopg.Error as error:
        raise translate_error(error) from error
