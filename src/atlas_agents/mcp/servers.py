"""The MCP servers of a workspace, and the tools of the approved ones."""

import asyncio
import logging
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import msgspec

from atlas_agents.core.errors import BadTool, ConfigError, ToolFailed
from atlas_agents.mcp.callbacks import Caller
from atlas_agents.mcp.config import (
    NAME,
    Approval,
    ApprovedServers,
    DiscoveredTool,
    ServerConfig,
    Stamp,
    VariableLookup,
    read_servers,
    stamp_of,
)
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import Effect, Tool

logger = logging.getLogger(__name__)
_CLIENT_MODULE = "atlas_agents.mcp.client"


class ServerConnection(Protocol):
    """A connection to a server; a protocol, because the MCP SDK is imported with the first connection."""

    trouble: str

    async def tools(self) -> tuple[DiscoveredTool, ...]: ...

    async def call(self, tool: DiscoveredTool, arguments: dict[str, Any], caller: Caller) -> Any: ...

    async def close(self) -> None: ...


class Offer(msgspec.Struct, frozen=True):
    """A server's tool, ready to be given to agents."""

    server: str
    tool: Tool


class Servers:
    """The servers in a workspace's `mcp.json`, as far as approved in a home folder. A server starts on first use."""

    def __init__(self, workspace: Path, home: Path, environment: VariableLookup, speak: Any = None) -> None:
        self.workspace = workspace
        self.pins = ApprovedServers(home)
        self.known: dict[str, ServerConfig] = {}
        self.approvals: dict[str, Approval] = {}
        self.trouble = ""
        """Why the configuration is invalid; then no server is used."""
        self._environment = environment
        self._speak = speak
        self._connections: dict[str, tuple[ServerConfig, ServerConnection]] = {}
        self._loading = asyncio.Lock()
        self.load()

    def load(self) -> None:
        """Read the configuration and the approvals again."""
        try:
            self.known, self.approvals, self.trouble = read_servers(self.workspace), self.pins.read(), ""
        except ConfigError as error:
            self.known, self.approvals, self.trouble = {}, {}, str(error)
            logger.warning("MCP servers disabled: error=%s", error)

    def stamp(self) -> tuple[Stamp, Stamp]:
        """Return stamps that change when the configuration or the approvals change."""
        return stamp_of(self.workspace / NAME), self.pins.stamp()

    def state(self, name: str) -> str:
        """Return whether a server may be used: approved, or why not."""
        server, approval = self.known[name], self.approvals.get(name)
        if server.entry.disabled:
            return "disabled"
        if approval is None:
            return "not approved"
        return "approved" if approval.fits(server) else "changed since it was approved"

    def check(self, server: ServerConfig) -> None:
        """Check right before a call that the server is still configured and approved; an agent may hold an old tool."""
        known = self.known.get(server.name) == server
        if not known or self.state(server.name) != "approved":
            raise ToolFailed(f"tools of the MCP server {server.name} may no longer be used")

    def trouble_of(self, name: str) -> str:
        """Return why a server was last unreachable; empty if it was reached or not needed yet."""
        found = self._connections.get(name)
        return found[1].trouble if found is not None else ""

    def offers(self) -> list[Offer]:
        """Return the tools of all usable servers, as approved."""
        found: list[Offer] = []
        for name, server in self.known.items():
            if self.state(name) == "approved":
                found += [
                    Offer(name, tool) for each in self.approvals[name].tools if (tool := self._tool(server, each))
                ]
        return found

    async def reach(self, server: ServerConfig) -> ServerConnection:
        """Return the connection to a server, approved or not; an edited server gets a new one."""
        async with self._loading:
            old = self._connections.get(server.name)
            if old is not None and old[0] == server:
                return old[1]
            if old is not None:
                await old[1].close()
            try:
                module = await asyncio.to_thread(import_module, _CLIENT_MODULE)
            except ModuleNotFoundError as error:
                raise ConfigError("MCP servers need an extra; run: pip install 'atlas-agents[mcp]'") from error
            made: ServerConnection = module.McpConnection(
                server, self._environment, self.pins.folder, speak=self._speak
            )
            self._connections[server.name] = server, made
            return made

    async def tidy(self) -> None:
        """Close connections to servers that may no longer be used."""
        for name, (server, connection) in list(self._connections.items()):
            if self.known.get(name) != server or self.state(name) != "approved":
                del self._connections[name]
                await connection.close()

    async def close(self) -> None:
        open_ones = [connection for _, connection in self._connections.values()]
        self._connections.clear()
        await asyncio.gather(*(connection.close() for connection in open_ones))

    def _tool(self, server: ServerConfig, found: DiscoveredTool) -> Tool | None:
        try:
            return as_tool(server, found, self)
        except BadTool as error:
            logger.warning("MCP tool skipped: server=%s error=%s", server.name, error)
            return None


def as_tool(server: ServerConfig, found: DiscoveredTool, servers: Servers) -> Tool:
    """Wrap a server's tool: unsafe and subject to approval, unless the owner configured otherwise. What the server
    claims about its effects is ignored."""

    async def call(_arguments_: dict[str, Any], _context_: ToolContext) -> Any:
        servers.check(server)
        reaching = await servers.reach(server)
        return await reaching.call(found, _arguments_, _context_)

    pure = found.name in server.entry.pure
    effect: Effect = "pure" if pure else "unsafe"
    return Tool(
        found.name,
        call,
        description=found.description or found.name,
        parameters=found.parameters,
        timeout=server.entry.timeout,
        confirm=server.entry.confirm and not pure,
        effect=effect,
    )
