"""The rooms of the toolbox, each made as the settings say."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from atlas_agents.config.opening import database_files
from atlas_agents.config.settings import Settings
from atlas_agents.core.environment import Environment
from atlas_agents.engine.interceptors import Interceptor
from atlas_agents.toolbox.code.tool import CodeInterpreter, code_tool
from atlas_agents.toolbox.files import file_tools
from atlas_agents.toolbox.offers import offered_on
from atlas_agents.toolbox.shell import bash_tool
from atlas_agents.toolbox.team import delegate_task, get_subscription_info, get_team_members
from atlas_agents.toolbox.telegram.api import BotApi
from atlas_agents.toolbox.telegram.send import KEYWORDS as TELEGRAM_WORDS
from atlas_agents.toolbox.telegram.send import NAME as TELEGRAM
from atlas_agents.toolbox.telegram.send import telegram_tool
from atlas_agents.toolbox.web.choice import choose
from atlas_agents.toolbox.web.fetch import url_fetch
from atlas_agents.toolbox.web.search import web_search
from atlas_agents.toolbox.x.api import XApi
from atlas_agents.toolbox.x.oauth import Account, Tokens
from atlas_agents.toolbox.x.tools import POST, SEARCH, x_tools
from atlas_agents.toolbox.x.wire import Wire
from atlas_agents.tools.tool import Tool

_KEPT = ("token", "tokens.json", "x.json", "telegram", "typed", "running.json", "lock", "logs", "models")
"""What the home holds of its own, for those who let tools work in the home itself."""


def toolbox(settings: Settings, opening: AsyncExitStack, environment: Environment) -> list[Tool]:
    """What touches the outside, a room of the toolbox after the other."""
    folder = settings.folder or settings.workspace
    near = [*_of_the_folder(settings, folder), _code(settings, folder, opening)]
    far = [*_web(settings, opening, environment), _telegram(settings, opening), *_x(settings, opening)]
    return [*near, *far, delegate_task, get_team_members, get_subscription_info]


def _of_the_folder(settings: Settings, folder: Path) -> list[Tool]:
    """Files and commands, confined to one folder; what the house itself keeps is not theirs, nor what rules it."""
    private = [settings.home, *[settings.home / name for name in _KEPT], *database_files(settings)]
    guarded = [path for path in (settings.policy, settings.config) if path is not None]
    bash = bash_tool(folder, sandbox=settings.sandbox, network=settings.bash_network, private=private, guarded=guarded)
    return [*file_tools(folder, private=private, guarded=guarded), bash]


def _code(settings: Settings, folder: Path, opening: AsyncExitStack) -> Tool:
    memory = settings.code_memory * 1024 * 1024
    interpreter = CodeInterpreter(folder, sandbox=settings.sandbox, python=settings.code_python, memory=memory)
    opening.push_async_callback(interpreter.close)
    return code_tool(interpreter)


def _web(settings: Settings, opening: AsyncExitStack, environment: Environment) -> list[Tool]:
    search = choose(settings.search, settings.search_url, settings.search_key, environment)
    return [web_search(opening, search), url_fetch(opening, hosts=settings.fetch_hosts)]


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
