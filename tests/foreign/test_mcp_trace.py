"""Trace context over MCP, in both directions: `_meta.traceparent` of requests that Atlas sends and receives."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_workspace import open_atlas, scripted_entry, write_config
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from atlas_agents import OpenTelemetry, ToolContext, tool
from atlas_agents.gateway.server import Gateway
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says
from checks import TIMEOUT

pytestmark = pytest.mark.slow
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TOOLS: list[dict[str, Any]] = [
    {"name": "meta", "description": "Return `_meta`.", "inputSchema": {"type": "object", "properties": {}}}
]


@pytest.mark.parametrize("recorded", [False, True])
async def test_call_of_an_mcp_server_carries_the_trace(recorded: bool, tmp_path: Path) -> None:
    folder = tmp_path / "server"
    entry = scripted_entry(folder, confirm=False)
    (folder / "tools.json").write_text(json.dumps(TOOLS))
    write_config(tmp_path, echo=entry)
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = OpenTelemetry(tracer_provider=tracers) if recorded else None
    model = Scripted(calls("echo__meta"), says("Done."))
    async with open_atlas(tmp_path, model=model, telemetry=telemetry) as (atlas, _):
        result = await atlas.run("Go", traceparent=CALLER)
    received: str = json.loads(str(result.steps[0].output))["traceparent"]
    if not recorded:
        assert received == CALLER
        return
    (call,) = [span for span in exporter.get_finished_spans() if span.name == "tools/call meta"]
    (execution,) = [span for span in exporter.get_finished_spans() if span.name.startswith("execute_tool")]
    assert call.context is not None and call.parent is not None and execution.context is not None
    assert received == f"00-{CALLER[3:35]}-{call.context.span_id:016x}-01"
    assert call.parent.span_id == execution.context.span_id
    assert dict(call.attributes or {})["atlas.mcp.server"] == "echo"


async def test_client_of_the_mcp_endpoint_gives_its_trace_to_the_tool(tmp_path: Path) -> None:
    @tool(effect="pure")
    async def look(context: ToolContext) -> str:
        """Look."""
        return context.traceparent

    atlas = in_memory_atlas(Scripted(), [look], store=MemoryStore())
    async with Gateway(atlas, GatewaySettings(home=tmp_path, port=0, grace=0)).running() as gateway:
        headers = {"Authorization": f"Bearer {gateway.hub.tokens.main.reveal()}"}
        url = f"http://127.0.0.1:{gateway.port}/mcp"
        async with (
            httpx2.AsyncClient(headers=headers, timeout=TIMEOUT) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            meta: Any = {"traceparent": CALLER}
            result: Any = await client.call_tool("look", {}, meta=meta)
    assert result.content[0].text == CALLER
