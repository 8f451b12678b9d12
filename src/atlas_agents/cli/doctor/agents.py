"""Who answers: the workspace, the policy, the models and their keys, the local model, the plugins."""

import importlib.util
import os
from collections.abc import Iterator

from atlas_agents.app.tools import known_tools
from atlas_agents.cli.doctor.finding import Finding, broken, notice, ok
from atlas_agents.cli.plugins import installed
from atlas_agents.config.open import open_policy
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError, MissingKey
from atlas_agents.core.paths import Environment
from atlas_agents.local.models import is_path, known, models_folder, state_of
from atlas_agents.mcp.servers import Servers
from atlas_agents.providers.registry import Registry, parse_model_ref
from atlas_agents.workspace.build import build_agent, resolve_models
from atlas_agents.workspace.workspace import AgentSpec, Workspace

_KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY")


def look_at_workspace(settings: Settings) -> Iterator[Finding]:
    workspace = Workspace(settings.workspace)
    if not workspace.path.exists():
        yield notice("workspace", f"{workspace.path} is not there yet", "it is written at the first start")
        return
    try:
        state = workspace.load()
    except ConfigError as error:
        yield broken("workspace", str(error), "mend that line; a gateway that runs goes on with what it read before")
        return
    yield ok("workspace", f"{workspace.path}: {', '.join(spec.id for spec in state.agents)}")
    for finding in state.findings:
        words = f"{finding}: a model reads it and you don't see it"
        yield broken("workspace", words, f"look at that place in {workspace.path / finding.file}, and take it out")
    tools = known_tools(settings, servers=_servers(settings))
    for spec in state.agents:
        try:
            build_agent(spec, tools, models=("http/any",))
        except ConfigError as error:
            yield broken("workspace", str(error), "mend that line")


def look_at_policy(settings: Settings) -> Iterator[Finding]:
    if settings.policy is None:
        words = "there is no policy: agents use tools without effects, and built-in ones with effects when you agree"
        yield notice("policy", words, "atlas init writes one to begin with; set policy to it")
        return
    try:
        open_policy(settings)
    except ConfigError as error:
        yield broken("policy", str(error), "mend it: nothing starts with a policy that cannot be read")
    else:
        yield ok("policy", str(settings.policy))


def look_at_models(settings: Settings) -> Iterator[Finding]:
    """Which model answers for each agent; keys are looked for, and never shown."""
    environment = Environment()
    try:
        yield _keys(environment)
        registry = Registry(environment)
        refs: list[str] = [settings.model] if settings.model else []
        for spec in _specs(settings):
            found, words = resolve_models(spec, registry, settings.model)
            refs += found
            if words:
                yield notice("models", words, "set the key, or another model in AGENTS.md")
            else:
                yield ok("models", f"{spec.id}: {', '.join(found)}")
    except MissingKey as error:
        yield broken("models", str(error), "set the key, or name another model")
        return
    except ConfigError as error:
        yield broken("models", str(error), "mend that, in the settings or in AGENTS.md")
        return
    local = {parse_model_ref(ref).model for ref in refs if parse_model_ref(ref).provider == "local"}
    for name in sorted(local):
        yield _local(name, environment)


def _specs(settings: Settings) -> tuple[AgentSpec, ...]:
    """The agents, if they can be read; why they cannot is told elsewhere. Where there are none yet, one will be."""
    workspace = Workspace(settings.workspace)
    if not workspace.path.exists():
        return (AgentSpec("assistant"),)
    try:
        return workspace.load().agents
    except ConfigError:
        return ()


def _keys(environment: Environment) -> Finding:
    found = [name for name in _KEYS if environment.secret(name)]
    address = environment.get("OPENAI_BASE_URL")
    said = [f"{name} is set" for name in found] + ([f"OPENAI_BASE_URL is {address}"] if address else [])
    return ok("keys", ", ".join(said) or "none is set, so a model on this machine answers")


def _local(name: str, environment: Environment) -> Finding:
    if importlib.util.find_spec("xllamacpp") is None:
        return broken("local model", "nothing here can run one", "say pip install 'atlas-agents[local]'")
    if is_path(name):
        there = os.path.isfile(os.path.expanduser(name))
        return ok("local model", name) if there else broken("local model", f"there is no file {name}", "fetch it")
    try:
        state = state_of(known(name), models_folder(environment))
    except Exception as error:  # noqa: BLE001 - an unknown name
        return broken("local model", str(error), "atlas models list shows those there are")
    if state.installed:
        return ok("local model", f"{name} is at {state.path}")
    if state.model.by_itself:
        return notice("local model", f"{name} is not here yet", "it is fetched when it is first needed")
    return broken("local model", f"{name} is not here yet, {state.model.megabytes} MB", f"say atlas models pull {name}")


def look_at_mcp(settings: Settings) -> Iterator[Finding]:
    """Which MCP servers may be used; none is started for that."""
    servers = _servers(settings)
    if servers.trouble:
        yield broken("mcp", servers.trouble, "mend that; until then no MCP server is used")
        return
    if servers.known and importlib.util.find_spec("mcp") is None:
        yield broken("mcp", "the library for MCP is not installed", "say pip install 'atlas-agents[mcp]'")
    for name, server in servers.known.items():
        state = servers.state(name)
        if state == "approved":
            yield ok("mcp", f"{name}: {len(servers.approvals[name].tools)} tools")
        elif state == "disabled":
            yield ok("mcp", f"{name} is disabled")
        else:
            yield notice("mcp", f"{name} is {state}, and not used", f"say atlas mcp approve {name}")
        try:
            server.filled(Environment())
        except ConfigError as error:
            yield broken("mcp", str(error), "set it, or take it out")


def _servers(settings: Settings) -> Servers:
    return Servers(settings.workspace, settings.home, Environment())


def look_at_plugins(settings: Settings) -> Iterator[Finding]:
    found = installed(settings)
    for plugin in found:
        if not plugin.trouble:
            continue
        words = f"{plugin.name} ({plugin.kind}) is disabled: {plugin.trouble}"
        if plugin.name in settings.disabled_plugins:
            yield notice("plugins", words, "take it out of disabled_plugins to use it again")
        else:
            yield broken("plugins", words, f"mend or remove the package {plugin.package or plugin.name}")
    if not any(plugin.trouble for plugin in found):
        yield ok("plugins", ", ".join(f"{each.name} ({each.kind})" for each in found) or "there are none")
