"""A process that runs runs for a cluster, and whose door tells no more than how it is."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.engine.atlas import Atlas
from atlas_agents.gateway.cluster_figures import ClusterFigures
from atlas_agents.gateway.leaving import told_to_stop
from atlas_agents.gateway.metrics import Metrics
from atlas_agents.gateway.ready import Readiness
from atlas_agents.gateway.scribe import Scribe
from atlas_agents.gateway.worker_door import WorkerDoor


async def work(
    atlas: Atlas,
    cluster: Cluster,
    grace: float,
    ready: Callable[[], object] | None = None,
    *,
    door: WorkerDoor | None = None,
) -> None:
    """Run runs until SIGTERM or SIGINT; then no more are taken, and those under way have `grace` seconds to end before
    they are left to others. Told so once more, it waits for none of them. The door is open to the end."""
    stop, hurry = asyncio.Event(), asyncio.Event()
    metrics, readiness = Metrics(), Readiness(cluster.look)
    metrics.add(ClusterFigures(cluster))
    async with AsyncExitStack() as leaving:
        leaving.enter_context(told_to_stop(lambda: (hurry if stop.is_set() else stop).set()))
        where = await leaving.enter_async_context(door.opened(readiness, metrics)) if door else ""
        await leaving.enter_async_context(cluster.joined("worker", where))
        scribe = Scribe(atlas, metrics, grace, hurry)
        await leaving.enter_async_context(cluster.at_work(scribe.taken, scribe.stop))
        readiness.started = True
        if ready is not None:
            ready()
        await stop.wait()
        readiness.stopping = True
