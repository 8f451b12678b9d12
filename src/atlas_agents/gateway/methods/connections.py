"""Methods `mcp.*` and `channels.*`: MCP servers of the workspace, and channels that people use.

Nothing starts before a person has seen exactly what would run, and no tool is offered before it was approved.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.core.aio import run_in_thread
from atlas_agents.core.errors import BadTool, ConfigError, Transient
from atlas_agents.core.paths import Secret
from atlas_agents.core.text import list_known
from atlas_agents.gateway.connection import ClientConnection
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.edits import EditTarget, FileEdit, describe_change, unified_diff, version_of
from atlas_agents.gateway.hub import ChannelPort
from atlas_agents.gateway.protocol import admin as wire
from atlas_agents.gateway.protocol.events import ResourceUpdated
from atlas_agents.gateway.protocol.frames import ProtocolError
from atlas_agents.gateway.protocol.types import Ack, EditStamp, NoParams, RemovalResult
from atlas_agents.mcp import config
from atlas_agents.mcp.programs import describe_program
from atlas_agents.mcp.servers import Servers, describe_start, wrap_tool
from atlas_agents.tools.redact import find_stored_secrets

_STATES: dict[str, wire.McpStatus] = {"disabled": "disabled", "not approved": "not-approved"}
_LOGIN = "requires a login"


def _well_known(name: str, title: str, description: str, *needs: str, **entry: Any) -> wire.McpCatalogEntry:
    return wire.McpCatalogEntry(name, title, wire.McpEntryShape(description=description, **entry), needs)


CATALOG = (
    _well_known("time", "Time", "Time zones and time calculations.", command="uvx", args=("mcp-server-time",)),
    _well_known("fetch", "Fetch", "Reads web pages.", command="uvx", args=("mcp-server-fetch",), network=True),
    _well_known(
        "files",
        "Files",
        "Reads and writes files in one folder.",
        "folders",
        command="npx",
        args=("-y", "@modelcontextprotocol/server-filesystem", "."),
    ),
    _well_known("git", "Git", "Reads a Git repository.", "folders", command="uvx", args=("mcp-server-git",)),
    _well_known(
        "playwright",
        "Playwright",
        "Controls a web browser.",
        command="npx",
        args=("-y", "@playwright/mcp"),
        network=True,
    ),
    _well_known(
        "github",
        "GitHub",
        "Repositories, issues and pull requests.",
        "headers",
        url="https://api.githubcopilot.com/mcp/",
        headers={"Authorization": ""},
    ),
    _well_known("linear", "Linear", "Issues and projects.", url="https://mcp.linear.app/mcp"),
    _well_known("notion", "Notion", "Pages and databases.", url="https://mcp.notion.com/mcp"),
    _well_known("sentry", "Sentry", "Errors and releases.", url="https://mcp.sentry.dev/mcp"),
)
"""Well-known servers, offered as suggestions. Their programs are shown and approved like those of any other server."""


def add_methods(methods: Methods) -> None:
    methods.add("mcp.servers", list_servers)
    methods.add("mcp.catalog", list_catalog)
    methods.add("mcp.put", put_server)
    methods.add("mcp.remove", remove_server)
    methods.add("mcp.inspect", inspect_server)
    methods.add("mcp.approve", approve_server)
    methods.add("mcp.login", log_in)
    methods.add("mcp.logout", log_out)
    methods.add("channels.list", list_channels)
    methods.add("channels.put", put_channel)
    methods.add("channels.test", test_channel)
    methods.add("channels.pair", pair_person)
    methods.add("channels.unpair", unpair_person)


async def list_servers(caller: ClientConnection, _: NoParams) -> wire.McpServersResult:
    servers = caller.hub.services.servers
    if servers is None:
        return wire.McpServersResult()
    if caller.grant.allows("admin"):  # who may have just edited the file
        await caller.hub.services.refresh_servers()
    shapes = [await _server_shape(caller, servers, name) for name in servers.configs]
    return wire.McpServersResult(tuple(shapes), servers.config_error)


async def list_catalog(caller: ClientConnection, _: NoParams) -> wire.McpCatalog:
    return wire.McpCatalog(CATALOG)


async def put_server(caller: ClientConnection, params: wire.McpPut) -> wire.McpServerResult:
    """Write the entry of a server to `mcp.json`. Secrets go to the secret file; the entry refers to them."""
    servers = _require_servers(caller)
    path, name = servers.workspace / config.FILE_NAME, params.name
    secrets: dict[str, str] = {}

    def change(content: bytes) -> bytes:
        before = config.raw_entry(content, path, name) or {}
        return config.change_entry(content, path, name, _merge_entry(name, before, params.entry, secrets))

    edit = FileEdit(
        kind="mcp",
        id=name,
        path=path,
        section=lambda content: _section(content, path, name),
        change=change,
        check=lambda content: _check_entry(content, path, name, servers, secrets),
        value=lambda content: _entry_value(content, path, name),
        apply=caller.hub.services.reload_servers,
        expected_version=params.expected_version,
        dry_run=True,
    )
    by, edits = caller.grant.principal.id, caller.hub.edits
    edited = await edits.edit_file(edit, by, scope="admin")
    if params.dry_run:
        return wire.McpServerResult(diff=edited.diff, warnings=edited.warnings)
    if secrets:
        async with edits.exclusive():  # the secret file has other writers
            await run_in_thread(servers.environment.put, secrets)
        caller.hub.atlas.keep_secret(*map(Secret, find_stored_secrets(secrets)))
    edited = await edits.edit_file(msgspec.structs.replace(edit, dry_run=False), by, scope="admin")
    shape = await _server_shape(caller, servers, name)
    return wire.McpServerResult(server=shape, diff=edited.diff, warnings=edited.warnings)


async def remove_server(caller: ClientConnection, params: wire.McpRemove) -> wire.McpServerResult:
    servers = _require_servers(caller)
    server, path = _find_server(servers, params.name), servers.workspace / config.FILE_NAME
    edit = FileEdit(
        kind="mcp",
        id=server.name,
        path=path,
        section=lambda content: _section(content, path, server.name),
        change=lambda content: config.change_entry(content, path, server.name, None),
        check=lambda content: (),
        value=lambda content: _entry_value(content, path, server.name),
        apply=caller.hub.services.reload_servers,
        expected_version=params.expected_version,
        dry_run=params.dry_run,
    )
    edited = await caller.hub.edits.edit_file(edit, caller.grant.principal.id, scope="admin")
    if params.dry_run:
        return wire.McpServerResult(diff=edited.diff, warnings=_describe_loss(caller, servers, server.name))
    await servers.log_out(server.name)
    await run_in_thread(servers.approved.revoke, server)
    async with caller.hub.edits.exclusive():
        await run_in_thread(servers.environment.remove, server, servers.configs.values())
    return wire.McpServerResult(diff=edited.diff)


async def inspect_server(caller: ClientConnection, params: wire.McpInspect) -> wire.McpInspection:
    """Describe the program of a server; if the caller has seen exactly this program, start it and list its tools."""
    servers = _require_servers(caller)
    server = _find_server(servers, params.name)
    program, id = await _describe_program(servers, server)
    details = await describe_start(servers, server, program)
    shown = wire.McpInspection(server.name, config.reveal_invisible(server.entry.text), tuple(details), id)
    if params.program is None:
        return shown
    _require_shown(server.name, id, params.program)
    tools = await _start_and_list(caller, servers, server, program, "mcp-start")
    if await run_in_thread(servers.state, server.name) != "approved":
        await servers.disconnect(server.name)
    approval = servers.approvals.get(server.name)
    old = {tool.name: tool for tool in approval.tools} if approval is not None else {}
    return msgspec.structs.replace(
        shown,
        tools=tuple([_tool_shape(servers, server, tool, old.get(tool.name)) for tool in tools]),
        removed=tuple([name for name in old if name not in {tool.name for tool in tools}]),
        hidden=tuple(map(config.reveal_invisible, config.tools_with_invisible(tools))),
    )


async def approve_server(caller: ClientConnection, params: wire.McpApprove) -> wire.McpServerResult:
    """Approve tools of a server, if they are still exactly what the caller has seen."""
    servers = _require_servers(caller)
    server = _find_server(servers, params.name)
    program, id = await _describe_program(servers, server)
    _require_shown(server.name, id, params.program)
    tools = {tool.name: tool for tool in await _start_and_list(caller, servers, server, program, "mcp-approval")}
    for wanted in params.tools:
        if wanted.name not in tools or tools[wanted.name].digest != wanted.digest:
            raise ProtocolError("CONFLICT", f"{server.name}/{wanted.name} changed since it was shown; inspect it again")
    await run_in_thread(servers.approved.approve, server, [tools[each.name] for each in params.tools], program)
    await caller.hub.services.reload_servers()
    return wire.McpServerResult(server=await _server_shape(caller, servers, server.name))


async def log_in(caller: ClientConnection, params: wire.OneMcpServer) -> wire.McpLogin:
    """Begin to log in. The outcome is audited, and clients learn of it by the event `resource.updated`."""
    servers, edits, by = _require_servers(caller), caller.hub.edits, caller.grant.principal.id
    server = _find_server(servers, params.name)

    async def on_end(problem: str) -> None:
        async def write() -> str | None:
            if problem:
                raise ConfigError(problem)
            return "stored"

        try:
            await edits.apply(EditTarget("mcp-login", server.name, None), by, write, scope="admin")
        except ConfigError:  # audited; the server's shape has the problem
            edits.notify(ResourceUpdated("mcp-login", server.name, None, by), "admin")

    def on_url(_: str) -> None:
        edits.notify(ResourceUpdated("mcp-login", server.name, None, by), "admin")

    return wire.McpLogin(await servers.start_login(server, on_end, on_url))


async def log_out(caller: ClientConnection, params: wire.OneMcpServer) -> Ack:
    servers = _require_servers(caller)
    name = _find_server(servers, params.name).name

    async def write() -> str | None:
        await servers.log_out(name)
        return None

    await caller.hub.edits.apply(EditTarget("mcp-login", name, "stored"), caller.grant.principal.id, write)
    return Ack(True)


async def list_channels(caller: ClientConnection, _: NoParams) -> wire.ChannelsResult:
    telegram = caller.hub.services.telegram
    return wire.ChannelsResult((await telegram.status(),) if telegram is not None else ())


async def put_channel(caller: ClientConnection, params: wire.ChannelsPut) -> wire.ChannelResult:
    telegram = _require_telegram(caller)
    before = await telegram.status()
    caller.hub.atlas.keep_secret(Secret(params.token))
    diff, warnings = await _describe_bot_change(telegram, before, params.token)
    if params.dry_run:
        return wire.ChannelResult(before, diff, warnings)

    async def write() -> str | None:
        await telegram.set_token(params.token)
        return "stored" if params.token else None

    async with caller.hub.edits.exclusive():
        await _apply(caller, EditTarget("channel", params.id, before.source or None), write, diff)
    return wire.ChannelResult(await telegram.status(), diff, warnings)


async def _describe_bot_change(
    telegram: ChannelPort, before: wire.ChannelShape, token: str
) -> tuple[str, tuple[str, ...]]:
    """Describe the change to another bot token, without the token; ConfigError if the token does not work."""
    tested = await telegram.test(token) if token else wire.ChannelTested(True)
    if not tested.ok:
        raise ConfigError(tested.error)
    old, new = ({"bot": f"@{bot}" if bot else "none"} for bot in (before.bot, tested.bot))
    people = ", ".join([person.name for person in before.paired])
    warnings = (f"{people} can no longer chat with your agents",) if people and not token else ()
    return describe_change(old, new, "channel telegram"), warnings


async def test_channel(caller: ClientConnection, params: wire.ChannelsTest) -> wire.ChannelTested:
    return await _require_telegram(caller).test(params.token)


async def pair_person(caller: ClientConnection, params: wire.ChannelsPair) -> wire.PersonResult:
    telegram, paired = _require_telegram(caller), wire.PairedPerson("", "")

    async def write() -> str | None:
        nonlocal paired
        paired = await telegram.pair(params.code)
        return paired.id

    await _apply(caller, EditTarget("channel-person", params.id, None), write)
    return wire.PersonResult(paired)


async def unpair_person(caller: ClientConnection, params: wire.ChannelsUnpair) -> RemovalResult:
    telegram = _require_telegram(caller)
    person = next((each for each in (await telegram.status()).paired if each.id == params.person), None)
    diff = describe_change(person and {"name": person.name}, None, f"person {params.person}")
    if params.dry_run:
        if person is None:
            raise ProtocolError("INVALID_PARAMS", f"not found: person {params.person!r}")
        return RemovalResult(True, diff, (f"{person.name} can no longer chat with your agents",))

    async def write() -> str | None:
        await telegram.unpair(params.person)
        return None

    await _apply(caller, EditTarget("channel-person", params.person, params.person), write, diff)
    return RemovalResult(True, diff)


async def _apply(
    caller: ClientConnection, target: EditTarget, write: Callable[[], Awaitable[str | None]], diff: str = ""
) -> None:
    await caller.hub.edits.apply(target, caller.grant.principal.id, write, diff=diff, scope="admin")


def _require_telegram(caller: ClientConnection) -> ChannelPort:
    if caller.hub.services.telegram is None:
        raise ProtocolError("UNAVAILABLE", "this gateway has no channels")
    return caller.hub.services.telegram


def _require_servers(caller: ClientConnection) -> Servers:
    servers = caller.hub.services.servers
    if servers is None:
        raise ProtocolError("UNAVAILABLE", "this gateway has no workspace with MCP servers")
    return servers


def _find_server(servers: Servers, name: str) -> config.ServerConfig:
    if servers.config_error:
        raise ConfigError(servers.config_error)
    server = servers.configs.get(name)
    if server is None:
        raise ProtocolError(
            "INVALID_PARAMS", f"not found: MCP server {name!r}; {list_known('servers', servers.configs)}"
        )
    return server


async def _describe_program(servers: Servers, server: config.ServerConfig) -> tuple[config.ServerProgram, str]:
    """Describe the program of a server; also return a digest of the program and of the entry."""
    program = await run_in_thread(describe_program, server, servers.environment)
    return program, version_of([server.canonical.decode(), msgspec.to_builtins(program)]) or ""


def _require_shown(name: str, now: str, shown: str) -> None:
    if now != shown:
        raise ProtocolError("CONFLICT", f"what {name} runs changed since it was shown; review it again")


async def _start_and_list(
    caller: ClientConnection,
    servers: Servers,
    server: config.ServerConfig,
    program: config.ServerProgram,
    kind: str,
) -> tuple[config.DiscoveredTool, ...]:
    """Start a server and return its tools. The audit log records the start and who requested it."""
    tools: tuple[config.DiscoveredTool, ...] = ()

    async def start() -> str | None:
        nonlocal tools
        if servers.connection_error(server.name):
            await servers.disconnect(server.name)  # do not wait for the next attempt
        try:
            tools = await (await servers.connect(server, program)).tools()
        except Transient as error:
            raise ProtocolError("UNAVAILABLE", str(error)) from error
        return version_of([tool.digest for tool in tools])

    approval = servers.approvals.get(server.name)
    before = version_of([tool.digest for tool in approval.tools]) if approval is not None else None
    target = EditTarget(kind, server.name, before)
    await caller.hub.edits.apply(target, caller.grant.principal.id, start, diff=server.entry.text, scope="admin")
    return tools


def _tool_shape(
    servers: Servers, server: config.ServerConfig, tool: config.DiscoveredTool, old: config.DiscoveredTool | None
) -> wire.McpToolShape:
    problem = ""
    try:
        wrap_tool(server, tool, servers)
    except BadTool as error:
        problem = str(error)
    schema = msgspec.json.format(msgspec.json.encode(tool.parameters, order="sorted"), indent=2).decode()
    name, description, schema = map(config.reveal_invisible, (tool.name, tool.description, schema))
    change = "new" if old is None else "same" if old.digest == tool.digest else "changed"
    diff = unified_diff(old.text, tool.text, tool.name) if old is not None and change == "changed" else ""
    return wire.McpToolShape(name, description, schema, tool.digest, change, diff, problem)


async def _server_shape(caller: ClientConnection, servers: Servers, name: str) -> wire.McpServerShape:
    state = await run_in_thread(servers.state, name)
    approval = servers.approvals.get(name)
    tools = tuple([f"{name}/{tool.name}" for tool in approval.tools]) if approval is not None else ()
    error = servers.connection_error(name)
    shape = wire.McpServerShape(name, state, tools, error, _status(servers, name, state, error))
    if not caller.grant.allows("admin"):
        return shape
    changes: list[str] = await run_in_thread(servers.changes, name) if approval is not None else []
    path = servers.workspace / config.FILE_NAME
    content = await run_in_thread(_read, path)
    section = _section(content, path, name)
    stamp: EditStamp = await caller.hub.edits.stamp("mcp", name, version_of(section))
    return msgspec.structs.replace(
        shape,
        changes=tuple(changes) if state != "approved" else (),
        agents=tuple(_agents_with_tools(caller, name)),
        has_login=servers.has_login(name),
        login_url=servers.login_url(name),
        entry=_entry_shape(config.raw_entry(content, path, name) or {}),
        version=stamp.version,
        changed_by=stamp.changed_by,
        changed_at=stamp.changed_at,
    )


def _status(servers: Servers, name: str, state: str, error: str) -> wire.McpStatus:
    if servers.is_logging_in(name):
        return "signing-in"
    if _LOGIN in error or servers.login_failed(name):
        return "needs-sign-in"
    if state != "approved":
        return _STATES.get(state, "changed")
    if servers.is_connected(name):
        return "running"
    return "unreachable" if error else "ready"


def _agents_with_tools(caller: ClientConnection, name: str) -> list[str]:
    return [
        agent.id for agent in caller.hub.atlas.agents if any(tool.name.startswith(f"{name}/") for tool in agent.tools)
    ]


def _describe_loss(caller: ClientConnection, servers: Servers, name: str) -> tuple[str, ...]:
    """Describe in a sentence the tools that agents lose with a server."""
    agents, approval = len(_agents_with_tools(caller, name)), servers.approvals.get(name)
    tools = len(approval.tools) if approval is not None else 0
    if not agents or not tools:
        return ()
    return (f"{agents} agent{'s lose' if agents > 1 else ' loses'} {tools} tool{'s' if tools > 1 else ''}",)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _section(content: bytes, path: Path, name: str) -> bytes | None:
    entry = config.raw_entry(content, path, name)
    return None if entry is None else msgspec.json.encode(entry, order="sorted")


def _entry_value(content: bytes, path: Path, name: str) -> Any:
    return msgspec.to_builtins(_entry_shape(config.raw_entry(content, path, name) or {}))


def _entry_shape(entry: dict[str, Any]) -> wire.McpEntryShape:
    """Return an entry without its secrets."""
    shown = {key: value for key, value in entry.items() if key in wire.McpEntryShape.__struct_fields__}
    for key in ("env", "headers"):
        if key in shown:
            shown[key] = {name: config.mask(value) for name, value in shown[key].items()}
    if "oauth" in shown:
        shown["oauth"] = {**shown["oauth"], "clientSecret": config.mask(shown["oauth"].get("clientSecret", ""))}
    return msgspec.convert(shown, wire.McpEntryShape)


def _merge_entry(
    name: str, before: dict[str, Any], entry: wire.McpEntryShape, secrets: dict[str, str]
) -> dict[str, Any]:
    """Return the new entry: fields that clients do not know stay, and secrets become references."""
    known = wire.McpEntryShape.__struct_fields__
    merged = {key: value for key, value in before.items() if key not in known}
    written: dict[str, Any] = msgspec.to_builtins(entry)
    config.extract_secrets(name, written, before, secrets)
    return {**written, **merged}


def _check_entry(content: bytes, path: Path, name: str, servers: Servers, secrets: dict[str, str]) -> list[str]:
    """Validate the file and return the problems that will keep the server from starting."""
    server = config.parse_servers(content, path)[name]
    if secrets:
        return []
    try:
        describe_program(server, servers.environment)
    except ConfigError as error:
        return [str(error)]
    return []
