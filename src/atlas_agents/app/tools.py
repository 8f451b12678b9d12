"""The tools that come with the house, made as the settings say, and what they hold open."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from logging import getLogger
from pathlib import Path

from atlas_agents.agents.hooks import Interceptor
from atlas_agents.builtin_tools.bash import bash_tool
from atlas_agents.builtin_tools.code.tool import CodeInterpreter, code_tool
from atlas_agents.builtin_tools.files import file_tools
from atlas_agents.builtin_tools.offers import offered_on
from atlas_agents.builtin_tools.team import delegate_task, get_subscription_info, get_team_members
from atlas_agents.builtin_tools.telegram import KEYWORDS as TELEGRAM_WORDS
from atlas_agents.builtin_tools.telegram import NAME as TELEGRAM
from atlas_agents.builtin_tools.telegram import telegram_tool
from atlas_agents.builtin_tools.telegram_api import BotApi
from atlas_agents.builtin_tools.web.fetch import url_fetch
from atlas_agents.builtin_tools.web.search import choose, web_search
from atlas_agents.builtin_tools.x import POST, SEARCH, Account, XApi, XClient, XTokens, x_tools
from atlas_agents.config.open import database_files
from atlas_agents.config.settings import Settings
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import Environment
from atlas_agents.core.plugins import Plugins
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.mcp.servers import Servers
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.tools.policy import Cell, Policy
from atlas_agents.tools.registry import ToolRegistry
from atlas_agents.tools.tool import Tool, tool
from atlas_agents.workspace.skills import skill_tool

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
    wire = XClient(settings.x_url)
    opening.push_async_callback(wire.close)
    return x_tools(XApi(wire, XTokens(account, settings.home / "x.json", wire)))


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
    study: KnowledgeBase | None = None,
    servers: Servers | None = None,
) -> ToolRegistry:
    """Built-in tools, those of installed plugins, and of MCP servers. What they come to hold open is closed with
    `opening`; without a `study` those that look things up are only there to be listed."""
    registry = ToolRegistry()
    given = opening or AsyncExitStack(), environment or Environment()
    room = study or KnowledgeBase(MemoryStore(), search_tool=settings.knowledge_tool)
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
