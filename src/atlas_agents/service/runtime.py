"""All that a gateway stands on, opened from settings."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

from atlas_agents.config.checks import POSTGRES
from atlas_agents.config.opening import open_home, open_policy, open_store
from atlas_agents.config.settings import Settings
from atlas_agents.config.urls import scheme
from atlas_agents.core.environment import Environment
from atlas_agents.core.errors import ModelUnavailable
from atlas_agents.core.plugins import Plugins
from atlas_agents.core.store import Store
from atlas_agents.engine.atlas import Atlas
from atlas_agents.knowledge.study import Study
from atlas_agents.local.fetch import Progress, obtain
from atlas_agents.local.models import given_file, is_path, known, models_folder, state_of
from atlas_agents.mcp.servers import Servers
from atlas_agents.providers.pace import read_paces
from atlas_agents.providers.registry import Registry
from atlas_agents.providers.shared_pace import SharedLedger
from atlas_agents.service.builtin import house_rules, known_tools
from atlas_agents.service.crew import Crew, Get
from atlas_agents.service.foreign import follow_servers, open_servers
from atlas_agents.service.membership import Company, company_of, place_on_database
from atlas_agents.service.place import occupied
from atlas_agents.service.plugged import interceptors_of
from atlas_agents.service.rooms import offers
from atlas_agents.service.study import open_study
from atlas_agents.stores.keeper import Keep, Keeper
from atlas_agents.tools.approvals import Approvals
from atlas_agents.tools.registry import ToolRegistry
from atlas_agents.workspace.workspace import Workspace

logger = logging.getLogger(__name__)
Told: TypeAlias = Callable[[str, int, int, str], None]
"""Is told of a model that is fetched: which, bytes that are here, bytes there will be, and what is being done."""


class Runtime:
    """An Atlas with its store, its workspace and its tools; `async with opened(settings) as runtime`."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        atlas: Atlas,
        crew: Crew,
        tools: ToolRegistry,
        workspace: Workspace,
        study: Study,
        servers: Servers,
        company: Company | None = None,
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
        opening.enter_context(occupied(open_home(settings), shared=company is not None))
        store = open_store(settings, company.beside if company else None)
        await store.open()
        opening.push_async_callback(store.close)
        if works:
            await opening.enter_async_context(place_on_database(settings))
        runtime = _wired(settings, store, environment, opening, company)
        opening.push_async_callback(runtime.atlas.close)
        beside = [asyncio.create_task(runtime.crew.follow(runtime.atlas))]
        following = follow_servers(runtime.servers, settings, runtime.atlas, runtime.crew, runtime.tools)
        beside.append(asyncio.create_task(following))
        if fetch:
            get = _getter(models_folder(environment), told)
            beside.append(asyncio.create_task(runtime.crew.fetch(runtime.atlas, get)))
            keep = Keep(settings.keep_events, settings.keep_journals)
            beside.append(asyncio.create_task(Keeper(store, runtime.atlas.tenant, keep).run()))
        opening.push_async_callback(_end, beside)
        yield runtime


def _wired(
    settings: Settings, store: Store, environment: Environment, opening: AsyncExitStack, company: Company | None
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
    crew = Crew(workspace, registry, tools, settings.model, recall=settings.recall)
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


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
