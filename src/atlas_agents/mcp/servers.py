"""MCP servers of a workspace, and the tools of the approved ones."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from atlas_agents.builtin_tools.sandbox import SandboxKind, describe_sandbox
from atlas_agents.core import install_command
from atlas_agents.core.aio import BackgroundTasks, run_in_thread
from atlas_agents.core.errors import BadTool, ConfigError, ToolFailed, Transient
from atlas_agents.core.messages import Conversation
from atlas_agents.core.paths import SettingLookup, read_json
from atlas_agents.mcp import config, programs
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Tool

if TYPE_CHECKING:
    from atlas_agents.mcp.client import McpConnection

logger = logging.getLogger(__name__)
OnLoginEnd: TypeAlias = Callable[[str], Awaitable[None]]
"""Called with the reason why a login failed; empty if it succeeded."""
OnLoginUrl: TypeAlias = Callable[[str], object]
"""Called with a further URL that the person must open, if a server asks again in one login."""
_CLIENT_MODULE = "atlas_agents.mcp.client"


class ServerTool(msgspec.Struct, frozen=True):
    """A server's tool, ready to be given to agents."""

    server: str
    tool: Tool


class Servers:
    """The servers in a workspace's `mcp.json`, with the approvals in a home folder. A server starts on first use."""

    def __init__(
        self,
        workspace: Path,
        home: Path,
        environment: SettingLookup,
        sandbox: SandboxKind = "auto",
    ) -> None:
        self.workspace = workspace
        self.sandbox: SandboxKind = sandbox
        self.approved = config.ApprovedServers(home)
        self.configs: dict[str, config.ServerConfig] = {}
        self.approvals: dict[str, config.Approval] = {}
        self.config_error = ""
        """The error in an invalid configuration; then no server is used."""
        self.environment = config.StoredSecrets(home, environment)
        self._connections: dict[str, tuple[config.ServerConfig, config.ServerProgram | None, McpConnection]] = {}
        self._loading = asyncio.Lock()
        self._logins: dict[str, asyncio.Task[None]] = {}
        self._login_errors: dict[str, str] = {}
        self._login_urls: dict[str, str] = {}
        self._tasks = BackgroundTasks("MCP logins")
        self.load()

    def load(self) -> None:
        """Read the configuration and the approvals again."""
        try:
            self.configs, self.approvals, self.config_error = (
                config.read_servers(self.workspace),
                self.approved.read(self.workspace),
                "",
            )
        except ConfigError as error:
            self.configs, self.approvals, self.config_error = {}, {}, str(error)
            logger.warning("MCP servers disabled: error=%s", error)

    def stamp(self) -> tuple[config.Stamp, ...]:
        """Return stamps that change when the configuration, the approvals or the program of a server change."""
        files = [self.workspace / config.FILE_NAME, self.approved.path, *self.program_paths()]
        return tuple(map(config.file_stamp, files))

    def program_paths(self) -> list[str]:
        """Return the files and the folders of packages that approved servers run. Agents must not change them."""
        return [path for name, each in self.approvals.items() if name in self.configs for path in each.program.paths]

    def state(self, name: str) -> str:
        """Return the state of a server: approved, or the reason why it may not be used."""
        server, approval = self.configs[name], self.approvals.get(name)
        if server.entry.disabled:
            return "disabled"
        if approval is None:
            return "not approved"
        return "changed since it was approved" if self.changes(name) else "approved"

    def changes(self, name: str) -> list[str]:
        """Return the changes of a server since its approval: its entry, or files that it runs."""
        server, approval = self.configs[name], self.approvals[name]
        if not approval.covers(server):
            return [f"its entry in {config.FILE_NAME}"]
        try:
            return approval.program.changes(programs.describe_program(server, self.environment))
        except ConfigError as error:
            return [str(error)] if "is not set" not in str(error) else []  # starting it reports the variable

    async def check(self, server: config.ServerConfig) -> None:
        """Check again before a call that the server is still configured and approved: an agent may hold an old tool."""
        state = await run_in_thread(self.state, server.name) if self.configs.get(server.name) == server else "removed"
        if state != "approved":
            reason = (
                f": it is {state}; to review it, run: atlas mcp approve {server.name}" if state != "removed" else ""
            )
            raise ToolFailed(f"tools of the MCP server {server.name} may no longer be used{reason}")

    def connection_error(self, name: str) -> str:
        """Return the last connection error of a server; empty if it was reached or not needed yet."""
        found = self._connections.get(name)
        return self._login_errors.get(name) or (found[2].login_error or found[2].error if found is not None else "")

    def approved_tools(self) -> list[ServerTool]:
        """Return the tools of all usable servers, as approved."""
        found: list[ServerTool] = []
        for name, server in self.configs.items():
            if self.state(name) == "approved":
                found += [
                    ServerTool(name, tool) for each in self.approvals[name].tools if (tool := self._tool(server, each))
                ]
        return found

    async def connect(
        self, server: config.ServerConfig, program: config.ServerProgram | None = None
    ) -> "McpConnection":
        """Return the connection to a server, approved or not; an edited server gets a new one.

        It starts only this program; by default, the approved one.
        """
        approval = self.approvals.get(server.name)
        if program is None and approval is not None and approval.covers(server):
            program = approval.program
        async with self._loading:
            old = self._connections.get(server.name)
            if old is not None and old[:2] == (server, program):
                return old[2]
            if old is not None:
                await old[2].close()
            try:
                module = await asyncio.to_thread(import_module, _CLIENT_MODULE)
            except ModuleNotFoundError as error:
                raise ConfigError(f"MCP servers need an extra; run: {install_command('mcp')}") from error
            made: McpConnection = module.McpConnection(
                server,
                self.environment,
                self.approved.folder,
                program=program,
                sandbox=self.sandbox,
            )
            self._connections[server.name] = server, program, made
            return made

    def is_connected(self, name: str) -> bool:
        """Return whether a server is running, or reachable at its URL, right now."""
        found = self._connections.get(name)
        return found is not None and found[2].connected

    async def disconnect(self, name: str) -> None:
        """Close the connection to a server; the next use opens a new one."""
        found = self._connections.pop(name, None)
        if found is not None:
            await found[2].close()

    def is_logging_in(self, name: str) -> bool:
        return name in self._logins and not (self._logins[name].done() or self.login_failed(name))

    def login_failed(self, name: str) -> bool:
        """Return whether the last login to a server failed."""
        return name in self._login_errors

    def has_login(self, name: str) -> bool:
        """Return whether tokens of a login are stored."""
        try:
            return bool((read_json(self._login_path(name), dict[str, Any]) or {}).get("tokens"))
        except ConfigError:
            return False

    def login_url(self, name: str) -> str:
        """Return the URL that a person must open now; empty if no login is running."""
        return self._login_urls.get(name, "") if self.is_logging_in(name) else ""

    async def start_login(
        self, server: config.ServerConfig, on_end: OnLoginEnd | None = None, on_url: OnLoginUrl | None = None
    ) -> str:
        """Begin to log in to a server and return the URL that a person must open; empty if no login is needed.

        `on_url` is called with each further URL, and `on_end` at the end, with the error if the login failed.
        """
        if not server.entry.url:
            raise ConfigError(f"{server.name} is started by a command and has no login")
        await self.cancel_login(server.name)
        found: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = self._logins[server.name] = self._tasks.spawn(
            self._log_in(server, self._show_urls(server.name, found, on_url), on_end)
        )
        await asyncio.wait((task, found), return_when=asyncio.FIRST_COMPLETED)
        if found.done():
            return found.result()
        task.result()
        return ""

    async def wait_for_login(self, name: str) -> None:
        """Wait until a login that was started has ended; raise if it failed."""
        await self._logins[name]

    async def cancel_login(self, name: str) -> None:
        """Stop waiting for a person to log in."""
        self._login_errors.pop(name, None)
        task = self._logins.pop(name, None)
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def log_out(self, name: str) -> None:
        """Delete the tokens of a login."""
        await self.cancel_login(name)
        self._login_path(name).unlink(missing_ok=True)
        await self.disconnect(name)

    def _login_path(self, name: str) -> Path:
        return self.approved.folder / f"login-{name}.json"

    def _show_urls(self, name: str, first: "asyncio.Future[str]", on_url: OnLoginUrl | None) -> OnLoginUrl:
        def show(address: str) -> None:
            self._login_urls[name] = address
            if not first.done():
                first.set_result(address)
            elif on_url is not None:
                on_url(address)

        self._login_urls.pop(name, None)
        return show

    async def _log_in(self, server: config.ServerConfig, show: OnLoginUrl, on_end: OnLoginEnd | None) -> None:
        try:
            await self._exchange_login(server, show)
        except (ConfigError, Transient) as error:
            self._login_errors[server.name] = str(error).removeprefix(f"the MCP server {server.name} is unreachable: ")
            if on_end is None or server.name not in self._login_urls:
                raise
        if on_end is not None and server.name in self._login_urls:
            await on_end(self._login_errors.get(server.name, ""))

    async def _exchange_login(self, server: config.ServerConfig, show: OnLoginUrl) -> None:
        from atlas_agents.mcp.client import McpConnection
        from atlas_agents.mcp.transports import LOGIN_TIMEOUT, interactive_login

        folder, entry = self.approved.folder, server.expanded(self.environment)
        async with interactive_login(server.name, entry, folder, show) as auth:
            connection = McpConnection(server, self.environment, folder, auth=auth, connect_timeout=LOGIN_TIMEOUT)
            try:
                await connection.tools()
            finally:
                await connection.close()
        await self.disconnect(server.name)

    async def close_unused(self) -> None:
        """Close connections to servers that may no longer be used."""
        for name, (server, _, connection) in list(self._connections.items()):
            if self.configs.get(name) != server or await run_in_thread(self.state, name) != "approved":
                del self._connections[name]
                await connection.close()

    async def close(self) -> None:
        await self._tasks.close()
        connections = [connection for _, _, connection in self._connections.values()]
        self._connections.clear()
        await asyncio.gather(*(connection.close() for connection in connections))

    def _tool(self, server: config.ServerConfig, found: config.DiscoveredTool) -> Tool | None:
        try:
            return wrap_tool(server, found, self)
        except BadTool as error:
            logger.warning("MCP tool skipped: server=%s error=%s", server.name, error)
            return None


async def describe_start(servers: Servers, server: config.ServerConfig, program: config.ServerProgram) -> list[str]:
    """Describe for a person, line by line, which files a server runs and which resources it can access."""
    if server.entry.url:
        return []
    sandbox = await programs.choose_sandbox(server, servers.sandbox)
    read, write = programs.granted_folders(server, servers.environment)
    folder = write[0] if write else "a private folder of its own"
    lines = [*describe_sandbox(sandbox, "server", folder, network=server.entry.network).splitlines()]
    lines += [f"can read {path}" for path in read] if sandbox.confines else []
    lines += [f"loads code from {path}" if path.endswith("/") else f"runs {path}" for path in program.files]
    lines += [f"downloads its package when it starts; {pin}"] if (pin := _unpinned(server)) else []
    return [config.reveal_invisible(line) for line in lines]


def _unpinned(server: config.ServerConfig) -> str:
    """Return the advice to pin the version of a package that `npx` or `uvx` downloads; empty if it is pinned."""
    signs = {"npx": "@", "bunx": "@", "pnpx": "@", "uvx": "==", "pipx": "=="}
    sign = signs.get(Path(server.entry.command).name)
    package = next((word for word in server.entry.args if not word.startswith("-") and word != "run"), "")
    if sign is None or not package or sign in package[1:]:
        return ""
    return f"name a version, such as {package}{sign}1.2.3, to run only what you approved"


def wrap_tool(server: config.ServerConfig, found: config.DiscoveredTool, servers: Servers) -> Tool:
    """Wrap a server's tool: unsafe and subject to approval, unless the owner configured otherwise. The server's claims
    about effects are ignored."""

    async def call(_arguments_: dict[str, Any], _context_: ToolContext) -> Any:
        await servers.check(server)
        connection = await servers.connect(server)
        return await connection.call(found, _arguments_, _context_)

    def has_other_sources(arguments: dict[str, Any], conversation: Conversation) -> bool:
        """Return whether the session has content of others: the owner trusts the server only with its own content."""
        sources = [source for message in conversation.messages for source in message.untrusted]
        return any(not source.startswith(f"mcp: {server.name}/") for source in sources)

    pure = found.name in server.entry.pure
    return Tool(
        found.name,
        call,
        description=found.description or found.name,
        parameters=found.parameters,
        timeout=server.entry.timeout,
        confirm=server.entry.confirm and not pure,
        effect="pure" if pure else "unsafe",
        untrusted="mcp",
        sends=not pure and (True if server.entry.confirm else has_other_sources),
    )
