"""The tools that come with the house, made as the settings say, and what they hold open."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime

from atlas_agents.config.settings import Settings
from atlas_agents.core.plugins import Plugins
from atlas_agents.engine.interceptors import Interceptor
from atlas_agents.toolbox.offers import offered_on
from atlas_agents.toolbox.telegram.api import BotApi
from atlas_agents.toolbox.telegram.send import KEYWORDS as TELEGRAM_WORDS
from atlas_agents.toolbox.telegram.send import NAME as TELEGRAM
from atlas_agents.toolbox.telegram.send import telegram_tool
from atlas_agents.toolbox.x.api import XApi
from atlas_agents.toolbox.x.oauth import Account, Tokens
from atlas_agents.toolbox.x.tools import POST, SEARCH, x_tools
from atlas_agents.toolbox.x.wire import Wire
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
        "post_to_x": {},  # nobody, until a policy names who
        "search_x": {},
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
    return [_telegram(settings, opening), *_x(settings, opening)]


def offers(settings: Settings) -> Interceptor:
    """Tells models of tools that wait for their word only when it was said, and never of one that is not set up."""
    held: dict[str, Sequence[str]] = {TELEGRAM: TELEGRAM_WORDS if settings.telegram_token else ()}
    if not _has_x(settings):
        held |= {POST: (), SEARCH: ()}
    return Interceptor(request=offered_on(held))


def _telegram(settings: Settings, opening: AsyncExitStack) -> Tool:
    api = BotApi(settings.telegram_token, settings.telegram_url) if settings.telegram_token else None
    if api is not None:
        opening.push_async_callback(api.close)
    return telegram_tool(api, settings.telegram_chat)


def _has_x(settings: Settings) -> bool:
    return settings.x_token is not None or settings.x_refresh_token is not None


def _x(settings: Settings, opening: AsyncExitStack) -> list[Tool]:
    if not _has_x(settings):
        return x_tools(None)
    account = Account(settings.x_client_id, settings.x_client_secret, settings.x_token, settings.x_refresh_token)
    wire = Wire(settings.x_url)
    opening.push_async_callback(wire.close)
    return x_tools(XApi(wire, Tokens(account, settings.home / "x.json", wire)))
