"""The checks of `atlas doctor`: the machine, database and gateway, then the workspace, models, tools and channels."""

import asyncio
import importlib.util
import os
import shutil
import sqlite3
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from atlas_agents.app.home_lock import find_running
from atlas_agents.app.model_setup import apply_stored_keys, read_selected, read_stored_keys
from atlas_agents.app.serve import telegram_enabled
from atlas_agents.app.tools import build_tool_registry, telegram_bot
from atlas_agents.builtin_tools.sandbox import choose as choose_sandbox
from atlas_agents.builtin_tools.telegram_api import BotApi, BotApiError, BotUnreachable
from atlas_agents.builtin_tools.web.search import NOT_CONFIGURED, SearXNG, choose_search
from atlas_agents.channels.telegram.state import Pairing, read_channel_error
from atlas_agents.cli.connect import TENANT, read_token
from atlas_agents.cli.output import plural
from atlas_agents.cli.plugins import load_plugins
from atlas_agents.config.open import open_policy
from atlas_agents.config.settings import REDACTED, Settings, redact_url, scheme
from atlas_agents.core import install_command, package_version
from atlas_agents.core.errors import AtlasError, ConfigError, GatewayError, MissingKey, SandboxUnavailable, ToolFailed
from atlas_agents.core.paths import Environment
from atlas_agents.core.trust import Trust
from atlas_agents.local.models import find_model, is_gguf_path, model_state, models_folder
from atlas_agents.mcp.servers import Servers
from atlas_agents.providers.catalogue import parse_model_ref
from atlas_agents.providers.registry import HOSTED, Registry
from atlas_agents.workspace.build import build_agent, resolve_models
from atlas_agents.workspace.workspace import Workspace, WorkspaceState

_CONNECT_SECONDS = 5.0
_OLDEST_PYTHON = (3, 11)
_LOW_DISK, _FULL_DISK = 1_000_000_000, 100_000_000
_DAY = 86400.0
_SQLITE_APPLICATION_ID = 0x41544C53
_KEYS = tuple(f"{name}_API_KEY" for name in ("ANTHROPIC", "OPENAI", "GOOGLE", "GEMINI", *map(str.upper, HOSTED)))
_TELEGRAM_SECONDS = 8.0


class CheckResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one check, with a remedy for a problem."""

    what: str
    state: Literal["ok", "notice", "broken"]
    words: str
    remedy: str = ""


def ok(what: str, message: str) -> CheckResult:
    return CheckResult(what, "ok", message)


def notice(what: str, message: str, remedy: str = "") -> CheckResult:
    return CheckResult(what, "notice", message, remedy)


def broken(what: str, message: str, remedy: str = "") -> CheckResult:
    return CheckResult(what, "broken", message, remedy)


# The machine


def check_python() -> Iterator[CheckResult]:
    current = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _OLDEST_PYTHON:
        yield broken("python", f"{current} is too old", "install Python 3.11 or newer")
    else:
        yield ok("python", f"{current}, atlas-agents {package_version()}")
    encoding = sys.stdout.encoding or ""
    if encoding.lower().replace("-", "") != "utf8":
        message = f"the output encoding is {encoding or 'unknown'}; some characters cannot be shown"
        yield notice("terminal", message, "set LANG=C.UTF-8")


def check_clock() -> Iterator[CheckResult]:
    """Detect a clock that was set back: it is behind the modification time of installed files."""
    newest = max((_modified(path) for path in (Path(__file__), Path(sys.executable))), default=0.0)
    now = time.time()
    if newest > now + _DAY:
        message = f"it shows {time.strftime('%Y-%m-%d', time.localtime(now))}, but there are newer files"
        yield broken("clock", message, "set the clock: daily limits and approval deadlines depend on it")
    else:
        yield ok("clock", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def check_settings(settings: Settings) -> list[CheckResult]:
    changed = [each for each in settings.explain() if each.origin != "default"]
    shown = "; ".join(f"{each.key} = {each.value} ({each.origin})" for each in changed) or "all at their defaults"
    return [ok("settings", shown), *(notice("settings", message) for message in settings.notices)]


def check_home(settings: Settings) -> Iterator[CheckResult]:
    home = settings.home
    if not home.exists():
        yield notice("home", f"{home} does not exist yet", "the first start creates it")
        return
    if not home.is_dir():
        yield broken("home", f"{home} is not a folder", "remove it, or set ATLAS_HOME to a folder")
        return
    mode = stat.S_IMODE(home.stat().st_mode)
    if mode & 0o077:
        yield broken("home", f"{home} is accessible to other users (mode {mode:o})", f"run: chmod 700 {home}")
    elif not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        remedy = f"run: chown {os.getuid()} {home}, or set ATLAS_HOME"
        yield broken("home", f"{home} is not writable by this user", remedy)
    else:
        yield ok("home", f"{home}, accessible only to its owner")
    if home.stat().st_uid != os.getuid():
        yield notice("home", f"{home} belongs to another user", f"run: chown -R {os.getuid()} {home}")


def check_disk(settings: Settings) -> Iterator[CheckResult]:
    folder = settings.home
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    message = f"{free / 1e9:.1f} GB free at {settings.home}"
    if free < _FULL_DISK:
        yield broken("disk", message, "free disk space: soon nothing can be stored")
    elif free < _LOW_DISK:
        yield notice("disk", message, "free disk space: a local model needs up to 1.2 GB")
    else:
        yield ok("disk", message)


def check_token(settings: Settings) -> Iterator[CheckResult]:
    from atlas_agents.gateway.auth import TokenFile

    path = settings.home / "token"
    for file in (path, settings.home / "tokens.json"):
        mode = stat.S_IMODE(file.stat().st_mode) if file.exists() else 0
        if mode & 0o077:
            yield broken("token", f"{file} is readable by other users (mode {mode:o})", f"run: chmod 600 {file}")
    if settings.token is None and not path.exists():
        yield notice("token", "there is none yet", "the first start creates one")
        return
    try:
        tokens = TokenFile(settings.home, settings.token)
    except ConfigError as error:
        yield broken("token", str(error), "fix the file, or run: atlas token rotate")
        return
    yield _check_strength(settings, tokens)


def _check_strength(settings: Settings, tokens: Any) -> CheckResult:
    from atlas_agents.gateway.auth import MIN_TOKEN_BITS, strength
    from atlas_agents.gateway.settings import LOOPBACK

    weak = strength(tokens.main.reveal()) < MIN_TOKEN_BITS
    source = settings.origins.get("token", str(tokens.path))
    if weak and settings.host not in LOOPBACK:
        message = f"the token from {source} is too weak to listen on {settings.host}"
        return broken("token", message, "use at least 22 random characters, or unset it to generate one")
    if weak:
        message = f"the token from {source} is weak; only this machine can reach the gateway"
        return notice("token", message, "unset ATLAS_TOKEN to generate a strong one")
    others = len(tokens.principals) - 1
    return ok("token", f"strong, from {source}" + (f"; {plural(others, 'more token')}" if others else ""))


# The database and Redis


async def check_database(settings: Settings) -> AsyncIterator[CheckResult]:
    from atlas_agents.config.open import open_store
    from atlas_agents.storage.migrations import schema_version

    url = settings.database_url.reveal()
    if scheme(url) == "sqlite":
        yield _check_sqlite(Path(url.removeprefix("sqlite:///")))
        return
    shown = redact_url(url, "…")
    store = open_store(settings)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS * 2):
            await store.open()
            await store.sessions(TENANT, limit=1)
    except (AtlasError, TimeoutError) as error:
        remedy = "check that it is running, and the user name and password"
        yield broken("database", f"{shown}: {error or 'no answer'}", remedy)
    else:
        yield ok("database", f"{shown} responds, schema {schema_version('postgres')}")
    finally:
        await store.close()


def _check_sqlite(path: Path) -> CheckResult:
    """Check the file without writing to it."""
    if not path.exists():
        if path.parent.exists() and not os.access(path.parent, os.W_OK):
            return broken("database", f"cannot create {path}: its folder is read-only", "make the folder writable")
        return notice("database", f"{path} does not exist yet", "the first start creates it")
    if not path.is_file():
        return broken("database", f"{path} is not a file", "remove it, or set ATLAS_DATABASE_URL")
    if not os.access(path, os.R_OK | os.W_OK) or not os.access(path.parent, os.W_OK):
        remedy = f"run: chmod u+rw {path}, or set ATLAS_DATABASE_URL to another file"
        return broken("database", f"{path} is read-only", remedy)
    try:
        return _check_sqlite_content(path)
    except sqlite3.DatabaseError as error:
        return broken("database", f"{path} is damaged or not a database: {error}", "restore a backup")


def _check_sqlite_content(path: Path) -> CheckResult:
    from atlas_agents.storage.migrations import schema_version

    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_CONNECT_SECONDS)
    try:
        application_id: int = connection.execute("PRAGMA application_id").fetchone()[0]
        schema: int = connection.execute("PRAGMA user_version").fetchone()[0]
        if application_id != _SQLITE_APPLICATION_ID:
            if path.stat().st_size == 0:
                return notice("database", f"{path} is empty", "the first start creates its tables")
            return broken("database", f"{path} belongs to another program", "set ATLAS_DATABASE_URL to another file")
        newest = schema_version("sqlite")
        if schema > newest:
            message = f"{path} was written by a newer version (schema {schema}, this version supports {newest})"
            return broken("database", message, "install the newer version again")
        check: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if check != "ok":
            return broken("database", f"{path} is damaged: {check}", "restore a backup")
    finally:
        connection.close()
    message = f"{path}, schema {schema}, {path.stat().st_size / 1e6:.1f} MB, intact"
    if schema < newest:
        return notice("database", message, "the next start migrates it")
    return ok("database", message)


async def check_redis(settings: Settings) -> AsyncIterator[CheckResult]:
    if settings.redis_url is None:
        return
    try:
        from atlas_agents.app.session_copies import CONNECTION_ERRORS, open_valkey
    except ImportError:
        yield broken("redis", "valkey is not installed", f"run: {install_command('cluster')}")
        return
    shown, client = redact_url(settings.redis_url.reveal(), "…"), open_valkey(settings.redis_url)
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            await client.ping()
    except CONNECTION_ERRORS as error:
        remedy = "check that it is running, the URL and the password; or remove redis_url"
        yield broken("redis", f"no connection to {shown}: {error or 'timeout'}", remedy)
    else:
        yield ok("redis", f"{shown} responds")
    finally:
        await client.aclose()


# The gateway


async def check_gateway(settings: Settings) -> AsyncIterator[CheckResult]:
    from atlas_agents.gateway.settings import LOOPBACK

    running = find_running(settings.home)
    if running is not None and running.url:
        yield await _check_running(settings, running)
    elif running is not None:
        message = f"process {running.pid} holds {settings.home} and does not listen yet"
        yield notice("gateway", message, "wait until it has started, and check again")
    else:
        yield _check_port(settings)
    if settings.host not in LOOPBACK:
        message = f"it listens on {settings.host}: reachable from other machines, without encryption"
        yield notice("gateway", message, "put a TLS proxy in front of it, and add its name to allowed_hosts")


async def _check_running(settings: Settings, running: Any) -> CheckResult:
    from atlas_agents.client import GatewayClient

    try:
        async with GatewayClient(
            running.url, read_token(settings), reconnect_timeout=2.0, name="atlas doctor"
        ) as client:
            info = await client.call("system.info")
    except (GatewayError, ConfigError) as error:
        remedy = f"read the log of process {running.pid}, and restart it"
        return broken("gateway", f"process {running.pid} at {running.url} does not respond: {error}", remedy)
    theirs, ours = info["server"]["version"], package_version()
    message = f"running at {running.url}, process {running.pid}, for {info['uptime']:.0f} s"
    if theirs != ours:
        return notice("gateway", f"{message}, version {theirs}; this is version {ours}", "restart it")
    return ok("gateway", message)


def _check_port(settings: Settings) -> CheckResult:
    import socket

    if settings.port == 0:
        return ok("gateway", "not running; it will use any free port")
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            message = f"cannot listen on {settings.host} port {settings.port}: {error.strerror}"
            remedy = "stop the program that uses the port, or set ATLAS_PORT, or run: atlas serve --port 0"
            return broken("gateway", message, remedy)
    return ok("gateway", f"not running; port {settings.port} is free")


def check_trust(settings: Settings) -> Iterator[CheckResult]:
    remedy = "to see it and decide, run: atlas trust"
    if settings.ignored:
        yield notice("trust", f"this folder is not trusted; ignored: {', '.join(settings.ignored)}", remedy)
    for change in Trust.of(Environment()).pending():
        yield notice("trust", f"{change.summary}, and is not used", remedy)


def check_workspace(settings: Settings) -> Iterator[CheckResult]:
    workspace = Workspace(settings.workspace, Trust.of(Environment()))
    if not workspace.path.exists():
        yield notice("workspace", f"{workspace.path} does not exist yet", "the first start creates it")
        return
    try:
        state = workspace.load()
    except ConfigError as error:
        yield broken("workspace", str(error), "fix this line; a running gateway keeps the version it read before")
        return
    yield ok("workspace", f"{workspace.path}: {', '.join(spec.id for spec in state.agents)}")
    for finding in state.findings:
        message = f"{finding}: invisible to you, but not to a model"
        yield broken("workspace", message, f"remove it from {workspace.path / finding.file}")
    tools = build_tool_registry(settings, servers=_servers(settings))
    for spec in state.agents:
        try:
            build_agent(spec, tools, models=("http/any",))
        except ConfigError as error:
            yield broken("workspace", str(error), "fix this line")


def check_policy(settings: Settings) -> Iterator[CheckResult]:
    if settings.policy is None:
        message = "no policy: tools without side effects are allowed, built-in tools with side effects need approval"
        yield notice("policy", message, "create one with atlas init, and set policy to its path")
        return
    try:
        open_policy(settings, Trust.of(Environment()))
    except ConfigError as error:
        yield broken("policy", str(error), "fix it: the gateway does not start with an invalid policy")
    else:
        yield ok("policy", str(settings.policy))


def check_models(settings: Settings) -> Iterator[CheckResult]:
    """Check which model each agent uses, and whether its API key is set. Keys are never shown."""
    environment = Environment()
    try:
        stored = read_stored_keys(settings.home)
        yield _check_keys(environment, sorted(stored))
        registry = Registry(environment)
        apply_stored_keys(registry, stored)
        default = read_selected(settings.home, settings.model).model or settings.model
        refs: list[str] = [default] if default else []
        state = _workspace_state(settings)
        for spec in state.agents:
            found, message = resolve_models(spec, registry, default, generated=state.generated)
            refs += found
            if message:
                yield notice("models", f"{spec.id}: {message}", "set the key, or choose another model in AGENTS.md")
            else:
                yield ok("models", f"{spec.id}: {', '.join(found)}")
    except MissingKey as error:
        yield broken("models", str(error), "set the key, or choose another model")
        return
    except ConfigError as error:
        yield broken("models", str(error), "fix it in the settings or in AGENTS.md")
        return
    local = {parse_model_ref(ref).model for ref in refs if parse_model_ref(ref).provider == "local"}
    for name in sorted(local):
        yield _check_local_model(name, environment)


def _workspace_state(settings: Settings) -> WorkspaceState:
    """Return the agents, or the one that the first start creates; none for an invalid file."""
    workspace = Workspace(settings.workspace)
    if not workspace.path.exists():
        return WorkspaceState()
    try:
        return workspace.load()
    except ConfigError:
        return WorkspaceState(agents=())


def _check_keys(environment: Environment, stored: Sequence[str]) -> CheckResult:
    found = [f"{name} is set" for name in _KEYS if environment.secret(name)]
    if stored:
        found.append(f"stored in the secret file: {', '.join(stored)}")
    if url := environment.get("OPENAI_BASE_URL"):
        found.append(f"OPENAI_BASE_URL is {redact_url(url, REDACTED)}")
    return ok("keys", ", ".join(found) or "none is set; a local model is used")


def _check_local_model(name: str, environment: Environment) -> CheckResult:
    what = "local model"
    if importlib.util.find_spec("xllamacpp") is None:
        return broken(what, "xllamacpp is not installed", f"run: {install_command('local')}")
    if is_gguf_path(name):
        exists = os.path.isfile(os.path.expanduser(name))
        return ok(what, name) if exists else broken(what, f"file not found: {name}", "download the file")
    try:
        state = model_state(find_model(name), models_folder(environment))
    except Exception as error:  # noqa: BLE001 - an unknown name
        return broken(what, str(error), "run: atlas models list")
    if state.installed:
        return ok(what, f"{name} is installed at {state.path}")
    if state.model.auto_download:
        return notice(what, f"{name} is not installed yet", "it is downloaded at first use")
    return broken(what, f"{name} is not installed, {state.model.megabytes} MB", f"run: atlas models pull {name}")


def check_plugins(settings: Settings) -> Iterator[CheckResult]:
    found = load_plugins(settings)
    for plugin in found:
        if not plugin.trouble:
            continue
        message = f"{plugin.name} ({plugin.kind}) is disabled: {plugin.trouble}"
        if plugin.name in settings.disabled_plugins:
            yield notice("plugins", message, "remove it from disabled_plugins to use it again")
        else:
            yield broken("plugins", message, f"fix or uninstall the package {plugin.package or plugin.name}")
    if not any(plugin.trouble for plugin in found):
        yield ok("plugins", ", ".join(f"{each.name} ({each.kind})" for each in found) or "none installed")


async def check_sandbox(settings: Settings) -> AsyncIterator[CheckResult]:
    """Check the sandbox by running a command in it."""
    if settings.sandbox == "none":
        message = "disabled: code and commands run with your permissions"
        yield notice("sandbox", message, "set sandbox to auto")
        return
    try:
        found = await choose_sandbox(settings.sandbox)
    except SandboxUnavailable as missing:
        state = notice if settings.sandbox == "auto" else broken
        message = f"none works, so bash and code_interpreter are not offered: {missing.reason}"
        yield state("sandbox", message, f'{missing.remedy}; or set sandbox = "none" to run without one')
    else:
        yield ok("sandbox", f"{found.name}: works")


async def check_search(settings: Settings) -> AsyncIterator[CheckResult]:
    """Check the web search. A SearXNG server gets a test query; services that charge per query do not."""
    search = choose_search(settings.search, settings.search_url, settings.search_key, Environment())
    if search == NOT_CONFIGURED:
        yield ok("search", "not configured, so web_search is not offered to models")
    elif isinstance(search, str):
        yield broken("search", search, "fix the setting, or remove search")
    elif isinstance(search, SearXNG):
        try:
            await search.search("atlas", 1)
        except ToolFailed as error:
            yield broken("search", str(error), "check that it is running, and the URL")
        else:
            yield ok("search", "SearXNG responds")
    else:
        yield ok("search", f"{search.name}, not tested")


def check_mcp(settings: Settings) -> Iterator[CheckResult]:
    """Check which MCP servers may be used, without starting them."""
    servers = _servers(settings)
    if servers.config_error:
        yield broken("mcp", servers.config_error, "fix it; until then no MCP server is used")
        return
    if servers.configs and importlib.util.find_spec("mcp") is None:
        yield broken("mcp", "the MCP library is not installed", f"run: {install_command('mcp')}")
    for name, server in servers.configs.items():
        state = servers.state(name)
        if state == "approved":
            yield ok("mcp", f"{name}: {len(servers.approvals[name].tools)} tools")
        elif state == "disabled":
            yield ok("mcp", f"{name} is disabled")
        else:
            yield notice("mcp", f"{name} is {state}, and not used", f"run: atlas mcp approve {name}")
        try:
            server.expanded(servers.environment)
        except ConfigError as error:
            yield broken("mcp", str(error), "set the variable, or remove it from the entry")


def _servers(settings: Settings) -> Servers:
    return Servers(settings.workspace, settings.home, Environment(), sandbox=settings.sandbox)


async def check_telegram(settings: Settings) -> AsyncIterator[CheckResult]:
    try:
        enabled = telegram_enabled(settings)
    except ConfigError as error:
        yield broken("telegram", str(error), "set the token, or remove telegram_channel")
        return
    bot = telegram_bot(settings)
    if bot.token is None:
        yield ok("telegram", "not configured")
        return
    paired = len(Pairing(settings.home).pairs())
    channel = f"channel {'on' if enabled else 'off'}, {paired} {'person' if paired == 1 else 'people'} paired"
    api = BotApi(bot.token, bot.url)
    try:
        me = await api.call("getMe", request_timeout=_TELEGRAM_SECONDS)
        yield ok("telegram", f"bot @{me.get('username', '?')}; {channel}")
    except BotApiError as refused:
        yield broken("telegram", str(refused), refused.advice)
    except BotUnreachable as lost:
        yield notice("telegram", f"{lost}; {channel}", "check the network and telegram_url")
    finally:
        await api.close()
    problem = read_channel_error(settings.home / "telegram", api.bot_id)
    if enabled and problem and find_running(settings.home) is not None:
        yield broken("telegram", f"the channel receives no messages: {problem}")


def check_x(settings: Settings) -> Iterator[CheckResult]:
    """Check the configuration only: X charges for requests."""
    if settings.x_token is None and settings.x_refresh_token is None:
        yield ok("x", "not configured")
    elif settings.x_refresh_token is not None and settings.x_client_id is None:
        yield broken("x", "a refresh token without a client id", "set ATLAS_X_CLIENT_ID to the id of your app")
    elif settings.x_refresh_token is None:
        message = "an access token without a refresh token: it expires after two hours"
        yield notice("x", message, "set ATLAS_X_REFRESH_TOKEN")
    else:
        yield ok("x", "configured")
