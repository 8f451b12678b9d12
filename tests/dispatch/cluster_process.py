"""A cluster member as a process: `cluster_process.py ROLE URL HOME` prints the port of its HTTP server once ready.

The environment variable GRACE sets how long turns may continue after SIGTERM. The model calls `note` three times, one
after the other, and then answers. A call records its side effect in HOME/effects and takes a while, so that the process
can be killed during it.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from atlas_agents import Approvals, Chunk, Request, TextChunk, Tool, ToolContext
from atlas_agents.app.serve import Operations
from atlas_agents.config.settings import Settings
from atlas_agents.core.paths import Secret
from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.gateway.cluster import ClusterMembership, WorkerHealthServer, run_worker
from atlas_agents.gateway.hub import GatewayServices
from atlas_agents.gateway.server import Gateway, run
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.gateway.telemetry import configure_logging
from atlas_agents.storage.history_cache import HistoryCache
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.testing import Scripted, calls, in_memory_atlas, says

_CALLS = 3


class Steps(Scripted):
    """A model whose reply depends only on the messages, so that it is the same in every process."""

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        index = max(n for n, message in enumerate(request.messages) if message.role == "user")
        done = sum(message.role == "tool" for message in request.messages[index:])
        text = request.messages[index].text
        name = "ask" if text.startswith("?") else "note"
        reply = calls(name, input=f"{text} {done + 1}") if done < _CALLS else says(f"All {_CALLS} of {text}.")
        async for chunk in Scripted(reply).stream(request):
            if isinstance(chunk, TextChunk):
                await asyncio.sleep(0.05)
            yield chunk


def build_tools(home: Path) -> list[Tool]:
    async def note(input: str, context: ToolContext) -> str:
        with (home / "effects").open("a") as file:
            file.write(f"{os.getpid()} {input}\n")
        await asyncio.sleep(0.25)
        return "noted"

    return [Tool("note", note), Tool("ask", note, confirm=True)]


async def main(role: str, url: str, home: Path) -> None:
    cluster = Cluster(url)
    store = PostgresStore(url, transaction_hook=cluster.enqueue_and_notify, history_cache=HistoryCache())
    await store.open()
    atlas = in_memory_atlas(Steps(), build_tools(home), store=store, approve=Approvals(wait=True), dispatcher=cluster)
    settings = GatewaySettings(home=home, port=0, grace=float(os.environ.get("GRACE", "1")))
    if role == "worker":
        health = WorkerHealthServer(settings)
        on_ready = lambda: print(health.url.rpartition(":")[2], flush=True)  # noqa: E731
        await run_worker(atlas, cluster, settings.grace, on_ready, health_server=health)
    else:
        membership = ClusterMembership(cluster, executes_runs=role == "all")
        installation = Settings(home=home, workspace=home, role="gateway", database_url=Secret(url))
        services = GatewayServices(operations=Operations(installation, store))
        gateway = Gateway(atlas, settings, membership=membership, services=services)
        await gateway.serve(lambda ready: print(ready.port, flush=True))
    await store.close()


if __name__ == "__main__":
    configure_logging()
    run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
