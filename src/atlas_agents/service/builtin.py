"""The tools that come with the house, made as the settings say, and what they hold open."""

from contextlib import AsyncExitStack
from datetime import datetime

from atlas_agents.config.settings import Settings
from atlas_agents.core.environment import Environment
from atlas_agents.core.plugins import Plugins
from atlas_agents.knowledge.study import Study
from atlas_agents.service.rooms import toolbox
from atlas_agents.stores.memory import MemoryStore
from atlas_agents.tools.permissions import Policy
from atlas_agents.tools.registry import ToolRegistry
from atlas_agents.tools.tool import tool
from atlas_agents.workspace.skills import skill_tool

HOUSE_RULES = Policy(
    name="house rules",
    tools={
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
    given = opening or AsyncExitStack(), environment or Environment()
    room = study or Study(MemoryStore())
    for item in (current_time, skill_tool(settings.workspace), *toolbox(settings, *given), *room.tools):
        registry.add(item, source="builtin")
    registry.load_plugins(plugins or Plugins(settings.disabled_plugins))
    return registry
