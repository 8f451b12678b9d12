"""`atlas mcp add` and `atlas mcp remove`: the file of the servers, edited."""

import json
import sys
from pathlib import Path
from typing import Any

from atlas_agents.cli import options as given
from atlas_agents.cli.border import guarded, quiet
from atlas_agents.cli.mcp import opened, the
from atlas_agents.core.errors import ConfigError
from atlas_agents.mcp.config import NAME, read_servers


def add_server(name: str, command: list[str], url: str | None, env: list[str], headers: list[str]) -> int:
    def work() -> None:
        workspace = given.settings().workspace
        if name in read_servers(workspace):
            raise ConfigError(f"there is a server {name!r} already: remove it first")
        entry: dict[str, Any] = {}
        if command:
            entry |= {"command": command[0], "args": command[1:]}
        if url is not None:
            entry["url"] = url
        for key, pairs in (("env", env), ("headers", headers)):
            if pairs:
                entry[key] = dict(_pair(pair) for pair in pairs)
        _change(workspace, name, entry)
        print(f"{name} is in {workspace / NAME}. Allow its tools with: atlas mcp approve {name}", file=sys.stderr)

    quiet()
    return guarded(work)


def remove_server(name: str) -> int:
    def work() -> None:
        servers = opened()
        the(servers, name)
        _change(servers.workspace, name, None)
        servers.pins.forget(name)
        (servers.pins.folder / f"login-{name}.json").unlink(missing_ok=True)
        print(f"{name} is taken out; nothing of it may be used any more.", file=sys.stderr)

    quiet()
    return guarded(work)


def _change(workspace: Path, name: str, entry: dict[str, Any] | None) -> None:
    """Write the file with this entry, or without one; as it was, if it could not be read then."""
    path = workspace / NAME
    before = path.read_text(encoding="utf-8") if path.exists() else None
    data: dict[str, Any] = json.loads(before.removeprefix("\ufeff")) if before else {}
    servers: dict[str, Any] = data.setdefault("mcpServers", {})
    servers.pop(name, None)
    if entry is not None:
        servers[name] = entry
    workspace.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{NAME}.new")
    fresh.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    fresh.replace(path)
    try:
        read_servers(workspace)
    except ConfigError:
        if before is None:
            path.unlink()
        else:
            path.write_text(before, encoding="utf-8")
        raise


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"{text!r}: write NAME=VALUE")
    return name, value
