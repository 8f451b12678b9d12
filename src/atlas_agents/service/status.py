"""How the cluster stands that the settings name, asked of its database alone."""

from atlas_agents.config.opening import is_postgres
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError
from atlas_agents.dispatch.status import ClusterStatus


async def cluster_status(settings: Settings) -> ClusterStatus:
    """One look; ConfigError where there is no cluster, StoreError where Postgres cannot be asked."""
    if not is_postgres(settings):
        raise ConfigError(
            "there is no cluster here: this database is used by one process alone; set "
            "ATLAS_DATABASE_URL=postgresql://… to the database of the cluster"
        )
    try:
        import psycopg

        from atlas_agents.dispatch.looking import read_status
        from atlas_agents.stores.postgres_session import connect, fault
    except ImportError as error:
        raise ConfigError("a cluster needs an extra: pip install 'atlas-agents[cluster]'") from error
    try:
        async with await connect(settings.database_url.reveal()) as line:
            return await read_status(line)
    except psycopg.Error as error:
        raise fault(error) from error
