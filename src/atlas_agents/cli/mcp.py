"""`atlas mcp …`: the servers of the workspace, and what their owner allows."""

import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from atlas_agents.cli import options as given
from atlas_agents.cli import show
from atlas_agents.cli.border import DONE, NO_ANSWER, confirmed, guarded, quiet, run
from atlas_agents.config.open import open_home
from atlas_agents.core.errors import BadTool, ConfigError
from atlas_agents.core.paths import Environment
from atlas_agents.mcp.config import Approval, DiscoveredTool, ServerConfig, hidden_in, shown
from atlas_agents.mcp.servers import Servers, as_tool


def list_servers(*, as_json: bool) -> int:
    def work() -> None:
        servers = opened()
        rows = [
            (name, servers.state(name), len(servers.approvals[name].tools) if name in servers.approvals else 0, server)
            for name, server in servers.known.items()
        ]
        if as_json:
            show.as_json(
                [
                    {"name": name, "state": state, "tools": tools, "starts": server.entry.text}
                    for name, state, tools, server in rows
                ]
            )
            return
        lines = [(name, state, tools, shown(server.entry.text)) for name, state, tools, server in rows]
        nothing = f"There are no servers in {servers.workspace / 'mcp.json'}."
        show.table(("server", "state", "tools", "starts"), lines, nothing)

    quiet()
    return guarded(work)


def show_server(name: str) -> int:
    def work() -> None:
        servers = opened()
        server = the(servers, name)
        print(f"{name}: {servers.state(name)}\n{_entry(server)}")
        for tool in servers.approvals[name].tools if name in servers.approvals else ():
            print(f"\n{name}/{tool.text}")

    quiet()
    return guarded(work)


def approve_server(name: str, *, yes: bool) -> int:
    async def work() -> int:
        async with _opened() as servers:
            server = the(servers, name)
            print(f"{name} is written down as:\n{_entry(server)}\n", file=sys.stderr)
            if not yes and not confirmed("Start it, to see what it says of its tools?"):
                return _nothing()
            found = await (await servers.reach(server)).tools()
            _print_all(server, found, servers)
            if not yes and not confirmed(f"Allow these {len(found)} tools?"):
                return _nothing()
            servers.pins.approve(server, found)
            print(f"{name} is approved. Agents that may use all tools have its tools now.", file=sys.stderr)
        return DONE

    quiet()
    return run(work)


def test_server(name: str) -> int:
    async def work() -> int:
        async with _opened() as servers:
            server = the(servers, name)
            if servers.state(name) != "approved":
                raise ConfigError(f"{name} is {servers.state(name)}: say atlas mcp approve {name}")
            began = time.monotonic()
            found = await (await servers.reach(server)).tools()
            took = time.monotonic() - began
            changes = _changes(servers.approvals[name], found)
        for words in changes:
            print(words)
        print(f"{name} answered within {took:.1f} s and has {len(found)} tools{'' if changes else ', as approved'}.")
        return NO_ANSWER if changes else DONE

    quiet()
    return run(work)


def log_in(name: str) -> int:
    async def work() -> None:
        async with _opened() as servers:
            server = the(servers, name)
            if not server.entry.url:
                raise ConfigError(f"{name} is started by a command: there is nothing to log in to")
            from atlas_agents.mcp.client import McpConnection
            from atlas_agents.mcp.transports import asking

            environment = Environment()
            url = server.filled(environment).url
            async with asking(name, url, servers.pins.folder, _show_address) as auth:
                connection = McpConnection(server, environment, servers.pins.folder, auth=auth)
                try:
                    found = await connection.tools()
                finally:
                    await connection.close()
            print(f"{name} is reached, and has {len(found)} tools.", file=sys.stderr)

    quiet()
    return run(work)


def opened() -> Servers:
    """The servers of the workspace; ConfigError if what is written down cannot be used."""
    settings = given.settings()
    servers = Servers(settings.workspace, open_home(settings), Environment())
    if servers.trouble:
        raise ConfigError(servers.trouble)
    return servers


def the(servers: Servers, name: str) -> ServerConfig:
    server = servers.known.get(name)
    if server is None:
        known = ", ".join(servers.known) or "none"
        raise ConfigError(f"there is no server {name!r} in {servers.workspace / 'mcp.json'}; there are: {known}")
    return server


@asynccontextmanager
async def _opened() -> AsyncGenerator[Servers, None]:
    servers = opened()
    try:
        yield servers
    finally:
        await servers.close()


def _entry(server: ServerConfig) -> str:
    entry = server.entry
    lines = [f"    {shown(entry.text)}"]
    lines += [f"    {kind} {shown(key)}={shown(value)}" for kind, values in _given(server) for key, value in values]
    lines += [f"    in {shown(entry.cwd)}"] if entry.cwd else []
    lines += [f"    without effects: {shown(', '.join(entry.pure))}"] if entry.pure else []
    lines += [] if entry.confirm else ["    nobody is asked before a call, unless a policy says so"]
    lines += [f"    may have our model speak {entry.sampling_tokens} tokens a day"] if entry.sampling_tokens else []
    return "\n".join(lines)


def _given(server: ServerConfig) -> tuple[tuple[str, list[tuple[str, str]]], ...]:
    return ("with", list(server.entry.env.items())), ("header", list(server.entry.headers.items()))


def _print_all(server: ServerConfig, found: tuple[DiscoveredTool, ...], servers: Servers) -> None:
    """Everything that an approval is for; on standard output, so that it can be kept."""
    for tool in found:
        print(f"{server.name}/{tool.text}\n")
        try:
            as_tool(server, tool, servers)
        except BadTool as error:
            print(f"    (left out: {error})\n")
    if hidden := hidden_in(found):
        names = ", ".join(map(shown, hidden))
        print(f"! Characters that are not seen are hidden in: {names}. They stand above as <U+…>.\n", file=sys.stderr)
    if (before := servers.approvals.get(server.name)) is not None:
        for words in _changes(before, found):
            print(words, file=sys.stderr)


def _changes(before: Approval, found: tuple[DiscoveredTool, ...]) -> list[str]:
    """How what a server says differs from what was approved."""
    old, new = {tool.name: tool for tool in before.tools}, {tool.name: tool for tool in found}
    words = [f"{shown(name)} is new." for name in new if name not in old]
    words += [f"{shown(name)} is gone." for name in old if name not in new]
    changed = [name for name in new if name in old and new[name].digest != old[name].digest]
    return words + [f"{shown(name)} is not described as it was when it was approved." for name in changed]


def _show_address(url: str) -> None:
    print(f"Open this in a browser, and allow it there:\n{url}", file=sys.stderr, flush=True)


def _nothing() -> int:
    print("Nothing was allowed.", file=sys.stderr)
    return NO_ANSWER
