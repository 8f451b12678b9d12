"""One trace: a worker is killed in the middle of a delegated job, and another one finishes it."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from member_processes import members
from processes import connect_process

from checks import TIMEOUT, wait_until
from otlp_collector import CollectedSpan, Collector, collector
from stores.postgres_server import PostgresServer

pytestmark = pytest.mark.slow
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def writer_calls(collected: Collector, process: str) -> list[CollectedSpan]:
    """Return the model calls of the delegated turn in one process."""
    spans = [span for span in collected.named("chat") if span.service == process]
    return [span for span in spans if span.attributes["gen_ai.agent.id"] == "writer"]


async def test_delegated_job_of_a_killed_worker_is_one_trace(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collector() as collected:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collected.url)
        async with AsyncExitStack() as stack, asyncio.timeout(2 * TIMEOUT):
            roles = ("gateway", "worker", "worker")
            front, *workers = await members(stack, server, tmp_path, *roles, script="traced_process.py")
            client = await stack.enter_async_context(connect_process(front))
            await client.get("chat.send", sessionKey="s", message="Delegate it.", traceparent=CALLER)
            await wait_until((tmp_path / "working").exists)
            victim = await wait_until(lambda: (tmp_path / "working").read_text())
            await wait_until(lambda: writer_calls(collected, victim))
            (tmp_path / "released").touch()
            (killed,) = [each for each in workers if str(each.pid) == victim]
            await killed.kill()
            await wait_until(lambda: len(collected.named("invoke_agent assistant")) == 2)  # with the report
            await wait_until(lambda: collected.named("run_job"))
    assert {span.trace_id for span in collected.spans} == {CALLER[3:35]}
    known = {span.span_id for span in collected.spans} | {CALLER[36:52]}
    assert [span.name for span in collected.spans if span.parent_id not in known] == []
    turn, job = collected.one("invoke_agent writer"), collected.one("run_job writer")
    assert turn.parent_id == job.span_id and turn.attributes["atlas.run.resumed"]
    assert turn.service != victim, "the process that ended the turn reports it, from its acceptance on"
    (first,) = writer_calls(collected, victim)
    assert turn.start <= first.start < first.end <= turn.end
    assert [line.strip() for line in collected.tree(turn.trace_id)].count("execute_tool work") == 1
