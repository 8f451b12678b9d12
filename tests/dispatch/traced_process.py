"""A cluster member with OpenTelemetry: `traced_process.py ROLE URL HOME` prints the port of its HTTP server once ready.

The agent `assistant` delegates to `writer`, whose tool `work` hangs until HOME/released exists: the process that runs
it can be killed. Spans go where OTEL_EXPORTER_OTLP_ENDPOINT says, with the process id as the name of the service.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from atlas_agents import Agent, Atlas, Chunk, OpenTelemetry, Request, tool
from atlas_agents.builtin_tools.team import delegate_task
from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.gateway.cluster import ClusterMembership, WorkerHealthServer, run_worker
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.telemetry import configure_logging
from atlas_agents.providers.registry import Registry
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.testing import Environment, Reply, Scripted, calls, says


class Team(Scripted):
    """A model whose reply depends only on the messages, so that it is the same in every process."""

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        async for chunk in Scripted(self._reply(request)).stream(request):
            yield chunk

    @staticmethod
    def _reply(request: Request) -> Reply:
        last = request.messages[-1]
        if last.role == "tool":
            return says("Done.")
        if last.text.startswith("Delegate"):
            return calls("delegate_task", target_agent="writer", task_description="Write it.")
        return calls("work") if last.text.startswith("Write") else says("The writer is done.")


def build_atlas(store: PostgresStore, cluster: Cluster, home: Path, telemetry: OpenTelemetry) -> Atlas:
    @tool(effect="pure")
    async def work() -> str:
        """Work."""
        if not (home / "released").exists():
            (home / "working").write_text(str(os.getpid()))
            await asyncio.Event().wait()
        return "worked"

    lead = Agent("assistant", model=Team(), tools=[delegate_task])
    writer = Agent("writer", model=Team(), tools=[work])
    registry = Registry(Environment({}, dotenv=None))
    return Atlas([lead, writer], store=store, dispatcher=cluster, registry=registry, telemetry=telemetry)


async def main(role: str, url: str, home: Path) -> None:
    tracers = TracerProvider(resource=Resource.create({"service.name": str(os.getpid())}))
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=50))
    cluster = Cluster(url)
    store = PostgresStore(url, transaction_hook=cluster.enqueue_and_notify)
    await store.open()
    atlas = build_atlas(store, cluster, home, OpenTelemetry(tracer_provider=tracers))
    settings = GatewaySettings(home=home, port=0, grace=1.0)
    if role == "worker":
        health = WorkerHealthServer(settings)
        on_ready = lambda: print(health.url.rpartition(":")[2], flush=True)  # noqa: E731
        await run_worker(atlas, cluster, settings.grace, on_ready, health_server=health)
    else:
        gateway = Gateway(atlas, settings, membership=ClusterMembership(cluster, executes_runs=False))
        await gateway.serve(lambda ready: print(ready.port, flush=True))
    await store.close()


if __name__ == "__main__":
    configure_logging()
    run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
