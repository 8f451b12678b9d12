"""All that a gateway stands on, opened from settings."""

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

from atlas_agents.agents.atlas import Atlas
from atlas_agents.agents.hooks import Interceptor
from atlas_agents.app.agents import AgentLoader, Get, follow_servers, open_servers
from atlas_agents.app.home_lock import lock_home
from atlas_agents.app.tools import house_rules, known_tools, offers
from atlas_agents.config.load import POSTGRES
from atlas_agents.config.open import is_postgres, open_home, open_policy, open_store, open_valkey
from atlas_agents.config.settings import Settings, scheme
from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.errors import ConfigError, ModelUnavailable
from atlas_agents.core.paths import Environment, Secret
from atlas_agents.core.plugins import Plugins
from atlas_agents.core.store import Store
from atlas_agents.dispatch.base import Dispatcher
from atlas_agents.gateway.server import Membership
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.knowledge.embedding import Embedder, EndpointEmbedder, LocalEmbedder
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.knowledge.loaders import Sources
from atlas_agents.knowledge.memories import JobHistory
from atlas_agents.local.download import Progress, obtain
from atlas_agents.local.models import given_file, is_path, known, models_folder, state_of
from atlas_agents.mcp.servers import Servers
from atlas_agents.providers.rate_limits import SharedLedger, read_paces
from atlas_agents.providers.registry import Registry, parse_model_ref
from atlas_agents.storage.retention import RetentionJob, RetentionPolicy
from atlas_agents.tools.approvals import Approvals
from atlas_agents.tools.registry import ToolRegistry
from atlas_agents.workspace.workspace import Workspace


class ClusterConfig:
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
        from atlas_agents.gateway.cluster import ClusterMembership

        return ClusterMembership(self._cluster, works=self._settings.role == "all")

    async def work(self, atlas: Atlas, door: GatewaySettings, ready: Callable[[str], object]) -> None:
        """Work until told to stop; `ready` is told where its door is."""
        from atlas_agents.gateway.cluster import WorkerHealthServer, work

        opened = WorkerHealthServer(door)
        await work(atlas, self._cluster, door.grace, lambda: ready(opened.url), door=opened)


def company_of(settings: Settings) -> ClusterConfig | None:
    """None for a process that works alone."""
    if settings.role == "alone":
        return None
    if not is_postgres(settings):
        raise ConfigError(
            f"role: {settings.role} needs a database that others can reach: set ATLAS_DATABASE_URL=postgresql://…"
        )
    try:
        return ClusterConfig(settings)
    except ImportError as error:
        raise ConfigError("role: a cluster needs an extra: pip install 'atlas-agents[cluster]'") from error


def place_on_database(settings: Settings) -> AbstractAsyncContextManager[None]:
    """Nobody works alone where a cluster works, nor the other way round."""
    if not is_postgres(settings):
        return nullcontext()
    from atlas_agents.dispatch.locks import tenure

    return tenure(settings.database_url.reveal(), shared=settings.role != "alone")


def interceptors_of(plugins: Plugins) -> list[Interceptor]:
    """Those of all plugins, in the order of their names: an interceptor, a list of them, or a function that makes
    them."""
    found: dict[str, list[Interceptor]] = {}

    def take(name: str, thing: Any) -> None:
        found[name] = _interceptors(thing)

    plugins.load("interceptors", take)
    return [each for name in sorted(found) for each in found[name]]


def _interceptors(thing: Any) -> list[Interceptor]:
    if isinstance(thing, Interceptor):
        return [thing]
    if isinstance(thing, list | tuple):
        return [each for item in cast(list[Any], thing) for each in _interceptors(item)]
    if callable(thing):
        return _interceptors(thing())
    raise ConfigError(f"a plugin gives an Interceptor, not {thing!r}")


logger = logging.getLogger(__name__)


def open_study(settings: Settings, store: Store, registry: Registry) -> KnowledgeBase:
    """Over the store of the house; what is fetched for it passes the same guard as `url_fetch`."""
    sources = Sources(hosts=settings.fetch_hosts)
    return KnowledgeBase(
        store,
        _embedder(settings, registry),
        sources=sources,
        pasts={"workflows": [JobHistory(store)]},
        search_tool=settings.knowledge_tool,
    )


def _embedder(settings: Settings, registry: Registry) -> Embedder | None:
    if settings.embeddings == "none":
        return None
    if settings.embeddings != "local":
        return _endpoint(settings, registry)
    try:
        return LocalEmbedder()
    except ConfigError as error:
        logger.info("documents and memories are found by their words alone: %s", error)
        return None


def _endpoint(settings: Settings, registry: Registry) -> Embedder:
    ref = parse_model_ref(settings.embeddings)
    if settings.embeddings_url:
        return EndpointEmbedder(ref.model, base_url=settings.embeddings_url, key=settings.embeddings_key)
    provider: Any = registry.provider(ref.provider)
    base_url, key = getattr(provider, "base_url", None), getattr(provider, "key", None)
    if not isinstance(base_url, str) or ref.provider == "anthropic":
        raise ConfigError(f"embeddings: {ref.provider} has none; name a model of openai, or set embeddings_url")
    return EndpointEmbedder(ref.model, base_url=base_url, key=key if isinstance(key, Secret) else None)


Told: TypeAlias = Callable[[str, int, int, str], None]
"""Is told of a model that is fetched: which, bytes that are here, bytes there will be, and what is being done."""


class Runtime:
    """An Atlas with its store, its workspace and its tools; `async with opened(settings) as runtime`."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        atlas: Atlas,
        crew: AgentLoader,
        tools: ToolRegistry,
        workspace: Workspace,
        study: KnowledgeBase,
        servers: Servers,
        company: ClusterConfig | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.atlas = atlas
        self.crew = crew
        self.tools = tools
        self.workspace = workspace
        self.study = study
        self.servers = servers
        self.company = company
        """The others, where it does not work alone."""


@asynccontextmanager
async def opened(
    settings: Settings,
    *,
    environment: Environment | None = None,
    told: Told | None = None,
    fetch: bool = True,
    works: bool = True,
) -> AsyncGenerator[Runtime, None]:
    """Everything open, in the order in which it needs each other; closed the other way round.

    The workspace is followed and, with `fetch`, a local model fetched beside: whoever asks before it is there waits for
    it. One that does not work only looks things up.
    """
    environment = environment or Environment()
    async with AsyncExitStack() as opening:
        company = company_of(settings)
        opening.enter_context(lock_home(open_home(settings), shared=company is not None))
        store = open_store(settings, company.beside if company else None)
        await store.open()
        opening.push_async_callback(store.close)
        if works:
            await opening.enter_async_context(place_on_database(settings))
        runtime = _wired(settings, store, environment, opening, company)
        opening.push_async_callback(runtime.atlas.close)
        tasks = BackgroundTasks("runtime")
        opening.push_async_callback(tasks.close)
        tasks.spawn(runtime.crew.follow(runtime.atlas))
        tasks.spawn(follow_servers(runtime.servers, settings, runtime.atlas, runtime.crew, runtime.tools))
        if fetch:
            get = _getter(models_folder(environment), told)
            tasks.spawn(runtime.crew.fetch(runtime.atlas, get))
            keep = RetentionPolicy(settings.keep_events, settings.keep_journals)
            tasks.spawn(RetentionJob(store, runtime.atlas.tenant, keep).run())
        yield runtime


def _wired(
    settings: Settings, store: Store, environment: Environment, opening: AsyncExitStack, company: ClusterConfig | None
) -> Runtime:
    workspace = Workspace(settings.workspace)
    if workspace.prepare():
        logger.info("the workspace %s is new: its files say who your agents are", workspace.path)
        workspace.make_skills()
    plugins = Plugins(settings.disabled_plugins)
    registry = Registry(environment, paces=read_paces(settings.provider_limits), ledger=_ledger(settings, store))
    servers = open_servers(settings, environment, registry, opening)
    registry.load_plugins(plugins)
    study = open_study(settings, store, registry)
    opening.push_async_callback(study.close)
    tools = known_tools(settings, opening, plugins, environment, study, servers)
    crew = AgentLoader(workspace, registry, tools, settings.model, recall=settings.recall)
    atlas = Atlas(
        crew.agents(),
        store=store,
        policy=open_policy(settings) or house_rules(servers),
        approve=Approvals(deadline=settings.approval_deadline, two_person=settings.two_person, wait=True),
        limits=settings.limits,
        interceptors=[offers(settings), *interceptors_of(plugins), study.recalling(crew.recalls)],
        registry=registry,
        delegation=settings.delegation,
        dispatcher=company.dispatcher if company else None,
    )
    atlas.keep_secret(*settings.secrets)
    return Runtime(settings, store, atlas, crew, tools, workspace, study, servers, company)


def _ledger(settings: Settings, store: Store) -> SharedLedger | None:
    """Where several processes may use the same keys, they keep one account of them."""
    return SharedLedger(store) if scheme(settings.database_url.reveal()) in POSTGRES else None


def _getter(folder: Path, told: Told | None) -> Get:
    """How a local model comes here: the small one by itself, a larger one when a person has fetched it."""

    def progress(id: str) -> Progress | None:
        return partial(told, id) if told is not None else None

    async def get(id: str) -> None:
        if is_path(id):
            given_file(id)
            return
        model = known(id)
        if model.by_itself:
            await obtain(model, folder, progress(id))
        elif not state_of(model, folder).installed:
            raise ModelUnavailable(f"it is not here yet, {model.megabytes} MB: fetch it with `atlas models pull {id}`")

    return get
