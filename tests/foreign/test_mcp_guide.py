"""The configurations in the guide: each one lets an MCP client start Atlas or connect to it."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult
from mcp_workspace import scripted_entry, write_config

from atlas_agents.client import GatewayClient
from atlas_agents.mcp.config import read_servers
from checks import TIMEOUT, wait_until

pytestmark = pytest.mark.slow
GUIDE = (Path(__file__).parent.parent.parent / "docs/guide/mcp.md").read_text(encoding="utf-8")
BLOCKS = [json.loads(block) for block in re.findall(r"^```json.*?\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)]
ATLAS_ENTRIES = [
    servers["atlas"] for block in BLOCKS if (servers := block.get("mcpServers") or block["servers"]).get("atlas")
]
COMMANDS = [entry for entry in ATLAS_ENTRIES if "command" in entry]
ADDRESSES = [entry for entry in ATLAS_ENTRIES if "url" in entry]
BIN = Path(sys.executable).parent
AGENTS = "## assistant\n\nModel: http/rules\nDescription: Answers.\n"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment that a client passes to the command."""
    workspace = tmp_path / "home" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "AGENTS.md").write_text(AGENTS)
    own = {"ATLAS_HOME": str(tmp_path / "home"), "OPENAI_BASE_URL": "http://127.0.0.1:9/v1", "ATLAS_PORT": "0"}
    return {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path), **own} | (
        {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    )


@asynccontextmanager
async def run_gateway(env: dict[str, str], cwd: Path) -> AsyncGenerator[str, None]:
    """Run `atlas serve` and yield its URL."""
    process = await asyncio.create_subprocess_exec(BIN / "atlas", "serve", env=env, cwd=cwd, stderr=-1, stdout=-3)
    try:
        output = ""
        async with asyncio.timeout(TIMEOUT):
            while "Press Ctrl-C to stop." not in output:
                output += (await process.stderr.readline()).decode()  # type: ignore
        found = re.search(r"listening on (http://\S+)\.", output)
        assert found, output
        yield found[1]
    finally:
        process.terminate()
        await process.communicate()


def test_guide_has_an_entry_for_each_kind_of_client() -> None:
    assert len(COMMANDS) == 2 and len(ADDRESSES) == 2
    assert all(entry["command"] == "atlas" and entry["args"][:2] == ["mcp", "serve"] for entry in COMMANDS)


def test_servers_in_the_guide_are_valid(tmp_path: Path) -> None:
    (first,) = [block["mcpServers"] for block in BLOCKS if "time" in block.get("mcpServers", {})]
    assert list(read_servers(write_config(tmp_path, **first))) == ["time", "notes", "tracker"]


async def test_client_starts_the_command_in_the_guide(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = COMMANDS[1]
    command = StdioServerParameters(command=entry["command"], args=entry["args"], env=env, cwd=tmp_path)
    monkeypatch.setenv("PATH", env["PATH"])
    async with asyncio.timeout(TIMEOUT), Client(command) as client:
        assert {"current_time", "ask_assistant"} <= {tool.name for tool in (await client.list_tools()).tools}
        result = await client.call_tool("current_time", {})
        assert not result.is_error and re.search(r"\d\d:\d\d:\d\d", result.content[0].text)  # type: ignore
        wrong = await client.call_tool("current_time", {"zone": "here"})
        assert wrong.is_error


async def test_several_clients_use_a_gateway_that_notices_a_new_approval(env: dict[str, str], tmp_path: Path) -> None:
    async with run_gateway(env, tmp_path) as url:
        token = (tmp_path / "home" / "token").read_text().strip()
        for entry in ADDRESSES:
            address = entry["url"].replace("http://127.0.0.1:18789", url)
            headers = {name: value.replace("YOUR-TOKEN", token) for name, value in entry["headers"].items()}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=TIMEOUT) as http,
                Client(streamable_http_client(address, http_client=http)) as client,
            ):
                assert not (await client.call_tool("current_time", {})).is_error
        args = COMMANDS[0]["args"]
        command = StdioServerParameters(command=str(BIN / "atlas"), args=args, env=env, cwd=tmp_path)
        asked: list[str] = []

        async def allow(context: Any, params: Any) -> ElicitResult:
            asked.append(params.message)
            return ElicitResult(action="accept", content={"decision": "once"})

        async with Client(command) as one, Client(command, elicitation_callback=allow) as two:
            write_config(tmp_path / "home" / "workspace", s=scripted_entry(tmp_path / "s"))
            approving = await asyncio.create_subprocess_exec(
                BIN / "atlas", "mcp", "approve", "s", "--yes", env=env, cwd=tmp_path, stdout=-3, stderr=-3
            )
            assert await approving.wait() == 0

            async def is_listed() -> bool:
                return "s__echo" in [tool.name for tool in (await one.list_tools()).tools]

            await wait_until(is_listed, 0.1)
            output = await two.call_tool("s__echo", {"text": "through and through"})
            assert output.content[0].text == "through and through"  # type: ignore
            assert len(asked) == 1 and "s/echo" in asked[0]
        async with GatewayClient(url, token) as page:
            (server,) = (await page.call("mcp.servers"))["servers"]
            assert (server["name"], server["state"]) == ("s", "approved") and "s/echo" in server["tools"]
