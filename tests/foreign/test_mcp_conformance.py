"""The MCP conformance suite against our server and our client, with the scenarios that pass."""

import asyncio
import base64
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
from mcp_workspace import write_config
from node_servers import script

from atlas_agents import Image, Tool, ToolContext, ToolFailed, Usage, tool
from atlas_agents.core.approvals import Filled, Form
from atlas_agents.core.errors import ConfigError
from atlas_agents.gateway.hub import GatewayServices
from atlas_agents.gateway.mcp.resources import DocumentResources, Resource, ResourceReader
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.mcp.client import McpConnection
from atlas_agents.mcp.config import read_servers
from atlas_agents.mcp.transports import interactive_login
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Environment, Scripted, in_memory_atlas
from atlas_agents.workspace.skills import Prompt
from checks import TIMEOUT
from npm_packages import NODE

pytestmark = pytest.mark.slow
SERVER_SCENARIOS = {
    "server-initialize",
    "ping",
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-error",
    "tools-call-with-progress",
    "json-schema-2020-12",
    "server-sse-multiple-streams",
    "resources-list",
    "resources-read-text",
    "resources-templates-read",
    "prompts-list",
    "prompts-get-simple",
    "prompts-get-with-args",
    "dns-rebinding-protection",
}
"""The other scenarios need features that this server does not offer; see docs/design/mcp.md."""
CLIENT_SCENARIOS = [
    "initialize",
    "tools_call",
    "elicitation-sep1034-client-defaults",
    "auth/metadata-default",
    "auth/scope-from-www-authenticate",
    "auth/resource-mismatch",
]
SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}, "city": {"type": "string"}}}},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}


@tool(name="test_simple_text", effect="pure")
async def simple_text() -> str:
    """Return text."""
    return "This is a simple text response for testing."


@tool(name="test_image_content", effect="pure")
async def picture() -> Image:
    """Return an image."""
    return Image("image/png", base64.b64encode(b"\x89PNG\r\n\x1a\n").decode())


@tool(name="test_error_handling", effect="pure")
async def failing() -> str:
    """Fail."""
    raise ToolFailed("This tool intentionally returns an error for testing")


@tool(name="test_tool_with_progress", effect="pure")
async def progressing(context: ToolContext) -> str:
    """Report progress."""
    for step in (0, 50, 100):
        context.progress(str(step))
        await asyncio.sleep(0.05)
    return "done"


class TextResource:
    async def list(self, reader: ResourceReader, cursor: str = "") -> tuple[Sequence[Resource], str]:
        return [Resource("test://static-text", "static", "A text.")], ""

    async def read(self, uri: str, reader: ResourceReader) -> tuple[str, str]:
        if uri == "test://template/123/data":
            return '{"id": "123", "templateTest": true, "data": "Data for ID: 123"}', "application/json"
        if uri != "test://static-text":
            raise ConfigError("there is no such text")
        return "This is the content of the static text resource.", "text/plain"


def build_gateway(home: Path) -> Gateway:
    """Build a gateway that adds the owner's token to every request, because the suite sends none."""

    async def nothing(_arguments_: dict[str, Any]) -> str:
        return "nothing"

    shaped = Tool("json_schema_2020_12_tool", nothing, description="Takes this.", parameters=SCHEMA, effect="pure")
    atlas = in_memory_atlas(Scripted(), [simple_text, picture, failing, progressing, shaped], store=MemoryStore())
    prompts = (
        Prompt("test_simple_prompt", "This is a simple prompt for testing.", "Simple."),
        Prompt("test_prompt_with_arguments", "Prompt with arguments: arg1='{arg1}', arg2='{arg2}'", "With two."),
    )
    services = GatewayServices(prompts=lambda: prompts, resources=cast(DocumentResources, TextResource()))
    gateway = Gateway(atlas, GatewaySettings(home=home, port=0), services=services)
    inner, authorization = gateway._app, f"Bearer {gateway.hub.tokens.main.reveal()}".encode()  # type: ignore

    async def authorize(scope: Any, receive: Any, send: Any) -> None:
        await inner({**scope, "headers": [*scope["headers"], (b"authorization", authorization)]}, receive, send)

    gateway._app = authorize  # type: ignore
    return gateway


async def run_suite(*arguments: str) -> str:
    file = await asyncio.to_thread(script, "conformance")
    process = await asyncio.create_subprocess_exec(NODE, file, *arguments, stdout=-1, stderr=-2)
    out, _ = await asyncio.wait_for(process.communicate(), TIMEOUT)
    return out.decode()


async def test_server_passes_the_scenarios_of_its_features(tmp_path: Path) -> None:
    async with build_gateway(tmp_path).running() as gateway:
        output = await run_suite("server", "--url", f"http://localhost:{gateway.port}/mcp", "--suite", "all")
    passed = {line[2:].partition(":")[0] for line in output.splitlines() if line.startswith("✓ ")}
    assert passed == SERVER_SCENARIOS, output[-3000:]


async def open_in_browser(address: str) -> None:
    """Follow a login URL to its last redirect, as a browser does."""
    async with aiohttp.ClientSession() as browser, browser.get(address) as page:
        await page.read()


class AcceptingCaller:
    """Accepts every form with its defaults."""

    run_id = tenant_id = "r"

    def progress(self, message: str) -> None:
        """Ignored."""

    async def ask(self, form: Form) -> Filled:
        return Filled("accept", form.suggested)

    async def check_budget(self) -> None:
        """Unlimited."""

    async def spend(self, model: str, usage: Usage) -> None:
        """Not counted."""


class ClientServer:
    """Runs the scenarios in this process; the command that the suite starts for each one only connects here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._browsers: list[asyncio.Task[None]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        url = (await reader.readline()).decode().strip()
        try:
            await self._use(url)
        except Exception as error:  # noqa: BLE001 - some scenarios must fail
            writer.write(f"{error}\n".encode())
        writer.close()

    async def _use(self, url: str) -> None:
        (server,) = read_servers(write_config(self._folder, s={"url": url, "timeout": 120})).values()
        async with interactive_login("s", server.entry, self._folder, self._show) as auth:
            connection = McpConnection(server, Environment({}, dotenv=None), self._folder, auth=auth)
            try:
                for each in await connection.tools():
                    arguments = {name: 2 for name in each.parameters.get("properties", {})}
                    await connection.call(each, arguments, cast(ToolContext, AcceptingCaller()))
            finally:
                await connection.close()

    def _show(self, address: str) -> None:
        self._browsers.append(asyncio.create_task(open_in_browser(address)))


@pytest.mark.parametrize("scenario", CLIENT_SCENARIOS)
async def test_client_passes_scenario(scenario: str, tmp_path: Path) -> None:
    async with await asyncio.start_server(ClientServer(tmp_path).serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        ask = tmp_path / "ask.py"
        ask.write_text(
            "import socket, sys\n"
            f"with socket.create_connection(('127.0.0.1', {port})) as connection:\n"
            "    connection.sendall(sys.argv[-1].encode() + b'\\n')\n"
            "    print(connection.makefile().read())\n"
        )
        command = f"{sys.executable} -S {ask}"
        output = await run_suite("client", "--command", command, "--scenario", scenario, "-o", str(tmp_path / "out"))
    (checks,) = (tmp_path / "out").glob("**/checks.json")
    states = {check["id"]: check["status"] for check in json.loads(checks.read_text())}
    assert "FAILURE" not in states.values() and "SUCCESS" in states.values(), (states, output[-2000:])
