"""A process that runs runs for a cluster, and has no door of its own."""

import asyncio
import signal
from collections.abc import Callable

from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.engine.atlas import Atlas
from atlas_agents.gateway.metrics import Metrics
from atlas_agents.gateway.scribe import Scribe

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def work(atlas: Atlas, cluster: Cluster, grace: float, ready: Callable[[], object] | None = None) -> None:
    """Run runs until SIGTERM or SIGINT; then those under way end, or are left to others."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for each in _SIGNALS:
        loop.add_signal_handler(each, stop.set)
    try:
        scribe = Scribe(atlas, Metrics(), grace)
        async with cluster.joined(), cluster.at_work(scribe.taken, scribe.stop):
            if ready is not None:
                ready()
            await stop.wait()
    finally:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)
