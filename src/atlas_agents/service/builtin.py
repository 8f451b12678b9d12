"""The tools that come with the house, made as the settings say, and what they hold open."""

from contextlib import AsyncExitStack
from datetime import datetime
from logging import getLogger

from atlas_agents.config.settings import Settings
from atlas_agents.core.environment import Environment
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.plugins import Plugins
from atlas_agents.knowledge.study import Study
from atlas_agents.mcp.servers import Servers
from atlas_agents.service.rooms import toolbox
from atlas_agents.stores.memory import MemoryStore
from atlas_agents.tools.permissions import Cell, Policy
from atlas_agents.tools.registry import ToolRegistry
from atlas_agents.tools.tool import tool
from atlas_agents.workspace.skills import skill_tool

logger = getLogger(__name__)
_ASKED: dict[str, dict[str, Cell]] = {
    "bash": {"*": "yes"},  # the tool itself asks, unless a rule on its argv says otherwise
    "code_interpreter": {"*": "ask"},
    "file_write": {"*": "ask"},
    "file_edit": {"*": "ask"},
    "send_telegram_message": {"*": "ask"},
    "post_to_x": {},  # nobody, until a policy names who
    "search_x": {},
    "remember": {"*": "yes"},
    "forget": {"*": "ask"},  # what is gone is gone, and a page that was read may have wanted it
    "delegate_task": {"*": "yes"},  # who is asked acts under its own rules
}
HOUSE_RULES = Policy(name="house rules", tools=_ASKED)
"""Who may do what where there is no policy file: what has no effects, and, when a person agrees, these."""


@tool(effect="pure")
async def current_time() -> str:
    """Tell the date and the time of this machine."""
    return datetime.now().astimezone().strftime("%A, %d %B %Y, %H:%M:%S %Z")


def house_rules(servers: Servers) -> Policy:
    """The same, and when a person agrees, the tools of MCP servers that the owner has approved."""
    acts = [offer for offer in servers.offers() if offer.tool.effect != "pure"]
    lines: dict[str, dict[str, Cell]] = {f"{offer.server}/{offer.tool.name}": {"*": "ask"} for offer in acts}
    return Policy(name="house rules", tools=_ASKED | lines) if lines else HOUSE_RULES


def known_tools(
    settings: Settings,
    opening: AsyncExitStack | None = None,
    plugins: Plugins | None = None,
    environment: Environment | None = None,
    study: Study | None = None,
    servers: Servers | None = None,
) -> ToolRegistry:
    """Built-in tools, those of installed plugins, and of MCP servers. What they come to hold open is closed with
    `opening`; without a `study` those that look things up are only there to be listed."""
    registry = ToolRegistry()
    given = opening or AsyncExitStack(), environment or Environment()
    room = study or Study(MemoryStore())
    for item in (current_time, skill_tool(settings.workspace), *toolbox(settings, *given), *room.tools):
        registry.add(item, source="builtin")
    registry.load_plugins(plugins or Plugins(settings.disabled_plugins))
    if servers is not None:
        add_servers(registry, servers)
    return registry


def add_servers(registry: ToolRegistry, servers: Servers) -> None:
    """Know the tools of MCP servers as they are approved now, in place of those that were known of them before."""
    registry.drop("mcp")
    for offer in servers.offers():
        try:
            registry.add(offer.tool, source="mcp", namespace=offer.server)
        except ConfigError as error:
            logger.warning("a tool of the MCP server %s is left out: %s", offer.server, error)
