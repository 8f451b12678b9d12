"""MCP servers and the conformance suite from npm, run by Node."""

from pathlib import Path

from npm_packages import installed

_LISTED = Path(__file__).parent / "node_servers"
_SCRIPTS = {
    "everything": "@modelcontextprotocol/server-everything/dist/index.js",
    "filesystem": "@modelcontextprotocol/server-filesystem/dist/index.js",
    "conformance": "@modelcontextprotocol/conformance/dist/index.js",
}


def script(name: str) -> str:
    """Return the file that Node runs."""
    return str(installed("mcp", _LISTED) / "node_modules" / _SCRIPTS[name])
