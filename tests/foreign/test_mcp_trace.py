"""Trace context over MCP, in both directions: in `_meta` of requests, and in the headers of those that Atlas sends."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
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
STATE = "vendor=t61rcWkgMzE,other@tenant=1"
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
        result = await atlas.run("Go", traceparent=CALLER, tracestate=STATE)
    meta: dict[str, str] = json.loads(str(result.steps[0].output))
    received = meta["traceparent"]
    assert meta["tracestate"] == STATE
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
        return f"{context.traceparent} {context.tracestate}"

    atlas = in_memory_atlas(Scripted(), [look], store=MemoryStore())
    async with Gateway(atlas, GatewaySettings(home=tmp_path, port=0, grace=0)).running() as gateway:
        headers = {"Authorization": f"Bearer {gateway.hub.tokens.main.reveal()}"}
        url = f"http://127.0.0.1:{gateway.port}/mcp"
        async with (
            httpx2.AsyncClient(headers=headers, timeout=TIMEOUT) as http,
            Client(streamable_http_client(url, http_client=http)) as client,
        ):
            meta: Any = {"traceparent": CALLER, "tracestate": STATE}
            result: Any = await client.call_tool("look", {}, meta=meta)
    assert result.content[0].text == f"{CALLER} {STATE}"


class HttpServer:
    """An MCP server over HTTP with one tool, which keeps the headers and the `_meta` of its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, str], dict[str, str]]] = []

    async def answer(self, request: web.Request) -> web.Response:
        message = await request.json()
        if "id" not in message:
            return web.Response(status=202)
        if message["method"] == "tools/call":
            names = ("traceparent", "tracestate")
            sent = {name: request.headers[name] for name in names if name in request.headers}
            meta = message["params"]["_meta"]
            self.calls.append((sent, {name: meta[name] for name in names if name in meta}))
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "http", "version": "1"},
            },
            "tools/list": {"tools": TOOLS},
            "tools/call": {"content": [{"type": "text", "text": "done"}]},
        }
        found = results.get(message["method"])
        outcome: Any = {"result": found} if found else {"error": {"code": -32601, "message": "unknown method"}}
        return web.json_response({"jsonrpc": "2.0", "id": message["id"], **outcome})


@pytest.mark.parametrize("recorded", [False, True])
async def test_call_over_http_carries_the_trace_in_its_headers(recorded: bool, tmp_path: Path) -> None:
    server, app = HttpServer(), web.Application()
    app.router.add_post("/mcp", server.answer)
    telemetry = OpenTelemetry(tracer_provider=TracerProvider()) if recorded else None
    model = Scripted(calls("echo__meta"), says("Done."), calls("echo__meta"), says("Done."))
    async with TestServer(app, host="127.0.0.1") as serving:
        write_config(tmp_path, echo={"url": str(serving.make_url("/mcp")), "confirm": False})
        async with open_atlas(tmp_path, model=model, telemetry=telemetry) as (atlas, _):
            await atlas.run("Go", traceparent=CALLER, tracestate=STATE)
            await atlas.run("Go", traceparent=CALLER.replace("4bf9", "5bf9"))
    (first, first_meta), (second, second_meta) = server.calls
    assert (first, second) == (first_meta, second_meta)
    assert (first["traceparent"][:35], first["tracestate"]) == (CALLER[:35], STATE)
    assert second["traceparent"][3:35] == CALLER[3:35].replace("4bf9", "5bf9") and "tracestate" not in second
    assert (first["traceparent"] == CALLER) is not recorded
