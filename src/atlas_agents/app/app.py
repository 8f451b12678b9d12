"""Open everything that a gateway or worker needs from settings."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import msgspec

from atlas_agents.agents.atlas import Atlas
from atlas_agents.agents.hooks import Interceptor
from atlas_agents.app.agents import AgentLoader, FetchModel, ServerReloader, TitleWriter, open_mcp_servers
from atlas_agents.app.home_lock import lock_home
from atlas_agents.app.model_setup import (
    ModelFeed,
    ModelSetup,
    apply_stored_keys,
    known_secrets,
    read_selected,
    read_stored_keys,
)
from atlas_agents.app.store_maintenance import RetentionJob, RetentionPolicy
from atlas_agents.app.tools import (
    PermissionsEditor,
    build_tool_registry,
    find_unavailable_tools,
    hold_changes,
    keyword_tools,
    only_named_tools,
)
from atlas_agents.config.load import POSTGRES, load
from atlas_agents.config.open import is_postgres, open_home, open_store
from atlas_agents.config.settings import Settings, scheme
from atlas_agents.core import install_command
from atlas_agents.core.aio import BackgroundTasks, run_in_thread
from atlas_agents.core.errors import ConfigError, ModelUnavailable
from atlas_agents.core.paths import Environment, Secret
from atlas_agents.core.plugins import Plugins
from atlas_agents.core.store import Store
from atlas_agents.core.telemetry import OpenTelemetry
from atlas_agents.core.trust import Trust
from atlas_agents.dispatch import Dispatcher
from atlas_agents.gateway.settings import GatewaySettings
from atlas_agents.knowledge.embedding import Embedder, EndpointEmbedder, LocalEmbedder
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.knowledge.loaders import Sources
from atlas_agents.knowledge.memories import JobHistory
from atlas_agents.local.download import Progress, ensure_model
from atlas_agents.local.models import (
    check_engine,
    check_gguf_file,
    find_model,
    is_gguf_path,
    model_state,
    models_folder,
)
from atlas_agents.local.provider import LocalProvider
from atlas_agents.mcp.servers import Servers
from atlas_agents.providers.catalogue import parse_model_ref, read_models, register_models
from atlas_agents.providers.rate_limits import SharedRateLimiter, parse_rate_limits
from atlas_agents.providers.registry import Registry
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.tools.approvals import Approvals
from atlas_agents.tools.registry import ToolRegistry
from atlas_agents.workspace.workspace import Workspace

if TYPE_CHECKING:
    from atlas_agents.gateway.cluster import ClusterMembership

logger = logging.getLogger(__name__)
_TELEMETRY_TIMEOUT = 5.0


class ClusterConfig:
    """Connection of this process to its cluster."""

    def __init__(self, settings: Settings) -> None:
        from atlas_agents.dispatch.cluster import Cluster

        self._settings = settings
        self._cluster = Cluster(settings.database_url.reveal())

    @property
    def dispatcher(self) -> Dispatcher:
        return self._cluster

    @property
    def transaction_hook(self) -> Any:
        return self._cluster.enqueue_and_notify

    @property
    def membership(self) -> "ClusterMembership":
        """Membership of a gateway, which also runs turns if the role is `all`."""
        from atlas_agents.gateway.cluster import ClusterMembership

        return ClusterMembership(self._cluster, executes_runs=self._settings.role == "all")

    async def work(self, atlas: Atlas, settings: GatewaySettings, ready: Callable[[str], object]) -> None:
        """Run turns as a worker until SIGTERM or SIGINT; `ready` receives the URL of the health endpoints."""
        from atlas_agents.gateway.cluster import WorkerHealthServer, run_worker

        health = WorkerHealthServer(settings)
        await run_worker(atlas, self._cluster, settings.grace, lambda: ready(health.url), health_server=health)


def join_cluster(settings: Settings) -> ClusterConfig | None:
    """Return the cluster of a process, or None for the role `alone`."""
    if settings.role == "alone":
        return None
    if not is_postgres(settings):
        raise ConfigError(
            f"role {settings.role!r} requires a Postgres database_url: set ATLAS_DATABASE_URL=postgresql://…"
        )
    try:
        return ClusterConfig(settings)
    except ImportError as error:
        raise ConfigError(f"role: a cluster needs an extra; run: {install_command('cluster')}") from error


@asynccontextmanager
async def lock_database(settings: Settings, store: Store) -> AsyncGenerator[None, None]:
    """Lock the database, so that two single processes, or one and a cluster, never use it at the same time."""
    if not is_postgres(settings):
        await store.orphaned_runs()  # takes the lease of an SQLite file, or raises StoreInUse
        yield
        return
    from atlas_agents.dispatch.locks import database_lock

    async with database_lock(settings.database_url.reveal(), shared=settings.role != "alone"):
        yield


def load_interceptors(plugins: Plugins) -> list[Interceptor]:
    """Load the interceptors of all plugins, sorted by plugin name."""
    found: dict[str, list[Interceptor]] = {}

    def add(name: str, value: Any) -> None:
        found[name] = _as_interceptors(value)

    plugins.load("interceptors", add)
    return [each for name in sorted(found) for each in found[name]]


def _as_interceptors(value: Any) -> list[Interceptor]:
    if isinstance(value, Interceptor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [each for item in cast(list[Any], value) for each in _as_interceptors(item)]
    if callable(value):
        return _as_interceptors(value())
    raise ConfigError(f"invalid plugin: expected an Interceptor, or a list or factory of them, got {value!r}")


def open_knowledge_base(settings: Settings, store: Store, registry: Registry) -> KnowledgeBase:
    """Return the knowledge base over the store; it downloads with the same SSRF protection as `url_fetch`."""
    sources = Sources(hosts=settings.fetch_hosts)
    return KnowledgeBase(
        store,
        _embedder(settings, registry),
        sources=sources,
        history_sources={"workflows": [JobHistory(store)]},
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
        logger.info("semantic search is off, using keywords only: reason=%s", error)
        return None


def _endpoint(settings: Settings, registry: Registry) -> Embedder:
    ref = parse_model_ref(settings.embeddings)
    if settings.embeddings_url:
        return EndpointEmbedder(ref.model, base_url=settings.embeddings_url, key=settings.embeddings_key)
    provider: Any = registry.provider(ref.provider)
    base_url, key = getattr(provider, "base_url", None), getattr(provider, "key", None)
    if not isinstance(base_url, str) or ref.provider in ("anthropic", "google"):
        raise ConfigError(f"embeddings: provider {ref.provider!r} has no embeddings; set embeddings_url")
    return EndpointEmbedder(ref.model, base_url=base_url, key=key if isinstance(key, Secret) else None)


ModelProgress: TypeAlias = Callable[[str, int, int, str], None]
"""Called while a model is downloaded: id, bytes done, bytes in total, and the current step."""


class Runtime(NamedTuple):
    """An Atlas with its store, workspace and tools. Use `async with open_runtime(settings) as runtime`."""

    settings: Settings
    store: Store
    atlas: Atlas
    agent_loader: AgentLoader
    tools: ToolRegistry
    workspace: Workspace
    knowledge: KnowledgeBase
    servers: Servers
    reloader: ServerReloader
    cluster: ClusterConfig | None
    """Cluster connection; None for the role `alone`."""
    setup: ModelSetup
    permissions: PermissionsEditor


@asynccontextmanager
async def open_runtime(
    settings: Settings,
    *,
    environment: Environment | None = None,
    on_progress: ModelProgress | None = None,
    fetch: bool = True,
    runs_turns: bool = True,
) -> AsyncGenerator[Runtime, None]:
    """Open everything in order of dependency, and close it in reverse order.

    The workspace is watched for edits. With `fetch`, a missing local model is downloaded in the background. Without
    `runs_turns`, the runtime only answers queries and does not lock the database.
    """
    environment = environment or Environment()
    async with AsyncExitStack() as opening:
        cluster = join_cluster(settings)
        opening.enter_context(lock_home(open_home(settings), shared=cluster is not None))
        store = open_store(settings, cluster.transaction_hook if cluster else None)
        await store.open()
        opening.push_async_callback(store.close)
        if runs_turns:
            await opening.enter_async_context(lock_database(settings, store))
        unavailable = await find_unavailable_tools(settings)
        runtime = _build_runtime(settings, store, environment, opening, cluster, unavailable)
        opening.push_async_callback(runtime.atlas.close)
        _copy_sessions(settings, runtime, opening)
        if settings.title_model:
            opening.push_async_callback(TitleWriter(settings.title_model, runtime.atlas).close)
        tasks = BackgroundTasks("runtime")
        opening.push_async_callback(tasks.close)
        tasks.spawn(runtime.agent_loader.watch_workspace(runtime.atlas))
        tasks.spawn(runtime.agent_loader.watch_sandbox(runtime.atlas, partial(find_unavailable_tools, settings)))
        tasks.spawn(runtime.setup.watch())
        opening.push_async_callback(runtime.setup.close)
        tasks.spawn(runtime.reloader.watch())
        tasks.spawn(runtime.permissions.watch())
        if fetch:
            fetch_model = _model_fetcher(models_folder(environment), on_progress, runtime.setup.feed)
            tasks.spawn(runtime.agent_loader.fetch_local_models(runtime.atlas, fetch_model))
            keep = RetentionPolicy(settings.keep_events, settings.keep_journals)
            tasks.spawn(RetentionJob(store, runtime.atlas.tenant, keep).run())
        yield runtime


@asynccontextmanager
async def open_scratch_runtime(
    settings: Settings, environment: Environment | None = None
) -> AsyncGenerator[Runtime, None]:
    """Open the agents of the workspace with a store in memory, beside a gateway that may run; nothing is watched."""
    alone = msgspec.structs.replace(settings, role="alone", database_url=Secret(""))
    async with AsyncExitStack() as opening:
        open_home(settings)
        store = MemoryStore()
        await store.open()
        opening.push_async_callback(store.close)
        environment = environment or Environment()
        runtime = _build_runtime(alone, store, environment, opening, None, await find_unavailable_tools(settings))
        runtime.atlas.keep_secret(*known_secrets(settings, environment))  # the database has a password
        opening.push_async_callback(runtime.atlas.close)
        yield runtime


def build_registry(
    settings: Settings, environment: Environment, plugins: Plugins, limiter: SharedRateLimiter | None = None
) -> Registry:
    """Return the providers with the rate limits, models and stored keys of the settings."""
    register_models(read_models(settings.model_catalogue))
    registry = Registry(environment, rate_limits=parse_rate_limits(settings.provider_limits), limiter=limiter)
    apply_stored_keys(registry, read_stored_keys(settings.home))
    registry.load_plugins(plugins)
    return registry


def load_workspace_agents(folder: Path | str) -> Atlas:
    """Build the agents of a workspace for a saved replay, with the other settings of this machine.

    No files are created, not even a missing workspace.
    """
    path = Path(folder).resolve()
    if not path.is_dir():
        raise ConfigError(f"not found: workspace {str(path)!r}; check it out there, or save the run again")
    settings = load({"workspace": path})
    return _build_runtime(settings, MemoryStore(), Environment(), AsyncExitStack(), None, create=False).atlas


def _copy_sessions(settings: Settings, runtime: Runtime, opening: AsyncExitStack) -> None:
    """Keep copies of session states on the Redis or Valkey server, if one is set, in every role."""
    if settings.redis_url is None:
        return
    try:
        from atlas_agents.app.session_copies import SessionCopies, open_valkey
    except ImportError as error:
        raise ConfigError(f"redis_url: Valkey needs an extra; run: {install_command('cluster')}") from error
    copies = SessionCopies(open_valkey(settings.redis_url), partial(runtime.store.run, runtime.atlas.tenant))
    opening.push_async_callback(copies.close)
    for name in ("stream:start", "approval:asked", "approval:answered", "tool:result", "stream:end"):
        runtime.atlas.on(name, copies.receive)


def _build_runtime(
    settings: Settings,
    store: Store,
    environment: Environment,
    opening: AsyncExitStack,
    cluster: ClusterConfig | None,
    unavailable: Mapping[str, str] | None = None,
    *,
    create: bool = True,
) -> Runtime:
    """Build the runtime of the workspace, which is created if it does not exist, unless `create` is False."""
    trust = Trust.of(environment)
    if create:
        trust.recover()
    workspace = Workspace(settings.workspace, trust)
    if create and workspace.prepare():
        logger.info("workspace created: path=%s", workspace.path)
        workspace.make_skills_folder()
    plugins = Plugins(settings.disabled_plugins)
    limiter = _shared_limiter(settings, store)
    registry = build_registry(settings, environment, plugins, limiter)
    feed = ModelFeed()
    registry.register("local", lambda values: LocalProvider(environment=values, report=feed.report))
    servers = open_mcp_servers(settings, environment, opening)
    knowledge = open_knowledge_base(settings, store, registry)
    opening.push_async_callback(knowledge.close)
    tools = build_tool_registry(settings, opening, plugins, environment, knowledge, servers, trust)
    prepare = partial(hold_changes, settings, environment, trust)
    selected = read_selected(settings.home, settings.model)
    agent_loader = AgentLoader(
        workspace,
        registry,
        tools,
        settings.model,
        recall=settings.recall,
        tool_search=settings.tool_search or None,
        prepare=prepare,
        only_named=partial(only_named_tools, settings, environment),
        unavailable=unavailable,
    )
    agent_loader.set_default(selected.model or settings.model, selected.effort)
    permissions = PermissionsEditor(settings, servers, trust)
    atlas = Atlas(
        agent_loader.agents(),
        store=store,
        policy=permissions.load(),
        approve=Approvals(deadline=settings.approval_deadline, two_person=settings.two_person, wait=True),
        limits=settings.limits,
        budgets=settings.budgets,
        history=settings.history,
        interceptors=[
            keyword_tools(settings, environment),
            *load_interceptors(plugins),
            knowledge.recall_interceptor(agent_loader.recalls),
        ],
        registry=registry,
        delegation=settings.delegation,
        dispatcher=cluster.dispatcher if cluster else None,
        telemetry=_open_telemetry(settings, opening),
    )
    atlas.reserve_tool_names(lambda: [name for tool in tools for name in (tool.name, tool.wire_name)])
    setup = ModelSetup(settings, environment, registry, agent_loader, atlas, feed)
    permissions.connect(lambda policy: setattr(atlas, "policy", policy))
    reloader = ServerReloader(servers, permissions, atlas, agent_loader, tools)
    parts = (tools, workspace, knowledge, servers, reloader, cluster, setup, permissions)
    return Runtime(settings, store, atlas, agent_loader, *parts)


def _open_telemetry(settings: Settings, opening: AsyncExitStack) -> OpenTelemetry | None:
    """Return OpenTelemetry if it is enabled. The SDK is set up here, unless that has been done already.

    The exporters send in threads of their own: a collector that cannot be reached costs only its telemetry.
    """
    if settings.telemetry == "off":
        return None
    telemetry = OpenTelemetry(capture_content=settings.telemetry_content)
    from opentelemetry import metrics, trace

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return telemetry
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            'telemetry = "otel" needs the SDK of OpenTelemetry; run: pip install opentelemetry-sdk '
            "opentelemetry-exporter-otlp-proto-http"
        ) from error
    resource = Resource.create({} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "atlas"})
    tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(tracers)
    if os.environ.get("OTEL_METRICS_EXPORTER") == "none":
        meters = metrics.NoOpMeterProvider()
        opening.push_async_callback(_shut_down_telemetry, tracers)
    else:
        readers = [PeriodicExportingMetricReader(OTLPMetricExporter())]
        meters = MeterProvider(readers, resource, shutdown_on_exit=False)
        metrics.set_meter_provider(meters)
        opening.push_async_callback(_shut_down_telemetry, tracers, meters)
    return OpenTelemetry(capture_content=settings.telemetry_content, tracer_provider=tracers, meter_provider=meters)


async def _shut_down_telemetry(*providers: Any) -> None:
    """Send the remaining telemetry. If the collector does not answer, it is dropped, so that the process can exit."""
    try:
        async with asyncio.timeout(_TELEMETRY_TIMEOUT):
            await asyncio.gather(*[run_in_thread(provider.shutdown) for provider in providers])
    except TimeoutError:
        logger.warning("last telemetry not sent: the collector did not answer within %g s", _TELEMETRY_TIMEOUT)


def _shared_limiter(settings: Settings, store: Store) -> SharedRateLimiter | None:
    """Return the shared rate limiter where several processes may use the same API keys."""
    return SharedRateLimiter(store) if scheme(settings.database_url.reveal()) in POSTGRES else None


def _model_fetcher(folder: Path, on_progress: ModelProgress | None, feed: ModelFeed) -> FetchModel:
    """Return a function that provides a local model; only small models are downloaded without a command."""

    def report(id: str, done: int, total: int, step: str) -> None:
        feed.report(id, done, total, step)
        if on_progress is not None:
            on_progress(id, done, total, step)

    def progress(id: str) -> Progress:
        return partial(report, id)

    async def fetch(id: str) -> None:
        check_engine()
        if is_gguf_path(id):
            check_gguf_file(id)
            return
        model = find_model(id)
        if model.auto_download:
            await ensure_model(model, folder, progress(id))
        elif not model_state(model, folder).installed:
            raise ModelUnavailable(f"not downloaded yet ({model.megabytes} MB); run: atlas models pull {id}")

    return fetch
