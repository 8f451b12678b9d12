"""The MCP conformance suite against our server, and against our client: which of its scenarios pass stands here."""

import asyncio
import base64
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp_house import written
from node_servers import NODE, script

from atlas_agents import Image, Tool, ToolContext, ToolFailed, Usage, tool
from atlas_agents.core.approvals import Filled, Form
from atlas_agents.core.errors import ConfigError
from atlas_agents.gateway.hub import GatewayServices
from atlas_agents.gateway.mcp.resources import Resource, ResourceReader
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.mcp.client import McpConnection
from atlas_agents.mcp.config import read_servers
from atlas_agents.mcp.transports import interactive_login
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import Environment, Scripted, in_memory_atlas
from atlas_agents.workspace.skills import Prompt

pytestmark = pytest.mark.slow
SERVER = {
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
"""The others are about what this server does not offer; docs/design/mcp.md has the reasons."""
CLIENT = [
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
    """Say something."""
    return "This is a simple text response for testing."


@tool(name="test_image_content", effect="pure")
async def picture() -> Image:
    """Show a picture."""
    return Image("image/png", base64.b64encode(b"\x89PNG\r\n\x1a\n").decode())


@tool(name="test_error_handling", effect="pure")
async def failing() -> str:
    """Fail."""
    raise ToolFailed("This tool intentionally returns an error for testing")


@tool(name="test_tool_with_progress", effect="pure")
async def stepping(context: ToolContext) -> str:
    """Take steps."""
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


def conforming(home: Path) -> Gateway:
    """A gateway for the suite, which shows no token: here every request is the owner's."""

    async def nothing(_arguments_: dict[str, Any]) -> str:
        return "nothing"

    shaped = Tool("json_schema_2020_12_tool", nothing, description="Takes this.", parameters=SCHEMA, effect="pure")
    atlas = in_memory_atlas(Scripted(), [simple_text, picture, failing, stepping, shaped], store=MemoryStore())
    prompts = (
        Prompt("test_simple_prompt", "This is a simple prompt for testing.", "Simple."),
        Prompt("test_prompt_with_arguments", "Prompt with arguments: arg1='{arg1}', arg2='{arg2}'", "With two."),
    )
    services = GatewayServices(prompts=lambda: prompts, resources=TextResource())
    gateway = Gateway(atlas, GatewaySettings(home=home, port=0), services=services)
    inner, shown = gateway._app, f"Bearer {gateway.hub.tokens.main.reveal()}".encode()  # type: ignore

    async def owned(scope: Any, receive: Any, send: Any) -> None:
        await inner({**scope, "headers": [*scope["headers"], (b"authorization", shown)]}, receive, send)

    gateway._app = owned  # type: ignore
    return gateway


async def suite(*arguments: str) -> str:
    file = await asyncio.to_thread(script, "conformance")
    process = await asyncio.create_subprocess_exec(NODE, file, *arguments, stdout=-1, stderr=-2)
    out, _ = await asyncio.wait_for(process.communicate(), 55)
    return out.decode()


async def test_our_server_passes_the_scenarios_of_what_it_offers(tmp_path: Path) -> None:
    async with conforming(tmp_path).running() as gateway:
        told = await suite("server", "--url", f"http://localhost:{gateway.port}/mcp", "--suite", "all")
    passed = {line[2:].partition(":")[0] for line in told.splitlines() if line.startswith("✓ ")}
    assert passed == SERVER, told[-3000:]


async def in_a_browser(address: str) -> None:
    """What a person does who logs in: follow the address, to the page it ends at."""
    async with aiohttp.ClientSession() as browser, browser.get(address) as page:
        await page.read()


class Willing:
    """Says yes to whatever is suggested."""

    run_id = tenant_id = "r"

    def progress(self, message: str) -> None:
        """Nobody listens."""

    async def ask(self, form: Form) -> Filled:
        return Filled("accept", form.suggested)

    async def check_budget(self) -> None:
        """There is no end of it."""

    async def spend(self, model: str, usage: Usage) -> None:
        """Nobody counts."""


class Clients:
    """The suite starts a command for each scenario; the command only asks here, where everything is loaded."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._browsing: list[asyncio.Task[None]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        url = (await reader.readline()).decode().strip()
        try:
            await self._use(url)
        except Exception as error:  # noqa: BLE001 - some scenarios are to fail
            writer.write(f"{error}\n".encode())
        writer.close()

    async def _use(self, url: str) -> None:
        (server,) = read_servers(written(self._folder, s={"url": url, "timeout": 20})).values()
        async with interactive_login("s", url, self._folder, self._show) as auth:
            connection = McpConnection(server, Environment({}, dotenv=None), self._folder, auth=auth)
            try:
                for each in await connection.tools():
                    given = {name: 2 for name in each.parameters.get("properties", {})}
                    await connection.call(each, given, Willing())
            finally:
                await connection.close()

    def _show(self, address: str) -> None:
        self._browsing.append(asyncio.create_task(in_a_browser(address)))


@pytest.mark.parametrize("scenario", CLIENT)
async def test_our_client_passes(scenario: str, tmp_path: Path) -> None:
    async with await asyncio.start_server(Clients(tmp_path).serve, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        ask = tmp_path / "ask.py"
        ask.write_text(
            "import socket, sys\n"
            f"with socket.create_connection(('127.0.0.1', {port})) as line:\n"
            "    line.sendall(sys.argv[-1].encode() + b'\\n')\n"
            "    print(line.makefile().read())\n"
        )
        command = f"{sys.executable} -S {ask}"
        told = await suite("client", "--command", command, "--scenario", scenario, "-o", str(tmp_path / "out"))
    (checks,) = (tmp_path / "out").glob("**/checks.json")
    states = {check["id"]: check["status"] for check in json.loads(checks.read_text())}
    assert "FAILURE" not in states.values() and "SUCCESS" in states.values(), (states, told[-2000:])
