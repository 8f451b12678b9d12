"""Cluster members within the test process, each with its own store, dispatcher and Atlas."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from atlas_agents import Atlas, Provider, Tool
from atlas_agents.core.store import RunRow
from atlas_agents.dispatch import RunningTurn
from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.gateway.cluster import RemoteRuns, WorkerEventLog
from atlas_agents.gateway.runs import RunRegistry
from atlas_agents.gateway.telemetry import Metrics
from atlas_agents.storage.history_cache import HistoryCache
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.testing import in_memory_atlas


class Member:
    """A cluster member; `executed` lists the runs it resumed."""

    def __init__(self, atlas: Atlas, cluster: Cluster, store: PostgresStore) -> None:
        self.atlas = atlas
        self.cluster = cluster
        self.store = store
        self.executed: list[str] = []


@asynccontextmanager
async def member(
    url: str,
    schema: str,
    model: Provider,
    tools: Sequence[Tool] = (),
    *,
    executes_runs: bool = True,
    concurrency: int = 8,
    heartbeat_timeout: float = 6.0,
    has_events: bool = False,
    **more: Any,
) -> AsyncGenerator[Member, None]:
    """Run a member for the duration of the block. Without `executes_runs` it only accepts messages. With `has_events`
    it stores the events of its runs, and follows those of other members, as gateways and their workers do."""
    cluster = Cluster(url, schema=schema, concurrency=concurrency, heartbeat_timeout=heartbeat_timeout)
    hook = cluster.enqueue_and_notify
    store = PostgresStore(url, schema=schema, transaction_hook=hook, history_cache=HistoryCache())
    await store.open()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        atlas = in_memory_atlas(model, tools, store=store, dispatcher=cluster, **more)
        this = Member(atlas, cluster, store)
        stack.push_async_callback(atlas.close)
        runs = RunRegistry(store, atlas.tenant, Metrics())
        remote = runs.remote = RemoteRuns(runs, store, atlas.tenant)
        stack.push_async_callback(remote.close)
        if has_events:
            cluster.subscribe(remote.handle, remote.resync)
        await stack.enter_async_context(cluster.join(follow=remote.stream_events if has_events else None))
        event_log = WorkerEventLog(atlas, Metrics(), 1.0) if has_events and executes_runs else None

        async def executed(turn: RunningTurn, row: RunRow) -> None:
            this.executed.append(row.id)
            if event_log is not None:
                await event_log.follow(turn, row)

        if event_log is not None:
            await stack.enter_async_context(cluster.run_worker(executed, event_log.stop))
        elif executes_runs:
            await stack.enter_async_context(cluster.run_worker(executed, atlas.close))
        yield this
