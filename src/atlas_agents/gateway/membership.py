"""A gateway's place in a cluster: it hears what runs say wherever they are run, and may run some itself."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.gateway.far import FarRuns
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.scribe import Scribe


class ClusterMembership:
    """`works` says whether runs are run here, too."""

    def __init__(self, cluster: Cluster, *, works: bool) -> None:
        self._cluster = cluster
        self._works = works

    @asynccontextmanager
    async def held(self, hub: Hub) -> AsyncGenerator[None, None]:
        """A member as long as the block lasts."""
        far = FarRuns(hub.runs, hub.store, hub.atlas.tenant)
        hub.runs.far = far
        self._cluster.follow = far.feed
        self._cluster.on_notice = far.notice
        self._cluster.on_renewed = far.renewed
        async with AsyncExitStack() as leaving:
            leaving.push_async_callback(far.close)
            await leaving.enter_async_context(self._cluster.joined())
            if self._works:
                scribe = Scribe(hub.atlas, hub.metrics, hub.settings.grace)
                await leaving.enter_async_context(self._cluster.at_work(scribe.taken, scribe.stop))
            yield
