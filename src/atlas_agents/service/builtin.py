"""The tools that come with the house, made as the settings say, and what they hold open."""

from contextlib import AsyncExitStack
from datetime import datetime

from atlas_agents.config.settings import Settings
from atlas_agents.toolbox.team import delegate_task, get_subscription_info, get_team_members
from atlas_agents.tools.permissions import Policy
from atlas_agents.tools.registry import ToolRegistry
from atlas_agents.tools.tool import Tool, tool

HOUSE_RULES = Policy(
    name="house rules",
    tools={
        "bash": {"*": "yes"},  # the tool itself asks, unless a rule on its argv says otherwise
        "code_interpreter": {"*": "ask"},
        "file_write": {"*": "ask"},
        "file_edit": {"*": "ask"},
        "send_telegram_message": {"*": "ask"},
        "delegate_task": {"*": "yes"},  # who is asked acts under its own rules
    },
)
"""Who may do what where there is no policy file: what has no effects, and, when a person agrees, these."""


@tool(effect="pure")
async def current_time() -> str:
    """Tell the date and the time of this machine."""
    return datetime.now().astimezone().strftime("%A, %d %B %Y, %H:%M:%S %Z")


def known_tools(settings: Settings, opening: AsyncExitStack | None = None) -> ToolRegistry:
    """Built-in tools, and those of installed plugins. What they come to hold open is closed with `opening`."""
    registry = ToolRegistry()
    for item in (current_time, *_toolbox(settings, opening or AsyncExitStack())):
        registry.add(item, source="builtin")
    registry.load_plugins()
    return registry


def _toolbox(settings: Settings, opening: AsyncExitStack) -> list[Tool]:
    """What touches the outside, a room of the toolbox after the other."""
    return [delegate_task, get_team_members, get_subscription_info]
