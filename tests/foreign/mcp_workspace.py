"""A workspace with MCP servers, and an Atlas whose agent has their tools."""

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from atlas_agents import Agent, Atlas, ToolRegistry
from atlas_agents.mcp.programs import describe_program
from atlas_agents.mcp.servers import Servers
from atlas_agents.testing import Environment, Scripted

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


def scripted_entry(folder: Path, **more: Any) -> dict[str, Any]:
    """Return the entry of a scripted server, which may write to its folder."""
    folder.mkdir(exist_ok=True)
    arguments = ["-S", str(HERE / "scripted_server.py"), str(folder)]
    return {"command": sys.executable, "args": arguments, "folders": {str(folder): "write"}, **more}


def write_config(workspace: Path, **entries: dict[str, Any]) -> Path:
    (workspace / "mcp.json").write_text(json.dumps({"mcpServers": entries}))
    return workspace


def load_servers(workspace: Path, variables: dict[str, str] | None = None) -> Servers:
    return Servers(workspace, workspace / "home", Environment(variables or {}, dotenv=None))


async def approve(servers: Servers, *names: str) -> None:
    """Approve servers with their current tools."""
    (servers.workspace / "home").mkdir(exist_ok=True)
    for name in names or tuple(servers.configs):
        server = servers.configs[name]
        program = describe_program(server, servers.environment)
        servers.approved.approve(server, await (await servers.connect(server, program)).tools(), program)
    servers.load()


def build_registry(servers: Servers) -> ToolRegistry:
    registry = ToolRegistry()
    for each in servers.approved_tools():
        registry.add(each.tool, source="mcp", namespace=each.server)
    return registry


@asynccontextmanager
async def open_atlas(
    workspace: Path,
    *,
    model: Any = None,
    variables: dict[str, str] | None = None,
    **atlas: Any,
) -> AsyncGenerator[tuple[Atlas, Servers], None]:
    """Open an Atlas with all servers of the workspace approved."""
    servers = load_servers(workspace, variables)
    try:
        await approve(servers)
        agent = Agent("assistant", model=model or Scripted(), tools=list(build_registry(servers)))
        async with Atlas([agent], retries=(0.05, 0.1), **atlas) as opened_atlas:
            yield opened_atlas, servers
    finally:
        await servers.close()


def recorded_calls(folder: Path) -> list[str]:
    """Return the calls that the scripted server received."""
    path = folder / "acts"
    return path.read_text().splitlines() if path.exists() else []


def server_processes(folder: Path) -> list[int]:
    """Return the processes of a scripted server, also those in a sandbox that counts them differently."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"scripted_server.py\0{folder}\0".encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found
