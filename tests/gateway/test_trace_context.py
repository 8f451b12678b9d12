"""Telemetry of the gateway: a trace context is accepted at every entry; metrics, and log lines with their trace."""

import io
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from agui_client import open_page
from gateway_client import connect_client, main_token, serve_gateway
from opentelemetry.sdk.trace import TracerProvider

from atlas_agents import Atlas, OpenTelemetry, ToolContext, tool
from atlas_agents.core.errors import ProviderError
from atlas_agents.gateway.telemetry import JsonLines
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import Scripted, calls, fails, in_memory_atlas, says
from checks import TIMEOUT

CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
STATE = "vendor=t61rcWkgMzE,other@tenant=1"
logger = logging.getLogger("atlas_agents.test")


class Seen:
    """What a tool saw of the trace of its call."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.states: list[str] = []

    def atlas(self, turns: int, **options: Any) -> Atlas:
        @tool(effect="pure")
        async def look(context: ToolContext) -> str:
            """Look."""
            self.found.append(context.traceparent)
            self.states.append(context.tracestate)
            logger.warning("looked")
            return "seen"

        replies = [reply for _ in range(turns) for reply in (calls("look"), says("Done."))]
        return in_memory_atlas(Scripted(*replies), [look], store=MemoryStore(), **options)


async def test_trace_context_is_accepted_at_every_entry(tmp_path: Path) -> None:
    seen = Seen()
    async with serve_gateway(tmp_path, seen.atlas(7)) as gateway, connect_client(gateway) as client:
        sent = await client.get("chat.send", sessionKey="s", message="Go", traceparent=CALLER, tracestate=STATE)
        await client.get("chat.wait", runId=sent["runId"])
        await client.get("tools.invoke", name="look", arguments={}, traceparent=CALLER, tracestate=STATE)
        token = main_token(gateway)
        headers = {"authorization": f"Bearer {token}", "traceparent": CALLER, "tracestate": STATE}
        body: dict[str, Any] = {"model": "assistant", "messages": [{"role": "user", "content": "Go"}]}
        async with aiohttp.ClientSession(f"http://127.0.0.1:{gateway.port}", headers=headers) as http:
            async with http.post("/v1/chat/completions", json=body) as answer:
                assert answer.status == 200
            async with http.post("/v1/responses", json={"model": "assistant", "input": "Go"}) as answer:
                assert answer.status == 200
            malformed = {"traceparent": "00-nonsense"}
            async with http.post("/v1/chat/completions", json=body, headers=malformed) as answer:
                assert answer.status == 200
            async with http.post("/v1/chat/completions", json=body, headers={"tracestate": "no state"}) as answer:
                assert answer.status == 200
        assert seen.found == [*[CALLER] * 4, "", CALLER]
        assert seen.states == [*[STATE] * 4, "", ""]


@pytest.mark.parametrize(
    "traceparent",
    ["nonsense", CALLER + "\n", CALLER.replace(CALLER[3:35], "0" * 32), CALLER.replace(CALLER[36:52], "0" * 16)],
)
async def test_invalid_traceparent_is_refused(tmp_path: Path, traceparent: str) -> None:
    requests: dict[str, dict[str, Any]] = {
        "chat.send": {"sessionKey": "s", "message": "Go"},
        "jobs.submit": {"task": "Go"},
        "tools.invoke": {"name": "look", "arguments": {}},
    }
    async with serve_gateway(tmp_path, Seen().atlas(2)) as gateway, connect_client(gateway) as client:
        for method, params in requests.items():
            refused = await client.request(method, **params, traceparent=traceparent)
            assert refused["error"]["data"]["kind"] == "INVALID_PARAMS", method


async def test_traceparent_of_an_ag_ui_client_is_accepted(tmp_path: Path) -> None:
    seen = Seen()
    async with serve_gateway(tmp_path, seen.atlas(1)) as gateway, open_page(gateway) as page:
        await page.run("Go", headers={"traceparent": CALLER, "tracestate": STATE})
    assert (seen.found, seen.states) == ([CALLER], [STATE])


async def test_submitted_job_belongs_to_the_trace_of_its_client(tmp_path: Path) -> None:
    seen = Seen()
    async with serve_gateway(tmp_path, seen.atlas(1)) as gateway, connect_client(gateway) as client:
        job = await client.get("jobs.submit", task="Go", traceparent=CALLER, tracestate=STATE)
        await gateway.hub.atlas.jobs.ended(job["jobId"])
    assert (seen.found, seen.states) == ([CALLER], [STATE])


async def test_log_lines_of_a_turn_have_its_trace(tmp_path: Path) -> None:
    output = io.StringIO()
    handler = logging.StreamHandler(output)
    handler.setFormatter(JsonLines())
    logger.addHandler(handler)
    try:
        seen = Seen()
        atlas = seen.atlas(1, telemetry=OpenTelemetry(tracer_provider=TracerProvider()))
        await atlas.ask("Go", traceparent=CALLER)
        logger.warning("outside")
    finally:
        logger.removeHandler(handler)
    inside, outside = [json.loads(line) for line in output.getvalue().splitlines()]
    assert f"00-{inside['trace_id']}-{inside['span_id']}-01" == seen.found[0]
    assert inside["trace_id"] == CALLER[3:35]
    assert "trace_id" not in outside


async def test_metrics_count_tokens_cost_times_and_outcomes(tmp_path: Path) -> None:
    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        return "seen"

    replies = (calls("look"), calls("look", wrong=1), says("Done."), fails(ProviderError("no money", "quota")))
    atlas = in_memory_atlas(Scripted(*replies, id="openai/gpt-5.6"), [look], store=MemoryStore())
    async with serve_gateway(tmp_path, atlas) as gateway:
        await atlas.ask("Go")
        with pytest.raises(ProviderError):
            await atlas.ask("Go")
        timeout = aiohttp.ClientTimeout(TIMEOUT)
        async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"{gateway.url}/metrics") as answer:
            text = await answer.text()
    lines = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}
    assert lines['atlas_tool_calls_total{status="ok",tool="look"}'] == 1
    assert lines['atlas_tool_calls_total{status="error",tool="look"}'] == 1
    assert lines['atlas_model_errors_total{kind="quota",model="openai/gpt-5.6"}'] == 1
    assert lines['atlas_model_first_chunk_seconds_count{model="openai/gpt-5.6"}'] == 3
    assert lines['atlas_tokens_total{model="openai/gpt-5.6",type="input"}'] > 0
    assert lines['atlas_cost_dollars_total{model="openai/gpt-5.6"}'] > 0
    assert lines['atlas_turn_seconds_count{status="done"}'] == 1
    assert lines['atlas_turn_seconds_count{status="failed"}'] == 1
    assert lines["atlas_queue_seconds_count"] == 2
