"""The tools that come with the house, made as the settings say, and what they hold open."""

from contextlib import AsyncExitStack
from datetime import datetime

from atlas_agents.config.settings import Settings
from atlas_agents.core.environment import Environment
from atlas_agents.core.plugins import Plugins
from atlas_agents.knowledge.study import Study
from atlas_agents.stores.memory import MemoryStore
from atlas_agents.toolbox.web.choice import choose
from atlas_agents.toolbox.web.fetch import url_fetch
from atlas_agents.toolbox.web.search import web_search
from atlas_agents.tools.permissions import Policy
from atlas_agents.tools.registry import ToolRegistry
from atlas_agents.tools.tool import Tool, tool
from atlas_agents.workspace.skills import skill_tool

HOUSE_RULES = Policy(
    name="house rules",
    tools={
        "bash": {"*": "yes"},  # the tool itself asks, unless a rule on its argv says otherwise
        "code_interpreter": {"*": "ask"},
        "file_write": {"*": "ask"},
        "file_edit": {"*": "ask"},
        "send_telegram_message": {"*": "ask"},
        "remember": {"*": "yes"},
        "forget": {"*": "ask"},  # what is gone is gone, and a page that was read may have wanted it
    },
)
"""Who may do what where there is no policy file: what has no effects, and, when a person agrees, these."""


@tool(effect="pure")
async def current_time() -> str:
    """Tell the date and the time of this machine."""
    return datetime.now().astimezone().strftime("%A, %d %B %Y, %H:%M:%S %Z")


def known_tools(
    settings: Settings,
    opening: AsyncExitStack | None = None,
    plugins: Plugins | None = None,
    environment: Environment | None = None,
    study: Study | None = None,
) -> ToolRegistry:
    """Built-in tools, and those of installed plugins. What they come to hold open is closed with `opening`; without a
    `study` those that look things up are only there to be listed."""
    registry = ToolRegistry()
    room = study or Study(MemoryStore())
    toolbox = _toolbox(settings, opening or AsyncExitStack(), environment or Environment())
    for item in (current_time, skill_tool(settings.workspace), *toolbox, *room.tools):
        registry.add(item, source="builtin")
    registry.load_plugins(plugins or Plugins(settings.disabled_plugins))
    return registry


def _toolbox(settings: Settings, opening: AsyncExitStack, environment: Environment) -> list[Tool]:
    """What touches the outside, a room of the toolbox after the other."""
    search = choose(settings.search, settings.search_url, settings.search_key, environment)
    return [
        web_search(opening, search),
        url_fetch(opening, hosts=settings.fetch_hosts),
    ]
