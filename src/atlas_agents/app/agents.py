"""The MCP servers of a house, followed while it runs: edited and approved without a restart."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from typing import TypeAlias

import msgspec

from atlas_agents.agents.agent import Agent
from atlas_agents.agents.atlas import Atlas
from atlas_agents.app.tools import add_servers, house_rules
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import AtlasError, ConfigError
from atlas_agents.core.messages import Message, approximate_tokens
from atlas_agents.core.paths import Environment
from atlas_agents.gateway.protocol.admin import ForeignServer, ForeignServers
from atlas_agents.mcp.callbacks import SampledMessage, say
from atlas_agents.mcp.servers import Servers
from atlas_agents.providers.demo import Demo
from atlas_agents.providers.registry import Model, Registry, parse_model_ref
from atlas_agents.tools.registry import ToolRegistry
from atlas_agents.tools.tool import Tool
from atlas_agents.workspace.build import LOCAL_MODEL, build_agents
from atlas_agents.workspace.workspace import Workspace, WorkspaceState

logger = logging.getLogger(__name__)
_PAUSES = (30.0, 120.0, 600.0)
_DEMO_PAUSE = 0.02
Get: TypeAlias = Callable[[str], Awaitable[None]]
"""Has a local model here, or raises an AtlasError that says why it cannot be."""


class AgentLoader:
    """Makes agents of what the workspace says. `notices` are sentences, by agent, about models that others stand in
    for; `trouble` says why there is no local model, if there should be one."""

    def __init__(
        self,
        workspace: Workspace,
        registry: Registry,
        tools: Iterable[Tool],
        default: str | None = None,
        *,
        recall: bool = False,
    ) -> None:
        self._workspace = workspace
        self._registry = registry
        self._tools = list(tools)
        self._default = default
        self._recall = recall
        self.notices: dict[str, str] = {}
        self.trouble: str | None = None
        self.local: tuple[str, ...] = ()
        """Local models that agents speak with."""

    def give(self, tools: Iterable[Tool]) -> None:
        """Let these be the tools from the next time on that agents are made."""
        self._tools = list(tools)

    def agents(self, state: WorkspaceState | None = None) -> tuple[Agent, ...]:
        """All of them, each told the workspace's prompt and then its own; ConfigError if any cannot be made."""
        state = state or self._workspace.state
        built = build_agents(state, self._tools, self._registry, self._default, self._stand_in)
        self.notices, self.local = built.notices, tuple(ref for ref in built.refs if _is_local(ref))
        return built.agents

    def recalls(self, agent_id: str) -> bool:
        """Whether memories are recalled before this agent's turns: as its section says, or else the settings."""
        said = next((spec.recall for spec in self._workspace.state.agents if spec.id == agent_id), None)
        return self._recall if said is None else said

    def _stand_in(self, ref: str) -> tuple[Model, str] | None:
        """A demo, where there should be a local model and is none."""
        if self.trouble is None or not _is_local(ref):
            return None
        return Demo(pause=_DEMO_PAUSE), f"{ref} cannot answer ({self.trouble}); a scripted demo answers instead"

    async def follow(self, atlas: Atlas) -> None:
        """Give an Atlas new agents whenever the workspace is edited; an edit that cannot be used changes nothing."""
        async for state in self._workspace.watch():
            try:
                atlas.set_agents(self.agents(state))
            except ConfigError as error:
                logger.warning("the workspace stays as it was: %s", error)
            else:
                logger.info("the workspace was edited: %s", ", ".join(agent.id for agent in atlas.agents))

    async def fetch(self, atlas: Atlas, get: Get) -> None:
        """Have the local models here that are wanted. Where that fails a demo stands in, until another try succeeds."""
        for pause in (*_PAUSES, *[_PAUSES[-1]] * 100):
            before = self.trouble
            self.trouble = await self._missing(get)
            if self.trouble != before:
                atlas.set_agents(self.agents())
            if self.trouble is None:
                return
            await asyncio.sleep(pause)

    async def _missing(self, get: Get) -> str | None:
        for ref in self.local:
            try:
                await get(parse_model_ref(ref).model)
            except AtlasError as error:
                return str(error)
        return None


def _is_local(ref: str) -> bool:
    return parse_model_ref(ref).provider == "local"


_EVERY = 1.0


def open_servers(settings: Settings, environment: Environment, registry: Registry, opening: AsyncExitStack) -> Servers:
    """The servers that the workspace names. A model speaks for those that may have one speak."""

    async def speak(messages: list[Message], system: str, most: int) -> SampledMessage:
        ref = settings.model or registry.default_model or LOCAL_MODEL
        spoken = await say(registry.route(ref), messages, system, most)
        if spoken.usage.input_tokens:
            return spoken
        counted = sum([approximate_tokens(message) for message in messages])
        usage = msgspec.structs.replace(spoken.usage, input_tokens=counted, estimated=True)
        return msgspec.structs.replace(spoken, usage=usage)

    servers = Servers(settings.workspace, settings.home, environment, speak)
    opening.push_async_callback(servers.close)
    return servers


def servers_shape(servers: Servers) -> ForeignServers:
    """What a client of the gateway is told of them: names and states, and nothing of how they are started."""
    shapes = [
        ForeignServer(name, servers.state(name), _names(servers, name), servers.trouble_of(name))
        for name in servers.known
    ]
    return ForeignServers(tuple(shapes), servers.trouble)


def _names(servers: Servers, name: str) -> tuple[str, ...]:
    approval = servers.approvals.get(name)
    return tuple(f"{name}/{tool.name}" for tool in approval.tools) if approval is not None else ()


async def follow_servers(
    servers: Servers, settings: Settings, atlas: Atlas, crew: AgentLoader, tools: ToolRegistry
) -> None:
    """Whenever `mcp.json` or an approval changes, give the agents the tools that they may have now; until cancelled."""
    seen = servers.stamp()
    while True:
        await asyncio.sleep(_EVERY)
        now = servers.stamp()
        if now == seen:
            continue
        seen = now
        servers.load()
        try:
            add_servers(tools, servers)
            crew.give(tools)
            agents = crew.agents()
        except ConfigError as error:
            logger.warning("the agents keep the tools that they had: %s", error)
            continue
        if not settings.policy:
            atlas.policy = house_rules(servers)
        atlas.set_agents(agents)
        await servers.tidy()
        logger.info("the MCP servers have changed: %s", ", ".join(servers.known) or "none")
