"""The tools that come with the house, made as the settings say, and what they hold open."""

from contextlib import AsyncExitStack
from datetime import datetime

from atlas_agents.config.settings import Settings
from atlas_agents.core.plugins import Plugins
from atlas_agents.toolbox.code.tool import CodeInterpreter, code_tool
from atlas_agents.toolbox.files import file_tools
from atlas_agents.toolbox.shell import bash_tool
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
    },
)
"""Who may do what where there is no policy file: what has no effects, and, when a person agrees, these."""


@tool(effect="pure")
async def current_time() -> str:
    """Tell the date and the time of this machine."""
    return datetime.now().astimezone().strftime("%A, %d %B %Y, %H:%M:%S %Z")


def known_tools(
    settings: Settings, opening: AsyncExitStack | None = None, plugins: Plugins | None = None
) -> ToolRegistry:
    """Built-in tools, and those of installed plugins. What they come to hold open is closed with `opening`."""
    registry = ToolRegistry()
    for item in (current_time, skill_tool(settings.workspace), *_toolbox(settings, opening or AsyncExitStack())):
        registry.add(item, source="builtin")
    registry.load_plugins(plugins or Plugins(settings.disabled_plugins))
    return registry


def _toolbox(settings: Settings, opening: AsyncExitStack) -> list[Tool]:
    """What touches the outside, a room of the toolbox after the other."""
    return [*_of_the_folder(settings), _code(settings, opening)]


def _of_the_folder(settings: Settings) -> list[Tool]:
    """Files and commands, confined to one folder; what the house itself keeps is not theirs, nor what rules it."""
    folder = settings.folder or settings.workspace
    private = [settings.home, *[settings.home / name for name in ("token", "tokens.json", "atlas.db")]]
    guarded = [path for path in (settings.policy, settings.config) if path is not None]
    bash = bash_tool(folder, sandbox=settings.sandbox, network=settings.bash_network, private=private, guarded=guarded)
    return [*file_tools(folder, private=private, guarded=guarded), bash]


def _code(settings: Settings, opening: AsyncExitStack) -> Tool:
    interpreter = CodeInterpreter(
        settings.folder or settings.workspace,
        sandbox=settings.sandbox,
        python=settings.code_python,
        memory=settings.code_memory * 1024 * 1024,
    )
    opening.push_async_callback(interpreter.close)
    return code_tool(interpreter)
