"""Whether a process works alone or with others, as the settings say, and what that needs."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from atlas_agents.config.opening import is_postgres
from atlas_agents.config.settings import Settings
from atlas_agents.config.valkey import open_valkey
from atlas_agents.core.errors import ConfigError
from atlas_agents.dispatch.port import Dispatcher
from atlas_agents.engine.atlas import Atlas
from atlas_agents.gateway.server import Membership
from atlas_agents.gateway.settings import GatewaySettings


class Company:
    """The others of a cluster, and how this process is one of them."""

    def __init__(self, settings: Settings) -> None:
        from atlas_agents.dispatch.cluster import Cluster

        self._settings = settings
        self._cluster = Cluster(settings.database_url.reveal(), valkey=open_valkey(settings.redis_url))

    @property
    def dispatcher(self) -> Dispatcher:
        return self._cluster

    @property
    def beside(self) -> Any:
        return self._cluster.beside

    @property
    def membership(self) -> Membership:
        """Of a gateway, which may also work."""
        from atlas_agents.gateway.membership import ClusterMembership

        return ClusterMembership(self._cluster, works=self._settings.role == "all")

    async def work(self, atlas: Atlas, door: GatewaySettings, ready: Callable[[str], object]) -> None:
        """Work until told to stop; `ready` is told where its door is."""
        from atlas_agents.gateway.worker import work
        from atlas_agents.gateway.worker_door import WorkerDoor

        opened = WorkerDoor(door)
        await work(atlas, self._cluster, door.grace, lambda: ready(opened.url), door=opened)


def company_of(settings: Settings) -> Company | None:
    """None for a process that works alone."""
    if settings.role == "alone":
        return None
    if not is_postgres(settings):
        raise ConfigError(
            f"role: {settings.role} needs a database that others can reach: set ATLAS_DATABASE_URL=postgresql://…"
        )
    try:
        return Company(settings)
    except ImportError as error:
        raise ConfigError("role: a cluster needs an extra: pip install 'atlas-agents[cluster]'") from error


def place_on_database(settings: Settings) -> AbstractAsyncContextManager[None]:
    """Nobody works alone where a cluster works, nor the other way round."""
    if not is_postgres(settings):
        return nullcontext()
    from atlas_agents.dispatch.tenure import tenure

    return tenure(settings.database_url.reveal(), shared=settings.role != "alone")
