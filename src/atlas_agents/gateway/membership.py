"""A gateway's place in a cluster: it hears what runs say wherever they are run, and may run some itself."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from atlas_agents.dispatch.cluster import Cluster
from atlas_agents.dispatch.notices import Notice
from atlas_agents.gateway.cluster_figures import ClusterFigures
from atlas_agents.gateway.far import FarRuns
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.metrics import Metrics
from atlas_agents.gateway.scribe import Scribe


class ClusterMembership:
    """`works` says whether runs are run here, too."""

    def __init__(self, cluster: Cluster, *, works: bool) -> None:
        self._cluster = cluster
        self._works = works

    @asynccontextmanager
    async def held(self, hub: Hub, door: str) -> AsyncGenerator[None, None]:
        """A member as long as the block lasts; `door` is where clients find the gateway."""
        hub.metrics.add(ClusterFigures(self._cluster))
        far = FarRuns(hub.runs, hub.store, hub.atlas.tenant)
        hub.runs.far = far
        hub.runs.on_call = _by_notice
        hub.runs.on_question = _by_notice
        self._cluster.follow = far.feed
        self._cluster.on_notice = partial(_hear, hub, far)
        self._cluster.on_renewed = partial(_look_round, hub, far)
        async with AsyncExitStack() as leaving:
            leaving.push_async_callback(far.close)
            await leaving.enter_async_context(self._cluster.joined("all" if self._works else "gateway", door))
            if self._works:
                own = Metrics()  # what this process runs is heard and counted here, too, when somebody follows it
                scribe = Scribe(hub.atlas, own, hub.settings.grace, hub.hurry)
                await leaving.enter_async_context(self._cluster.at_work(scribe.taken, scribe.stop))
            yield


def _hear(hub: Hub, far: FarRuns, notice: Notice) -> None:
    """Something was committed, here or elsewhere: tell those who keep lists."""
    match notice.kind:
        case "audit":
            hub.audit.look()
        case "asked" | "answer":
            hub.news.asked(notice.session)
        case "session" if notice.session:
            hub.assignments.forget(notice.session)
            hub.news.changed(notice.session)
        case _:
            far.notice(notice)


def _look_round(hub: Hub, far: FarRuns) -> None:
    hub.audit.look()
    hub.assignments.forget_all()
    far.renewed()


def _by_notice(session: str = "") -> None:
    """Those who keep lists hear of it when it is committed, wherever that was."""
