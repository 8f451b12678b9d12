"""All MCP servers of a workspace, and the tools of those that were approved."""

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
    """A connection, as far as this file knows one: the protocol's library is loaded with the first that is made."""

    trouble: str

    async def tools(self) -> tuple[DiscoveredTool, ...]: ...

    async def call(self, tool: DiscoveredTool, arguments: dict[str, Any], caller: Caller) -> Any: ...

    async def close(self) -> None: ...


class Offer(msgspec.Struct, frozen=True):
    """A tool of a server, as it may be handed to agents."""

    server: str
    tool: Tool


class Servers:
    """What `mcp.json` of a workspace says, as far as it was approved in a home folder. Nothing is started before the
    first call."""

    def __init__(self, workspace: Path, home: Path, environment: VariableLookup, speak: Any = None) -> None:
        self.workspace = workspace
        self.pins = ApprovedServers(home)
        self.known: dict[str, ServerConfig] = {}
        self.approvals: dict[str, Approval] = {}
        self.trouble = ""
        """Why what is written down cannot be used; then nothing of it is."""
        self._environment = environment
        self._speak = speak
        self._connections: dict[str, tuple[ServerConfig, ServerConnection]] = {}
        self._loading = asyncio.Lock()
        self.load()

    def load(self) -> None:
        """Read both files again."""
        try:
            self.known, self.approvals, self.trouble = read_servers(self.workspace), self.pins.read(), ""
        except ConfigError as error:
            self.known, self.approvals, self.trouble = {}, {}, str(error)
            logger.warning("no MCP server is used: %s", error)

    def stamp(self) -> tuple[Stamp, Stamp]:
        """Another one means that something was edited or approved."""
        return stamp_of(self.workspace / NAME), self.pins.stamp()

    def state(self, name: str) -> str:
        """Whether a server may be used: approved, or why not."""
        server, approval = self.known[name], self.approvals.get(name)
        if server.entry.disabled:
            return "disabled"
        if approval is None:
            return "not approved"
        return "approved" if approval.fits(server) else "changed since it was approved"

    def check(self, server: ServerConfig) -> None:
        """The last look before a call: an agent may still hold a tool whose server was edited or taken out."""
        known = self.known.get(server.name) == server
        if not known or self.state(server.name) != "approved":
            raise ToolFailed(f"the tools of the MCP server {server.name} may not be used any more")

    def trouble_of(self, name: str) -> str:
        """Why a server could not be reached last; nothing if it could, or was not needed yet."""
        found = self._connections.get(name)
        return found[1].trouble if found is not None else ""

    def offers(self) -> list[Offer]:
        """The tools of all servers that may be used, as they were approved."""
        found: list[Offer] = []
        for name, server in self.known.items():
            if self.state(name) == "approved":
                found += [
                    Offer(name, tool) for each in self.approvals[name].tools if (tool := self._tool(server, each))
                ]
        return found

    async def reach(self, server: ServerConfig) -> ServerConnection:
        """The connection to a server, whether it was approved or not; one that was edited is made anew."""
        async with self._loading:
            old = self._connections.get(server.name)
            if old is not None and old[0] == server:
                return old[1]
            if old is not None:
                await old[1].close()
            try:
                module = await asyncio.to_thread(import_module, _CLIENT_MODULE)
            except ModuleNotFoundError as error:
                raise ConfigError("MCP servers need an extra: pip install 'atlas-agents[mcp]'") from error
            made: ServerConnection = module.McpConnection(
                server, self._environment, self.pins.folder, speak=self._speak
            )
            self._connections[server.name] = server, made
            return made

    async def tidy(self) -> None:
        """End what may not be used any more."""
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
            logger.warning("a tool of the MCP server %s is left out: %s", server.name, error)
            return None


def as_tool(server: ServerConfig, found: DiscoveredTool, servers: Servers) -> Tool:
    """A tool under the rules of the house: unsafe, and asked about, unless the owner has written otherwise. What the
    server says of its effects is not read."""

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
