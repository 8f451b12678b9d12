"""MCP servers and the conformance suite from npm, run by Node."""

import asyncio
from pathlib import Path

from checks import TIMEOUT
from npm_packages import NODE, installed

_LISTED = Path(__file__).parent / "node_servers"
_SCRIPTS = {
    "everything": "@modelcontextprotocol/server-everything/dist/index.js",
    "filesystem": "@modelcontextprotocol/server-filesystem/dist/index.js",
    "conformance": "@modelcontextprotocol/conformance/dist/index.js",
}


def script(name: str) -> str:
    """Return the file that Node runs."""
    return str(installed("mcp", _LISTED) / "node_modules" / _SCRIPTS[name])


async def run_suite(*arguments: str) -> tuple[int | None, str]:
    """Run the conformance suite and return its exit code and its output."""
    file = await asyncio.to_thread(script, "conformance")
    process = await asyncio.create_subprocess_exec(NODE, file, *arguments, stdout=-1, stderr=-2)
    out, _ = await asyncio.wait_for(process.communicate(), 2 * TIMEOUT)
    return process.returncode, out.decode()
