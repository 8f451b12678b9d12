"""AG-UI's own client, run by Node."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

from gateway_client import main_token

from atlas_agents.gateway.server import Gateway
from checks import TIMEOUT
from npm_packages import NODE, installed

PAGE = Path(__file__).parent / "agui_page"


async def run_page(gateway: Gateway, *steps: dict[str, Any], token: str | None = None) -> list[dict[str, Any]]:
    """Run the steps and return the events and messages of the agent after each step."""
    folder = await asyncio.to_thread(installed, "ag-ui", PAGE)
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
