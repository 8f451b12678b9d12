"""Serve a gateway or run a worker from settings until it is stopped."""

import asyncio
import logging
import os
import shutil
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from atlas_agents.app.agents import WorkspaceEditor
from atlas_agents.app.app import ModelProgress, Runtime, open_runtime
from atlas_agents.app.home_lock import RunningGateway, publish_address
from atlas_agents.app.tools import telegram_bot
from atlas_agents.builtin_tools.telegram_api import BotApi, BotApiError, BotUnreachable
from atlas_agents.channels.telegram.channel import TelegramChannel
from atlas_agents.channels.telegram.state import PairedUser, Pairing, StateFile, read_channel_error
from atlas_agents.client import GatewayAddress
from atlas_agents.config.open import database_files, is_postgres, open_audit_signer, scheme
from atlas_agents.config.settings import SETTINGS, Settings
from atlas_agents.core import install_command, package_version
from atlas_agents.core.aio import BackgroundTasks, run_in_thread
from atlas_agents.core.alert_rules import parse_alert_rules
from atlas_agents.core.errors import ConfigError, Transient
from atlas_agents.core.paths import Environment, Secret, make_private_folder
from atlas_agents.core.store import Store
from atlas_agents.gateway.auth import TokenFile
from atlas_agents.gateway.hub import GatewayServices
from atlas_agents.gateway.mcp.resources import DocumentResources
from atlas_agents.gateway.monitor import AlertOptions, AlertSender, TelegramSender, WebhookSender
from atlas_agents.gateway.protocol import admin as wire
from atlas_agents.gateway.protocol.types import Scope
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.sqlite.files import back_up
from atlas_agents.workspace.skills import read_prompts

if TYPE_CHECKING:
    from atlas_agents.dispatch.members import ClusterStatus

logger = logging.getLogger(__name__)
_TEST_TIMEOUT = 15.0
_DOCTOR_TIMEOUT = 300.0
_SCOPES: tuple[Scope, ...] = ("read", "write", "approve")


def telegram_enabled(settings: Settings) -> bool:
    """Return whether the Telegram channel runs: a bot was added in the web UI, or one is set and in use.

    A bot of the settings is in use once a user is paired, or if `telegram_channel` is true; false turns any bot off.
    """
    bot = telegram_bot(settings)
    if bot.token is None or settings.telegram_channel is False:
        if settings.telegram_channel:
            raise ConfigError("telegram_channel requires a bot: set ATLAS_TELEGRAM_TOKEN")
        return False
    return bool(settings.telegram_channel or bot.source == "stored" or Pairing(settings.home).pairs())


class TelegramTokens:
    """Gives each Telegram user a token that can read, write and approve in their own sessions only."""

    def __init__(self, tokens: TokenFile, url: str) -> None:
        self._tokens = tokens
        self._url = url

    async def grant(self, user: int) -> GatewayAddress:
        return GatewayAddress(self._url, self._tokens.issue(f"telegram-{user}", _SCOPES).reveal())

    def revoke(self, user: int) -> None:
        self._tokens.revoke(f"telegram-{user}")


def _read_stats(files: Iterable[Path]) -> list[tuple[Path, os.stat_result]]:
    """Return the files that exist with their sizes and times; another process may remove one at any moment."""
    found: list[tuple[Path, os.stat_result]] = []
    for file in files:
        with suppress(FileNotFoundError):
            found.append((file, file.stat()))
    return found


class Operations:
    """The installation that a gateway is part of: its storage, backups and checks."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._folder = settings.home / "backups"
        self._database = next(iter(database_files(settings)), None)

    async def storage(self) -> wire.StorageStatus:
        return await run_in_thread(self._read_storage)

    def _read_storage(self) -> wire.StorageStatus:
        home, database = self._settings.home, self._database
        disk = shutil.disk_usage(home)
        files = _read_stats(database_files(self._settings))
        size = sum(stat.st_size for _, stat in files) if database is not None else None
        name = str(database or scheme(self._settings.database_url.reveal()))
        backups = _read_stats(sorted(self._folder.glob("atlas-*.db"), reverse=True))
        shapes = tuple([wire.BackupShape(str(file), stat.st_size, int(stat.st_mtime * 1000)) for file, stat in backups])
        return wire.StorageStatus(str(home), name, size, disk.free, disk.total, shapes)

    async def cluster(self) -> "ClusterStatus | None":
        if self._settings.role == "alone":
            return None
        from atlas_agents.dispatch.members import read_status  # imports psycopg
        from atlas_agents.storage.postgres import PostgresStore

        async with cast(PostgresStore, self._store).connection() as connection:
            return await read_status(connection)

    def new_backup(self) -> Path:
        if self._database is None:
            raise ConfigError("only a SQLite database can be backed up here; back up Postgres with pg_dump")
        return self._folder / f"atlas-{time.strftime('%Y%m%d-%H%M%S')}.db"

    async def back_up(self, target: Path) -> wire.BackupShape:
        if (source := self._database) is None:
            raise ConfigError("only a SQLite database can be backed up here; back up Postgres with pg_dump")
        keys = open_audit_signer(self._settings).row_keys
        await run_in_thread(make_private_folder, self._folder)
        summary = await run_in_thread(back_up, source, target, None, keys)
        return wire.BackupShape(str(target), summary.size, int(time.time() * 1000), summary.broken or "")

    async def check(self) -> tuple[wire.CheckShape, ...]:
        """Run `atlas doctor` in a process of its own: many of its checks would block the event loop."""
        command = (sys.executable, "-P", "-m", "atlas_agents", "doctor", "--json")
        process = await asyncio.create_subprocess_exec(
            *command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env={**os.environ, **self._variables()}
        )
        try:
            async with asyncio.timeout(_DOCTOR_TIMEOUT):
                output, _ = await process.communicate()
        except TimeoutError:
            raise Transient(f"the checks took longer than {_DOCTOR_TIMEOUT:g} s; run: atlas doctor") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return msgspec.json.decode(output, type=_DoctorOutput).findings

    def _variables(self) -> dict[str, str]:
        """Return the settings of the command line as environment variables, and the home folder."""
        given = {
            key: getattr(self._settings, key) for key, origin in self._settings.origins.items() if origin[0] == "-"
        }
        plain = {key: str(value) for key, value in given.items() if isinstance(value, str | int | Path)}
        return {SETTINGS[key].variable: value for key, value in plain.items()} | {
            "ATLAS_HOME": str(self._settings.home)
        }


class _DoctorOutput(msgspec.Struct):
    findings: tuple[wire.CheckShape, ...]


class TelegramManager:
    """Runs the Telegram channel; its bot token and paired users can change at runtime.

    A token in the settings wins over one in the secret file.
    """

    def __init__(self, settings: Settings, on_change: Callable[[], None]) -> None:
        self._settings = settings
        self._bot = telegram_bot(settings)
        self._on_change = on_change
        self._pairing = Pairing(settings.home)
        self._tokens: TokenFile | None = None
        self._url = ""
        self._tasks = BackgroundTasks("Telegram channel")
        self._task: asyncio.Task[None] | None = None

    def start(self, tokens: TokenFile, url: str) -> None:
        """Start the channel for the gateway at this URL, if it is enabled."""
        self._tokens, self._url = tokens, url
        token = self._bot.token
        if token is not None and telegram_enabled(self._settings):
            api = BotApi(token, self._bot.url)
            state = StateFile(self._pairing.folder, api.bot_id)
            channel = TelegramChannel(api, self._pairing, state, TelegramTokens(tokens, url))
            self._task = self._tasks.spawn(channel.run())

    async def close(self) -> None:
        await self._tasks.close()

    async def status(self) -> wire.ChannelShape:
        token = self._bot.token
        running = self._task is not None and not self._task.done()
        paired = tuple([_person_shape(each) for each in (await run_in_thread(self._pairing.pairs)).values()])
        trouble = ""
        if token is not None:
            trouble = await run_in_thread(read_channel_error, self._pairing.folder, token.reveal().partition(":")[0])
        return wire.ChannelShape("telegram", self._bot.source, running, self._bot.name, trouble, paired)

    async def test(self, token: str | None) -> wire.ChannelTested:
        used = Secret(token) if token else self._bot.token
        if used is None:
            return wire.ChannelTested(False, error="no bot token is set")
        try:
            api = BotApi(used, self._bot.url)
        except ConfigError as error:
            return wire.ChannelTested(False, error=str(error))
        try:
            me = await api.call("getMe", request_timeout=_TEST_TIMEOUT)
        except BotApiError as error:
            return wire.ChannelTested(False, error=error.advice)
        except BotUnreachable as error:
            return wire.ChannelTested(False, error=str(error))
        finally:
            await api.close()
        return wire.ChannelTested(True, str(me.get("username", "")))

    async def set_token(self, token: str) -> None:
        if self._bot.source == "settings":
            raise ConfigError("the bot token is set in the settings (ATLAS_TELEGRAM_TOKEN); change it there")
        tested = await self.test(token) if token else wire.ChannelTested(True)
        if not tested.ok:
            raise ConfigError(tested.error)
        await run_in_thread(self._bot.store, token, tested.bot)
        self._on_change()  # agents get or lose the tool that sends messages
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
            self._task = None
        if self._tokens is not None:
            self.start(self._tokens, self._url)

    async def pair(self, code: str) -> wire.PairedPerson:
        return _person_shape(await run_in_thread(self._pairing.pair, code))

    async def unpair(self, person: str) -> None:
        await run_in_thread(self._pairing.unpair, person)


def _person_shape(pair: PairedUser) -> wire.PairedPerson:
    return wire.PairedPerson(str(pair.user), pair.name, pair.username, int(pair.since * 1000))


class ServedGateway:
    """A gateway that is listening, and its runtime."""

    def __init__(self, runtime: Runtime, gateway: Gateway, telegram: TelegramManager) -> None:
        self.runtime = runtime
        self.gateway = gateway
        self.telegram = telegram

    @property
    def url(self) -> str:
        """URL of the gateway on this machine."""
        return self.gateway.url

    def announce(self) -> None:
        """Publish the address in the home folder for other commands of this user."""
        home = self.runtime.settings.home
        publish_address(home, RunningGateway(os.getpid(), self.url, package_version()))

    @property
    def token(self) -> Secret:
        """The main token, which has all scopes."""
        return self.gateway.hub.tokens.main


@asynccontextmanager
async def private_gateway(
    settings: Settings,
    *,
    environment: Environment | None = None,
    on_progress: ModelProgress | None = None,
    idle: bool = False,
) -> AsyncGenerator[ServedGateway, None]:
    """Run a gateway on a free local port inside the block, for a command that finds none running.

    An `idle` gateway only answers queries: it downloads no model, resumes no turn and does not publish its address.
    """
    own = msgspec.structs.replace(settings, host="127.0.0.1", port=0, role="alone")
    async with _gateway(own, environment, on_progress, idle=idle) as served, served.gateway.running(recover=not idle):
        if not idle:
            served.announce()
        yield served


async def serve(
    settings: Settings,
    *,
    environment: Environment | None = None,
    on_progress: ModelProgress | None = None,
    on_ready: Callable[[ServedGateway], object] | None = None,
    on_stop: Callable[[], object] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then stop accepting connections and drain the running turns.

    `on_stop` is called when shutdown starts.
    """
    async with _gateway(settings, environment, on_progress) as served:

        def ready(_: Gateway) -> None:
            served.announce()
            served.telegram.start(served.gateway.hub.tokens, served.url)
            if on_ready is not None:
                on_ready(served)

        telegram_enabled(settings)  # raises if the settings contradict each other
        try:
            await served.gateway.serve(ready, on_stop)
        finally:
            await served.telegram.close()


async def work(
    settings: Settings,
    *,
    environment: Environment | None = None,
    on_progress: ModelProgress | None = None,
    on_ready: Callable[[Runtime, str], object] | None = None,
) -> None:
    """Run turns that gateways accepted until SIGTERM or SIGINT, then drain them.

    `on_ready` receives the URL of the health and metrics endpoints.
    """
    async with open_runtime(settings, environment=environment, on_progress=on_progress) as runtime:
        if runtime.cluster is None:
            raise ConfigError("role 'worker' requires a cluster")

        def ready(url: str) -> None:
            if on_ready is not None:
                on_ready(runtime, url)

        await runtime.cluster.work(runtime.atlas, _gateway_settings(settings), ready)


@asynccontextmanager
async def _gateway(
    settings: Settings, environment: Environment | None, on_progress: ModelProgress | None, *, idle: bool = False
) -> AsyncGenerator[ServedGateway, None]:
    async with open_runtime(
        settings, environment=environment, on_progress=on_progress, fetch=not idle, runs_turns=not idle
    ) as runtime:
        membership = runtime.cluster.membership if runtime.cluster is not None else None
        editor = WorkspaceEditor(settings, runtime.workspace, runtime.agent_loader, runtime.atlas, runtime.tools)
        telegram = TelegramManager(settings, runtime.setup.rebuild)
        services = GatewayServices(
            knowledge_base=runtime.knowledge,
            settings={each.key: each.value for each in settings.explain()},
            servers=runtime.servers,
            telegram=telegram,
            reload_servers=runtime.reloader.reload,
            refresh_servers=runtime.reloader.refresh,
            model_notice=lambda agent_id: "; ".join(_notices(runtime, agent_id)),
            agent_editor=editor,
            policy_editor=runtime.permissions,
            needs_key=lambda agent_id: agent_id in runtime.agent_loader.without_key,
            prompts=lambda: read_prompts(settings.workspace, runtime.workspace.trust),
            resources=DocumentResources(runtime.atlas, runtime.knowledge),
            setup=runtime.setup,
            operations=Operations(settings, runtime.store),
            alerts=_alert_options(settings),
        )
        gateway = Gateway(runtime.atlas, _gateway_settings(settings), membership=membership, services=services)
        runtime.setup.feed.listeners.add(gateway.hub.broadcast)
        try:
            yield ServedGateway(runtime, gateway, telegram)
        finally:
            await editor.close()


def _alert_options(settings: Settings) -> AlertOptions:
    """Return the alert rules and the configured targets; ConfigError if a rule names another target."""
    rules, senders = parse_alert_rules(settings.alerts), dict[str, AlertSender]()
    if settings.alert_webhook is not None:
        senders["webhook"] = WebhookSender(settings.alert_webhook)
    if settings.telegram_chat:
        senders["telegram"] = TelegramSender(telegram_bot(settings), settings.telegram_chat)
    for rule in rules:
        if not senders or (rule.target is not None and rule.target not in senders):
            missing = "telegram_chat" if rule.target == "telegram" else "alert_webhook"
            raise ConfigError(f"alerts: {rule.text!r} has no target; set {missing}")
    return AlertOptions(rules, senders)


def _notices(runtime: Runtime, agent_id: str) -> list[str]:
    """Return the notices for an agent's users: its replaced model, missing tools, and changes that await a person."""
    notice = runtime.agent_loader.notices.get(agent_id)
    return [*([notice] if notice else ()), *runtime.workspace.state.pending]


def _gateway_settings(settings: Settings) -> GatewaySettings:
    if settings.allowed_origins and "*" in settings.allowed_origins:
        raise ConfigError("allowed_origins: '*' would allow every page; list the origins")
    return GatewaySettings(
        home=settings.home,
        host=settings.host,
        port=0 if settings.role == "worker" and "port" not in settings.origins else settings.port,
        token=settings.token,
        hosts=settings.allowed_hosts,
        origins=settings.allowed_origins,
        trusted_proxies=settings.trusted_proxies,
        allowed_models=settings.allowed_models,
        user_sessions=settings.user_sessions,
        user_messages=settings.user_messages,
        user_bytes=settings.user_megabytes * 1024 * 1024,
        grace=settings.drain_seconds,
    )


async def cluster_status(settings: Settings) -> "ClusterStatus":
    """Read the cluster's status once; ConfigError without a cluster, StoreError if Postgres cannot be reached."""
    if not is_postgres(settings):
        raise ConfigError(
            "not a cluster: this database_url is used by a single process; set "
            "ATLAS_DATABASE_URL=postgresql://… to the database of the cluster"
        )
    try:
        import psycopg

        from atlas_agents.dispatch.members import read_status
        from atlas_agents.storage.postgres.connection import connect, translate_error
    except ImportError as error:
        raise ConfigError(f"a cluster needs an extra; run: {install_command('cluster')}") from error
    try:
        async with await connect(settings.database_url.reveal()) as connection:
            return await read_status(connection)
    except psycopg.Error as error:
        raise translate_error(error) from error
