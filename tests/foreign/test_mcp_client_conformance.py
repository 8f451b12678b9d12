"""The MCP conformance suite against our client. `conformance-*.yaml` lists what does not pass, with the reason."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import aiohttp
import msgspec
import pytest
from mcp_workspace import HERE, write_config
from node_servers import run_suite

from atlas_agents import ToolContext, ToolFailed
from atlas_agents.core.approvals import Filled, Form
from atlas_agents.mcp.client import McpConnection
from atlas_agents.mcp.config import DiscoveredTool, read_servers
from atlas_agents.mcp.transports import interactive_login
from atlas_agents.testing import Environment

pytestmark = pytest.mark.slow
DOCUMENT = "https://conformance-test.local/client-metadata.json"
VALUES: dict[str, Any] = {"number": 2, "integer": 2, "boolean": True, "string": "text"}
ASK = """\
import json, os, socket, sys
scenario, context = (os.environ.get(f"MCP_CONFORMANCE_{name}", "") for name in ("SCENARIO", "CONTEXT"))
asked = {"scenario": scenario, "context": json.loads(context or "{}"), "url": sys.argv[-1]}
with socket.create_connection(("127.0.0.1", PORT)) as connection:
    connection.sendall(json.dumps(asked).encode() + b"\\n")
    print(connection.makefile().read())
"""
"""The command that the suite starts for each scenario."""


class Scenario(msgspec.Struct):
    """A scenario, as the suite passes it to the command."""

    scenario: str
    url: str
    context: dict[str, Any]

    @property
    def entry(self) -> dict[str, Any]:
        """The entry in mcp.json that a person would write."""
        entry: dict[str, Any] = {"url": self.url, "timeout": 120}
        if {"client_id", "client_secret"} <= self.context.keys():
            entry["oauth"] = {"clientId": self.context["client_id"], "clientSecret": "${CLIENT_SECRET}"}
        elif self.scenario == "auth/basic-cimd":
            entry["oauth"] = {"clientId": DOCUMENT}
        return entry

    def arguments(self, tool: DiscoveredTool) -> dict[str, Any]:
        """The arguments of a call: those of the suite, or any that the schema allows."""
        for call in self.context.get("toolCalls", ()):
            if call["name"] == tool.name:
                return call["arguments"]
        if tool.name == "json_schema_echo":
            return {"schema": tool.parameters}
        properties = tool.parameters.get("properties", {})
        return {name: VALUES.get(schema.get("type"), {}) for name, schema in properties.items()}


class AcceptingCaller:
    """Accepts every form with its defaults."""

    run_id = tenant_id = "r"

    def progress(self, message: str) -> None:
        """Ignored."""

    async def ask(self, form: Form) -> Filled:
        return Filled("accept", form.suggested)


class ClientServer:
    """Runs the scenarios in this process; the command that the suite starts for each one only connects here."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._browsers: list[asyncio.Task[None]] = []
        self._running = asyncio.Semaphore(4)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        scenario = msgspec.json.decode(await reader.readline(), type=Scenario)
        try:
            async with self._running:
                await self._use(scenario)
        except Exception as error:  # noqa: BLE001 - some scenarios must fail
            writer.write(f"{error}\n".encode())
        writer.close()

    async def _use(self, scenario: Scenario) -> None:
        """Log in to the server, list its tools and call each of them."""
        folder = self._folder / scenario.scenario.replace("/", "-")
        folder.mkdir()
        environment = Environment({"CLIENT_SECRET": scenario.context.get("client_secret", "")}, dotenv=None)
        (server,) = read_servers(write_config(folder, s=scenario.entry)).values()
        async with interactive_login("s", server.expanded(environment), folder, self._show) as auth:
            connection = McpConnection(server, environment, folder, auth=auth)
            try:
                for each in await connection.tools():
                    with suppress(ToolFailed):
                        await connection.call(each, scenario.arguments(each), cast(ToolContext, AcceptingCaller()))
            finally:
                await connection.close()

    def _show(self, address: str) -> None:
        self._browsers.append(asyncio.create_task(open_in_browser(address)))


async def open_in_browser(address: str) -> None:
    """Follow a login URL to its last redirect, as a browser does."""
    async with aiohttp.ClientSession() as browser, browser.get(address) as page:
        await page.read()


@pytest.mark.parametrize("scenarios", ["--requirements 2025-11-25", "--requirements 2026-07-28", "--suite backcompat"])
async def test_client_passes_all_scenarios_but_the_listed_ones(scenarios: str, tmp_path: Path) -> None:
    """The suite fails if a scenario fails that is not listed, and if a listed one passes."""
    async with await asyncio.start_server(ClientServer(tmp_path).serve, "127.0.0.1", 0) as listening:
        ask = tmp_path / "ask.py"
        ask.write_text(ASK.replace("PORT", str(listening.sockets[0].getsockname()[1])))
        version = "2025-11-25" if "suite" in scenarios else scenarios.split()[1]
        listed = str(HERE / f"conformance-{version}.yaml")
        options = (*scenarios.split(), "--expected-failures", listed, "--timeout", "120000")
        command = f"{sys.executable} -S {ask}"
        code, output = await run_suite("client", "--command", command, *options, "-o", str(tmp_path / "out"))
    assert code == 0, output.partition("=== SUITE SUMMARY ===")[2] or output[-3000:]
