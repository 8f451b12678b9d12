"""The MCP servers of a house, followed while it runs: edited and approved without a restart."""

import asyncio
import logging
from contextlib import AsyncExitStack

import msgspec

from atlas_agents.config.settings import Settings
from atlas_agents.core.environment import Environment
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.messages import Message
from atlas_agents.core.tokens import approximate_tokens
from atlas_agents.engine.atlas import Atlas
from atlas_agents.gateway.protocol.calls import ForeignServer, ForeignServers
from atlas_agents.mcp.servers import Servers
from atlas_agents.mcp.speaking import Spoken, say
from atlas_agents.providers.registry import Registry
from atlas_agents.service.builtin import add_servers, house_rules
from atlas_agents.service.crew import Crew
from atlas_agents.tools.registry import ToolRegistry
from atlas_agents.workspace.models import LOCAL_MODEL

logger = logging.getLogger(__name__)
_EVERY = 1.0


def open_servers(settings: Settings, environment: Environment, registry: Registry, opening: AsyncExitStack) -> Servers:
    """The servers that the workspace names. A model speaks for those that may have one speak."""

    async def speak(messages: list[Message], system: str, most: int) -> Spoken:
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


async def follow_servers(servers: Servers, settings: Settings, atlas: Atlas, crew: Crew, tools: ToolRegistry) -> None:
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
