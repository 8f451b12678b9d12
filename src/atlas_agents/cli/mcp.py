"""`atlas mcp …`: add, approve, test and remove the MCP servers of the workspace; serve agents over MCP.

Changes go through the running gateway, if there is one: it audits them and applies them at once, as for the web UI.
Otherwise the files of the workspace are changed directly.
"""

import re
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

from atlas_agents.cli.command import EXIT_FAILED, EXIT_OK, Argument, Group, JsonFlag, Option, YesFlag, command, confirm
from atlas_agents.cli.connect import GatewayCall, load_settings, running_calls
from atlas_agents.cli.output import print_json, print_table
from atlas_agents.core.errors import BadTool, ConfigError, Transient

if TYPE_CHECKING:
    from atlas_agents.mcp.config import Approval, DiscoveredTool, ServerConfig
    from atlas_agents.mcp.servers import Servers

app = Group()
_FILE = "mcp.json"
_POLL_SECONDS = 0.5
_VARIABLE_NAME = re.compile(r"[A-Z][A-Z0-9_]*")
Name = Annotated[str, Argument(metavar="SERVER", help="The name of the server in mcp.json.")]


@command(app, "list")
def list_servers(as_json: JsonFlag = False) -> None:
    """List the MCP servers of the workspace and whether they are approved."""
    from atlas_agents.mcp.config import reveal_invisible

    with running_calls() as call:
        rows = _list_stored() if call is None else _list_running(call)
    if as_json:
        print_json([dict(zip(("name", "state", "tools", "starts"), row, strict=True)) for row in rows])
        return
    lines = [(name, state, tools, reveal_invisible(starts)) for name, state, tools, starts in rows]
    print_table(("server", "state", "tools", "command or url"), lines, f"There are no servers in {_FILE}.")


def _list_stored() -> list[tuple[str, str, int, str]]:
    servers = _open_servers()
    return [
        (
            name,
            servers.state(name),
            len(servers.approvals[name].tools) if name in servers.approvals else 0,
            server.entry.text,
        )
        for name, server in servers.configs.items()
    ]


def _list_running(call: GatewayCall) -> list[tuple[str, str, int, str]]:
    return [
        (each["name"], each["state"], len(each.get("tools", ())), _entry_text(each.get("entry", {})))
        for each in _running_servers(call).values()
    ]


def _running_servers(call: GatewayCall) -> dict[str, dict[str, Any]]:
    """Return the servers of the running gateway by name; ConfigError if mcp.json is invalid."""
    found = call("mcp.servers")
    if found.get("trouble"):
        raise ConfigError(found["trouble"])
    return {each["name"]: each for each in found.get("servers", ())}


def _running_server(call: GatewayCall, name: str) -> dict[str, Any]:
    servers = _running_servers(call)
    if name not in servers:
        raise ConfigError(f"server not found: {name!r} in {_FILE}; servers: {', '.join(servers) or 'none'}")
    return servers[name]


def _entry_text(entry: dict[str, Any]) -> str:
    return entry.get("url") or " ".join([entry.get("command", ""), *entry.get("args", ())])


@command(app)
def show(server: Name) -> None:
    """Show a server's entry, its changes since the approval, and the descriptions of its approved tools."""
    from atlas_agents.mcp.config import reveal_invisible

    servers = _open_servers()
    found = _find(servers, server)
    print(f"{server}: {servers.state(server)}\n{_describe_entry(found)}")
    for change in servers.changes(server) if server in servers.approvals else ():
        print(f"    changed: {reveal_invisible(change)}")
    for tool in servers.approvals[server].tools if server in servers.approvals else ():
        print(f"\n{server}/{tool.text}")


@command(app)
async def approve(server: Name, yes: YesFlag = False) -> int:
    """Start a server, show the descriptions of its tools, and approve them if you agree.

    A server is not started and its tools are not offered to a model before you approve it. It needs a new approval
    when its entry, its program or a description changes.
    """
    from atlas_agents.mcp.config import reveal_invisible
    from atlas_agents.mcp.programs import describe_program
    from atlas_agents.mcp.servers import describe_start

    with running_calls() as call:
        if call is not None:
            return _approve_running(call, server, yes=yes)
    async with _connected_servers() as servers:
        found = _find(servers, server)
        changed = servers.changes(server) if server in servers.approvals else []
        try:
            program = describe_program(found, servers.environment)
        except ConfigError as error:
            raise Transient(f"the MCP server {server} is unreachable: {error}") from error
        print(f"Entry of {server}:\n{_describe_entry(found)}", file=sys.stderr)
        lines = await describe_start(servers, found, program)
        print("\n".join(f"    {line}" for line in lines) + "\n", file=sys.stderr)
        for change in changed:
            print(f"! Changed since it was approved: {reveal_invisible(change)}", file=sys.stderr)
        if not yes and not confirm("Start it to read the descriptions of its tools?"):
            return _not_approved()
        tools = await (await servers.connect(found, program)).tools()
        _print_tools(found, tools, servers)
        if not yes and not confirm(f"Approve these {len(tools)} tools?"):
            return _not_approved()
        if describe_program(found, servers.environment) != program:
            raise ConfigError(f"the program of {server} changed while you reviewed it; run the command again")
        servers.approved.approve(found, tools, program)
    print(f"Approved {server}. Agents that may use all tools can now use its tools.", file=sys.stderr)
    return EXIT_OK


def _approve_running(call: GatewayCall, server: str, *, yes: bool) -> int:
    """Have the running gateway start a server and approve its tools, after each was shown."""
    known = _running_server(call, server)
    shown = call("mcp.inspect", name=server)
    entry = known.get("entry", {})
    lines = [shown["command"], *(f"env {key}={value}" for key, value in entry.get("env", {}).items())]
    lines += [f"header {key}={value}" for key, value in entry.get("headers", {}).items()]
    lines += [f"logs in as the client {entry['oauth']['clientId']}"] if "oauth" in entry else []
    print(f"Entry of {server}:", *lines, *shown["details"], sep="\n    ", file=sys.stderr)
    for change in known.get("changes", ()):
        print(f"! Changed since it was approved: {change}", file=sys.stderr)
    if not yes and not confirm("Start it to read the descriptions of its tools?"):
        return _not_approved()
    found = call("mcp.inspect", name=server, program=shown["program"])
    for tool in found["tools"]:
        text = "\n".join(f"    {line}" for line in f"{tool['description']}\n{tool['schema']}".splitlines())
        print(f"{server}/{tool['name']}\n{text}\n")
        if tool.get("problem"):
            print(f"    (skipped: {tool['problem']})\n")
    if hidden := found.get("hidden"):
        print(f"! Invisible characters in: {', '.join(hidden)}. They are shown as <U+…> above.\n", file=sys.stderr)
    for change in _running_changes(found) if known.get("tools") else ():
        print(change, file=sys.stderr)
    if not yes and not confirm(f"Approve these {len(found['tools'])} tools?"):
        return _not_approved()
    tools = [{"name": tool["name"], "digest": tool["digest"]} for tool in found["tools"]]
    call("mcp.approve", name=server, program=shown["program"], tools=tools)
    print(f"Approved {server}. Agents that may use all tools can now use its tools.", file=sys.stderr)
    return EXIT_OK


def _running_changes(found: dict[str, Any]) -> list[str]:
    """List how the tools of an inspected server differ from the approved ones."""
    texts = {"new": "is new.", "changed": "has changed since it was approved."}
    return [
        *(f"{tool['name']} {texts[tool['change']]}" for tool in found["tools"] if tool["change"] in texts),
        *(f"{name} was removed." for name in found.get("removed", ())),
    ]


@command(app)
async def test(server: Name) -> int:
    """Start an approved server and compare its tools with the approved ones.

    Exit codes: 0 the tools are as approved, 1 they differ, or the server cannot be reached.
    """
    with running_calls() as call:
        count, seconds, changes = await _test_stored(server) if call is None else _test_running(call, server)
    for change in changes:
        print(change)
    print(f"{server} answered in {seconds:.1f} s: {count} tools{'' if changes else ', as approved'}.")
    return EXIT_FAILED if changes else EXIT_OK


async def _test_stored(server: str) -> tuple[int, float, list[str]]:
    """Start a server; return how many tools it has, how long it took, and how they differ from the approved ones."""
    async with _connected_servers() as servers:
        found = _find(servers, server)
        _require_approved(server, servers.state(server))
        started = time.monotonic()
        tools = await (await servers.connect(found)).tools()
        return len(tools), time.monotonic() - started, _changes(servers.approvals[server], tools)


def _test_running(call: GatewayCall, server: str) -> tuple[int, float, list[str]]:
    _require_approved(server, _running_server(call, server)["state"])
    program = call("mcp.inspect", name=server)["program"]
    started = time.monotonic()
    found = call("mcp.inspect", name=server, program=program)
    return len(found["tools"]), time.monotonic() - started, _running_changes(found)


def _require_approved(server: str, state: str) -> None:
    if state != "approved":
        raise ConfigError(f"{server} is {state}; run: atlas mcp approve {server}")


def _log_in_running(call: GatewayCall, server: str) -> None:
    """Have the running gateway log in, and wait for its outcome."""
    _running_server(call, server)
    if url := call("mcp.login", name=server)["url"]:
        _print_login_url(url)
    shown = url
    while (found := _running_server(call, server)).get("status") == "signing-in":
        if (now := found.get("loginUrl", shown)) != shown:
            _print_login_url(shown := now)
        time.sleep(_POLL_SECONDS)
    if url and (found.get("status") == "needs-sign-in" or not found.get("hasLogin")):
        raise ConfigError(
            found.get("trouble") or f"the login to {server} was not completed; run: atlas mcp login {server}"
        )


def _print_login_url(url: str) -> None:
    print(f"Open this URL in a browser to log in:\n{url}", file=sys.stderr, flush=True)


@command(app)
async def login(server: Name) -> None:
    """Log in to a server with OAuth. Prints the URL to open."""
    with running_calls() as call:
        if call is not None:
            _log_in_running(call, server)
            print(f"Logged in to {server}.", file=sys.stderr)
            return
    async with _connected_servers() as servers:
        found = _find(servers, server)
        if url := await servers.start_login(found, on_url=_print_login_url):
            _print_login_url(url)
        await servers.wait_for_login(server)
    print(f"Logged in to {server}.", file=sys.stderr)


@command(app, unknown_options_are_arguments=True)
def add(
    server: Name,
    command: Annotated[
        list[str] | None, Argument(metavar="COMMAND", help="A URL, or the command and its arguments after --.")
    ] = None,
    url: Annotated[str | None, Option(metavar="URL", help="The URL of the server, instead of a command.")] = None,
    env: Annotated[
        list[str] | None,
        Option(metavar="NAME=VALUE", help="An environment variable for it; ${NAME} inserts one of yours."),
    ] = None,
    header: Annotated[
        list[str] | None,
        Option(metavar="NAME=VALUE", help="An HTTP header for a URL; ${NAME} inserts a variable."),
    ] = None,
    client_id: Annotated[
        str | None, Option(metavar="ID", help="The id of an OAuth client that you registered for a URL.")
    ] = None,
    client_secret: Annotated[
        str | None, Option(metavar="VARIABLE", help="The variable with the secret of that client.")
    ] = None,
    callback_port: Annotated[
        int, Option(metavar="PORT", help="The port of its redirect URI, http://127.0.0.1:PORT/callback.")
    ] = 0,
    network: Annotated[bool, Option("--network", help="Let the command use the network.")] = False,
    read: Annotated[
        list[str] | None, Option(metavar="FOLDER", help="A folder that the command may read. Repeatable.")
    ] = None,
    write: Annotated[str | None, Option(metavar="FOLDER", help="A folder that the command may change.")] = None,
) -> None:
    """Add a server to mcp.json in the workspace.

    A command runs in a sandbox: without network, and without your files except the folders that you grant.
    """
    if not command and url is None:
        raise ConfigError(f"nothing to add: pass a command, as in atlas mcp add {server} -- COMMAND, or --url URL")
    entry: dict[str, Any] = {}
    if command and command[0].startswith(("http://", "https://")):
        if len(command) > 1 or url is not None:
            raise ConfigError(f"unexpected {command[1] if len(command) > 1 else '--url'} after the URL {command[0]}")
        url = command[0]
    elif command:
        entry |= {"command": command[0], "args": command[1:]}
    if url is not None:
        entry["url"] = url
    for key, pairs in (("env", env), ("headers", header)):
        if pairs:
            entry[key] = dict(_parse_pair(pair) for pair in pairs)
    entry |= _oauth_entry(client_id, client_secret, callback_port)
    if network:
        entry["network"] = True
    if read or write:
        entry["folders"] = {**dict.fromkeys(read or (), "read"), **({write: "write"} if write else {})}
    _add_entry(server, entry)
    print(f"Added {server} to {_FILE}. To approve its tools, run: atlas mcp approve {server}", file=sys.stderr)


def _oauth_entry(client_id: str | None, client_secret: str | None, callback_port: int) -> dict[str, Any]:
    """Return the OAuth client of an entry; its secret is a reference to a variable."""
    if client_id is None and (client_secret or callback_port):
        raise ConfigError("--client-secret and --callback-port need --client-id")
    variable = (client_secret or "").removeprefix("${").removesuffix("}")
    if variable and not _VARIABLE_NAME.fullmatch(variable):
        raise ConfigError("--client-secret: expected the name of a variable, such as TRACKER_SECRET, not the secret")
    secret = f"${{{variable}}}" if variable else ""
    oauth = {"clientId": client_id, "clientSecret": secret, "callbackPort": callback_port}
    return {"oauth": {key: value for key, value in oauth.items() if value}} if client_id is not None else {}


def _add_entry(server: str, entry: dict[str, Any]) -> None:
    """Add an entry through the running gateway, or to the file; ConfigError if the name is taken."""
    exists = ConfigError(f"server {server!r} already exists; run: atlas mcp remove {server}")
    with running_calls() as call:
        if call is not None:
            if server in _running_servers(call):
                raise exists
            for warning in call("mcp.put", name=server, entry=entry).get("warnings", ()):
                print(f"! {warning}", file=sys.stderr)
            return
    servers = _open_servers()
    if server in servers.configs:
        raise exists
    _write_entry(servers, server, entry)


@command(app)
def remove(server: Name) -> None:
    """Remove a server from mcp.json, with its approval, its login and its secrets."""
    with running_calls() as call:
        if call is None:
            _remove_stored(server)
        else:
            call("mcp.remove", name=server, expected_version=_running_server(call, server).get("version"))
    print(f"Removed {server}; its tools are no longer available.", file=sys.stderr)


def _remove_stored(server: str) -> None:
    servers = _open_servers()
    found = _find(servers, server)
    _write_entry(servers, server, None)
    servers.approved.revoke(found)
    servers.environment.remove(found, servers.configs.values())
    (servers.approved.folder / f"login-{server}.json").unlink(missing_ok=True)


@command(app)
async def serve(
    agent: Annotated[str, Option("--agent", "-a", metavar="ID", help="Offer the tools of this agent.")] = "",
) -> None:
    """Run an MCP server on standard input and output.

    It forwards to the running gateway, or to one that it starts itself.
    """
    from atlas_agents.cli.mcp_bridge import run_bridge

    await run_bridge(load_settings(), agent)


def _open_servers() -> "Servers":
    """Open the servers of the workspace; raise ConfigError if mcp.json is invalid."""
    from atlas_agents.config.open import open_home
    from atlas_agents.core.paths import Environment
    from atlas_agents.mcp.servers import Servers

    settings = load_settings()
    servers = Servers(settings.workspace, open_home(settings), Environment(), sandbox=settings.sandbox)
    if servers.config_error:
        raise ConfigError(servers.config_error)
    return servers


@asynccontextmanager
async def _connected_servers() -> "AsyncGenerator[Servers, None]":
    servers = _open_servers()
    try:
        yield servers
    finally:
        await servers.close()


def _find(servers: "Servers", name: str) -> "ServerConfig":
    server = servers.configs.get(name)
    if server is None:
        known = ", ".join(servers.configs) or "none"
        raise ConfigError(f"server not found: {name!r} in {servers.workspace / _FILE}; servers: {known}")
    return server


def _describe_entry(server: "ServerConfig") -> str:
    from atlas_agents.mcp.config import mask, reveal_invisible

    entry = server.entry
    lines = [reveal_invisible(entry.text)]
    lines += [f"env {reveal_invisible(key)}={reveal_invisible(mask(value))}" for key, value in entry.env.items()]
    lines += [f"header {reveal_invisible(key)}={reveal_invisible(mask(value))}" for key, value in entry.headers.items()]
    lines += [f"logs in as the client {reveal_invisible(entry.oauth.client_id)}"] if entry.oauth else []
    lines += [f"in {reveal_invisible(entry.cwd)}"] if entry.cwd else []
    lines += [f"without side effects: {reveal_invisible(', '.join(entry.pure))}"] if entry.pure else []
    lines += [] if entry.confirm else ["calls need no approval, unless a policy requires it"]
    return "\n".join(f"    {line}" for line in lines)


def _print_tools(server: "ServerConfig", tools: "tuple[DiscoveredTool, ...]", servers: "Servers") -> None:
    """Print everything that an approval covers, on standard output so that it can be saved."""
    from atlas_agents.mcp.config import reveal_invisible, tools_with_invisible
    from atlas_agents.mcp.servers import wrap_tool

    for tool in tools:
        print(f"{server.name}/{tool.text}\n")
        try:
            wrap_tool(server, tool, servers)
        except BadTool as error:
            print(f"    (skipped: {error})\n")
    if hidden := tools_with_invisible(tools):
        names = ", ".join(map(reveal_invisible, hidden))
        print(f"! Invisible characters in: {names}. They are shown as <U+…> above.\n", file=sys.stderr)
    if (before := servers.approvals.get(server.name)) is not None:
        for change in _changes(before, tools):
            print(change, file=sys.stderr)


def _changes(approval: "Approval", tools: "tuple[DiscoveredTool, ...]") -> list[str]:
    """List how the tools of a server differ from the approved ones."""
    from atlas_agents.mcp.config import reveal_invisible

    old, new = {tool.name: tool for tool in approval.tools}, {tool.name: tool for tool in tools}
    changed = [name for name in new if name in old and new[name].digest != old[name].digest]
    return [
        *(f"{reveal_invisible(name)} is new." for name in new if name not in old),
        *(f"{reveal_invisible(name)} was removed." for name in old if name not in new),
        *(f"{reveal_invisible(name)} has changed since it was approved." for name in changed),
    ]


def _write_entry(servers: "Servers", name: str, entry: dict[str, Any] | None) -> None:
    """Write mcp.json with this entry, or without it; ConfigError if the result would be invalid.

    Secrets go to the secret file; the entry refers to them.
    """
    from atlas_agents.core.paths import write_file
    from atlas_agents.mcp.config import change_entry, extract_secrets, parse_servers

    path, secrets = servers.workspace / _FILE, dict[str, str]()
    path.parent.mkdir(parents=True, exist_ok=True)
    if entry is not None:
        extract_secrets(name, entry, {}, secrets)
    content = change_entry(path.read_bytes() if path.exists() else b"", path, name, entry)
    parse_servers(content, path)
    if secrets:
        servers.environment.put(secrets)
    write_file(path, content, mode=0o666)


def _parse_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"invalid value {text!r}: expected NAME=VALUE")
    return name, value


def _not_approved() -> int:
    print("Nothing was approved.", file=sys.stderr)
    return EXIT_FAILED
