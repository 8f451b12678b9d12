"""A workspace with MCP servers, and a house whose agent has their tools."""

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from atlas_agents import Agent, Atlas, ToolRegistry
from atlas_agents.mcp.servers import Servers
from atlas_agents.testing import Environment, Scripted

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


def scripted(folder: Path, **more: Any) -> dict[str, Any]:
    """The entry of a server that does as it is told."""
    folder.mkdir(exist_ok=True)
    return {"command": sys.executable, "args": ["-S", str(HERE / "scripted_server.py"), str(folder)], **more}


def written(workspace: Path, **entries: dict[str, Any]) -> Path:
    (workspace / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    return workspace


def servers_of(workspace: Path, variables: dict[str, str] | None = None, sample_model: Any = None) -> Servers:
    return Servers(workspace, workspace / "home", Environment(variables or {}, dotenv=None), sample_model)


async def approve(servers: Servers, *names: str) -> None:
    """What a person does who has read everything."""
    (servers.workspace / "home").mkdir(exist_ok=True)
    for name in names or tuple(servers.configs):
        server = servers.configs[name]
        servers.approved.approve(server, await (await servers.connect(server)).tools())
    servers.load()


def registry_of(servers: Servers) -> ToolRegistry:
    registry = ToolRegistry()
    for offer in servers.approved_tools():
        registry.add(offer.tool, source="mcp", namespace=offer.server)
    return registry


@asynccontextmanager
async def opened(
    workspace: Path,
    *,
    model: Any = None,
    variables: dict[str, str] | None = None,
    sample_model: Any = None,
    **atlas: Any,
) -> AsyncGenerator[tuple[Atlas, Servers], None]:
    """A house with all servers of the workspace approved."""
    servers = servers_of(workspace, variables, sample_model)
    try:
        await approve(servers)
        agent = Agent("assistant", model=model or Scripted(), tools=list(registry_of(servers)))
        async with Atlas([agent], retries=(0.05, 0.1), **atlas) as house:
            yield house, servers
    finally:
        await servers.close()


def acts(folder: Path) -> list[str]:
    """What the scripted server did."""
    path = folder / "acts"
    return path.read_text().splitlines() if path.exists() else []
