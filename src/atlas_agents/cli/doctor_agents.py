"""Checks of `atlas doctor` for agents: workspace, policy, models, plugins, sandbox, search, MCP, Telegram and X."""

import importlib.util
import os
from collections.abc import AsyncIterator, Iterator

from atlas_agents.app.home_lock import find_running
from atlas_agents.app.serve import telegram_enabled
from atlas_agents.app.tools import build_tool_registry
from atlas_agents.builtin_tools.code import interpreter
from atlas_agents.builtin_tools.sandbox.choose import choose as choose_sandbox
from atlas_agents.builtin_tools.telegram_api import BotApi, BotApiError, BotUnreachable
from atlas_agents.builtin_tools.web.search import NOT_CONFIGURED, SearXNG, choose_search
from atlas_agents.channels.telegram.state import Pairing, read_channel_error
from atlas_agents.cli.doctor_machine import CheckResult, broken, notice, ok
from atlas_agents.cli.plugins import load_plugins
from atlas_agents.config.open import open_policy
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError, MissingKey, SandboxUnavailable, ToolFailed
from atlas_agents.core.paths import Environment
from atlas_agents.core.trust import Trust
from atlas_agents.local.models import find_model, is_gguf_path, model_state, models_folder
from atlas_agents.mcp.servers import Servers
from atlas_agents.providers.registry import HOSTED, Registry, parse_model_ref
from atlas_agents.workspace.build import build_agent, resolve_models
from atlas_agents.workspace.workspace import AgentSpec, Workspace

_KEYS = tuple(f"{name}_API_KEY" for name in ("ANTHROPIC", "OPENAI", "GOOGLE", "GEMINI", *map(str.upper, HOSTED)))
_TELEGRAM_SECONDS = 8.0


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
        yield _check_keys(environment)
        registry = Registry(environment)
        refs: list[str] = [settings.model] if settings.model else []
        for spec in _agent_specs(settings):
            found, message = resolve_models(spec, registry, settings.model)
            refs += found
            if message:
                yield notice("models", message, "set the key, or choose another model in AGENTS.md")
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


def _agent_specs(settings: Settings) -> tuple[AgentSpec, ...]:
    """Return the agents, or the one that the first start creates; check_workspace reports an invalid file."""
    workspace = Workspace(settings.workspace)
    if not workspace.path.exists():
        return (AgentSpec("assistant"),)
    try:
        return workspace.load().agents
    except ConfigError:
        return ()


def _check_keys(environment: Environment) -> CheckResult:
    found = [f"{name} is set" for name in _KEYS if environment.secret(name)]
    if url := environment.get("OPENAI_BASE_URL"):
        found.append(f"OPENAI_BASE_URL is {url}")
    return ok("keys", ", ".join(found) or "none is set; a local model is used")


def _check_local_model(name: str, environment: Environment) -> CheckResult:
    what = "local model"
    if importlib.util.find_spec("xllamacpp") is None:
        return broken(what, "xllamacpp is not installed", "run: pip install 'atlas-agents[local]'")
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
        if settings.sandbox == "auto" and interpreter.is_wasm_installed():
            yield notice("sandbox", f"wasm for code, none for commands: {missing.reason}", missing.remedy)
        elif settings.sandbox == "auto":
            yield notice("sandbox", f"unavailable, so code is not run: {missing.reason}", missing.remedy)
        else:
            yield broken("sandbox", missing.reason, missing.remedy)
        return
    if settings.sandbox == "wasm" and not interpreter.is_wasm_installed():
        yield broken("sandbox", "pyeryx is not installed", interpreter.WASM_REMEDY)
    else:
        name = f"wasm for code, {found.name} for commands" if settings.sandbox == "wasm" else found.name
        yield ok("sandbox", f"{name}: works")


async def check_search(settings: Settings) -> AsyncIterator[CheckResult]:
    """Check the web search. A SearXNG server gets a test query; services that charge per query do not."""
    search = choose_search(settings.search, settings.search_url, settings.search_key, Environment())
    if search == NOT_CONFIGURED:
        yield ok("search", "not configured; web_search explains how to configure it")
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
        yield broken("mcp", "the MCP library is not installed", "run: pip install 'atlas-agents[mcp]'")
    for name, server in servers.configs.items():
        state = servers.state(name)
        if state == "approved":
            yield ok("mcp", f"{name}: {len(servers.approvals[name].tools)} tools")
        elif state == "disabled":
            yield ok("mcp", f"{name} is disabled")
        else:
            yield notice("mcp", f"{name} is {state}, and not used", f"run: atlas mcp approve {name}")
        try:
            server.expanded(Environment())
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
    if settings.telegram_token is None:
        yield ok("telegram", "not configured")
        return
    paired = len(Pairing(settings.home).pairs())
    channel = f"channel {'on' if enabled else 'off'}, {paired} {'person' if paired == 1 else 'people'} paired"
    api = BotApi(settings.telegram_token, settings.telegram_url)
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
