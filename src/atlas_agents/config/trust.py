"""Trust request of a working folder: its settings in plain words, and the files that a person agrees to."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from atlas_agents.config.load import MAX_BYTES, RawSetting, from_environment, from_file
from atlas_agents.config.settings import redact_url
from atlas_agents.core import paths
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Environment, EnvironmentValue, digest, is_harmless, is_relevant, read_dotenv
from atlas_agents.core.trust import WORKSPACE_FOLDERS, Trust, read_files, workspace_files
from atlas_agents.mcp import config as mcp

_SENTENCES = {
    "home": "keep the database, tokens and approvals in {}",
    "config": "read the settings from {}",
    "folder": "let file tools, commands and code work in {}",
    "user_folders": "keep the files of other users in {}",
    "shared_folder": "let all users of the gateway work in one folder: {}",
    "bash_network": "let commands use the network: {}",
    "code_python": "run code with the program {}",
    "database_url": "store all conversations in {}",
    "redis_url": "copy the state of sessions to {}",
    "host": "listen on the address {}",
    "allowed_origins": "let pages of these sites use the gateway: {}",
    "allowed_hosts": "accept these host names: {}",
    "disabled_plugins": "turn off the plugins {}",
    "search_url": "send web searches to {}",
    "telegram_url": "send Telegram messages and the bot's token to {}",
    "x_url": "send posts and the token for X to {}",
    "embeddings_url": "send documents and memories to {} to compute embeddings",
    "fetch_hosts": "let url_fetch read these hosts of your private network: {}",
    "two_person": "require a second person for approvals: {}",
    "model": "load the model file {}",
}


class FolderRequest(msgspec.Struct, frozen=True):
    """Request of a folder for trust: its settings beyond harmless values, and the files that contain them."""

    folder: Path
    wants: tuple[str, ...]
    files: dict[str, bytes]
    workspace: Path | None = None

    @property
    def digest(self) -> str:
        """Return a digest that changes with the request."""
        return digest("\n".join((*self.wants, *map(digest, self.files.values()))).encode())

    def grant(self, trust: Trust) -> None:
        """Record that a person trusts the folder as it was when it was inspected."""
        trust.trust_folder(self.folder, self.files, self.workspace)


def inspect_folder(folder: Path) -> FolderRequest | None:
    """Return the request of a folder; None if it sets only harmless values."""
    folder = folder.absolute()
    written = _written_variables(folder / ".env")
    plain = {name: each.value for name, each in written.items() if not name.endswith("_FILE")}
    environment = Environment(plain, dotenv=None)
    given = [
        msgspec.structs.replace(each, where=written[each.name].where) for each in from_environment(environment, folder)
    ]
    named = [each for each in given if each.setting.key == "config"]
    settings_file = named[-1].path(str(named[-1].value)) if named else folder / "atlas.toml"
    settings = {each.setting.key: each for each in [*from_file(settings_file, environment), *given]}
    wants = [_describe(each) for each in settings.values() if not is_harmless(each.setting.variable, str(each.value))]
    wants += _describe_variables(written)
    workspace, policy = (_path(settings.get(key)) for key in ("workspace", "policy"))
    if workspace is not None:
        wants += _describe_workspace(workspace)
    if policy is not None:
        wants += _describe_policy(policy)
    if not wants:
        return None
    covered = [folder / ".env", settings_file, *filter(None, (policy,))]
    if workspace is not None:
        covered += workspace_files(workspace)
    return FolderRequest(folder, tuple(dict.fromkeys(wants)), read_files(covered), workspace)


def _written_variables(dotenv: Path) -> dict[str, EnvironmentValue]:
    """Return the variables of a `.env` that the environment of this process does not override."""
    outside = Environment(dotenv=None)
    return {name: value for name, value in read_dotenv(dotenv).items() if not outside.get(name)}


def _path(given: RawSetting | None) -> Path | None:
    return given.path(str(given.value)) if given is not None else None


def _describe(given: RawSetting) -> str:
    key, value = given.setting.key, given.value
    where = f"({given.where})"
    if given.setting.hides == "all":
        return f"set {given.name}, a secret {where}"
    text = ", ".join(map(str, cast(list[Any], value))) if isinstance(value, (list, tuple)) else str(value)
    if isinstance(value, bool):
        text = text.lower()
    if given.setting.takes == "a path":
        text = str(given.path(text))
    if given.setting.hides == "password":
        text = redact_url(text, "…")
    match key:
        case "sandbox" if text == "none":
            return f"run commands and code without a sandbox {where}"
        case "workspace":
            return f"take agents, prompts, skills and MCP servers from {text} {where}"
        case "policy":
            return f"decide by {text} which tools agents may use {where}"
        case _:
            return f"{_SENTENCES.get(key, f'set {key} to {{}}').format(text)} {where}"


def _describe_variables(written: Mapping[str, EnvironmentValue]) -> Iterator[str]:
    """Describe the variables of `.env` that are not settings: addresses of models, key files, folders of the user."""
    outside = Environment(dotenv=None)
    for name, found in written.items():
        where = f"({found.where})"
        if name.endswith("_BASE_URL"):
            key = f"{name.removesuffix('_BASE_URL')}_API_KEY"
            if name == "GOOGLE_BASE_URL" and not outside.secret(key) and outside.secret("GEMINI_API_KEY"):
                key = "GEMINI_API_KEY"  # the other name of that key
            condition = "" if outside.secret(key) else " if you set one"
            yield f"send model requests, with your key {key}{condition}, to {found.value} {where}"
        elif name.endswith("_FILE") and is_relevant(name):
            yield f"read {name.removesuffix('_FILE')} from the file {found.value} {where}"
        elif is_relevant(name) and not name.startswith("ATLAS_"):
            yield f"set {name} to {found.value} {where}"


def _describe_workspace(workspace: Path) -> Iterator[str]:
    found = [path for path in workspace_files(workspace) if path.exists()]
    prompts = [path.name for path in found if path.parent == workspace and path.suffix == ".md"]
    if prompts:
        yield f"define agents and instructions: {', '.join(prompts)}"
    for name in WORKSPACE_FOLDERS:
        depth = 2 if name.startswith(".") else 1  # .agents has a folder of skills
        parts = [path.relative_to(workspace / name).parts for path in found if path.is_relative_to(workspace / name)]
        inside = sorted({"/".join(each[:depth]) for each in parts})
        if inside:
            yield f"add {name}: {', '.join(inside)}"
    try:
        for server in mcp.read_servers(workspace).values():
            yield f"offer the MCP server {server.name}: {server.entry.text} (it needs its own approval)"
    except ConfigError as error:
        yield f"offer MCP servers, but {error}"


def _describe_policy(policy: Path) -> Iterator[str]:
    try:
        data = tomllib.loads(paths.read_text_file(policy, MAX_BYTES))
    except (OSError, ValueError) as error:
        yield f"use a policy that cannot be read: {error}"
        return
    tools: Any = data.get("tools")
    rows = cast(dict[str, Any], tools).items() if isinstance(tools, dict) else ()
    allowed = [name for name, cells in rows if "yes" in str(cells)]
    if allowed:
        yield f"let agents use these tools without asking: {', '.join(allowed)} ({policy})"
    if data.get("commands"):
        yield f"let bash run these commands without asking: {data['commands']} ({policy})"
    if data.get("grants"):
        yield f"grant these permissions: {data['grants']} ({policy})"
