"""The tools that come with the house."""

from datetime import datetime

from atlas_agents.tools.registry import ToolRegistry
from atlas_agents.tools.tool import tool


@tool(effect="pure")
async def current_time() -> str:
    """Tell the date and the time of this machine."""
    return datetime.now().astimezone().strftime("%A, %d %B %Y, %H:%M:%S %Z")


def known_tools() -> ToolRegistry:
    """Built-in tools, and those of installed plugins."""
    registry = ToolRegistry()
    registry.add(current_time, source="builtin")
    registry.load_plugins()
    return registry
