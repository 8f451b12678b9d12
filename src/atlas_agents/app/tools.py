"""Tools from the settings: built-in tools, plugins and MCP servers, and the default policy."""

import asyncio
import os
import string
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import lru_cache, partial
from itertools import islice
from logging import getLogger
from pathlib import Path

from atlas_agents.agents.hooks import Interceptor, offered_on
from atlas_agents.builtin_tools.bash import bash_tool
from atlas_agents.builtin_tools.code.tool import CodeInterpreter, code_tool
from atlas_agents.builtin_tools.files import file_tools
from atlas_agents.builtin_tools.sandbox import choose
from atlas_agents.builtin_tools.team import delegate_task, get_subscription_info, get_team_members
from atlas_agents.builtin_tools.telegram import KEYWORDS as TELEGRAM_KEYWORDS
from atlas_agents.builtin_tools.telegram import NAME as TELEGRAM
from atlas_agents.builtin_tools.telegram import telegram_tool
from atlas_agents.builtin_tools.telegram_api import BotAccount
from atlas_agents.builtin_tools.web.fetch import url_fetch
from atlas_agents.builtin_tools.web.search import NOT_CONFIGURED, choose_search, web_search
from atlas_agents.builtin_tools.x import POST, SEARCH, Account, XApi, XClient, XTokens, x_tools
from atlas_agents.channels.telegram.state import Pairing
from atlas_agents.config.open import database_files, is_postgres, open_policy
from atlas_agents.config.settings import Settings
from atlas_agents.core.aio import run_in_thread
from atlas_agents.core.errors import ConfigError, SandboxUnavailable, ToolFailed
from atlas_agents.core.paths import TRUST_FILE, Environment, is_protected, user_config
from atlas_agents.core.plugins import Plugins
from atlas_agents.core.trust import CODE_SUFFIXES, Trust, read_versions, workspace_files
from atlas_agents.knowledge.knowledge_base import KnowledgeBase
from atlas_agents.mcp.config import ApprovedServers
from atlas_agents.mcp.servers import Servers
from atlas_agents.providers.base import Request
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.policy import Cell, Policy
from atlas_agents.tools.registry import ToolRegistry
from atlas_agents.tools.tool import Tool, tool
from atlas_agents.workspace.skills import PROMPTS_FOLDER, skill_tool
from atlas_agents.workspace.workspace import WorkspaceState

logger = getLogger(__name__)

_PRIVATE_NAMES = (
    *(
        "token",
        "tokens.json",
        "invitations.json",
        "x.json",
        "telegram",
        "typed",
        "running.json",
        "lock",
        "logs",
        "models",
    ),
    *("secrets.json", "model.json", "trust", "uploads", "documents"),
)
"""Private files of the home folder, protected even if tools work in the home folder itself."""


_POLL_SECONDS = 1.0
_FILE_TOOLS = ("file_write", "file_edit")
_SANDBOXED_TOOLS = ("bash", "code_interpreter")
_WRITING_TOOLS = (*_SANDBOXED_TOOLS, *_FILE_TOOLS)
_MAX_PLUGIN_FILES = 2000
_MAX_FOLDERS = 256
"""Number of users whose tools are kept in memory."""
_NAME_CHARACTERS = frozenset(string.ascii_lowercase + string.digits + "-_")


def builtin_tools(settings: Settings, opening: AsyncExitStack, environment: Environment) -> list[Tool]:
    """Return the built-in tools that have side effects or use the network."""
    local = _local_tools(settings, opening, environment.trust_home)
    remote = [*_web(settings, opening, environment), _telegram(settings, opening), *_x(settings, opening)]
    return [*local, *remote, delegate_task, get_team_members, get_subscription_info]


def _local_tools(settings: Settings, opening: AsyncExitStack, trust_home: Path) -> list[Tool]:
    """Return the file tools, `bash` and `code_interpreter`, each confined to the folder of the user who calls it."""
    memory, shared = settings.code_memory * 1024 * 1024, settings.folder or settings.workspace
    interpreter = CodeInterpreter(shared, sandbox=settings.sandbox, python=settings.code_python, memory=memory)
    opening.push_async_callback(interpreter.close)

    @lru_cache(_MAX_FOLDERS)
    def build(folder: Path) -> dict[str, Tool]:
        tools = [*_folder_tools(settings, folder, trust_home), code_tool(interpreter.in_folder(folder))]
        return {tool.name: tool for tool in tools}

    def build_for(name: str, user: str) -> Tool:
        return build(_user_folder(settings, user) or shared)[name]

    tools = build(shared).values()
    return list(tools) if settings.shared_folder else [tool.per_user(partial(build_for, tool.name)) for tool in tools]


def _folder_tools(settings: Settings, folder: Path, trust_home: Path) -> list[Tool]:
    """Return the file tools and `bash`, confined to one folder; Atlas's own files and settings are protected."""
    private = [settings.home, *[settings.home / name for name in _PRIVATE_NAMES], *database_files(settings)]
    private += [_user_folders(settings), trust_home / TRUST_FILE.parent]
    guarded = [path for path in (settings.policy, settings.config) if path is not None]
    guarded += [settings.workspace / PROMPTS_FOLDER]
    servers, workspace = ApprovedServers(settings.home), settings.workspace

    def guarded_now() -> list[Path | str]:  # sent to worker processes, so it must not refer to the settings
        return [*guarded, *servers.program_paths(workspace)]

    bash = bash_tool(
        folder, sandbox=settings.sandbox, network=settings.bash_network, private=private, guarded=guarded_now
    )
    return [*file_tools(folder, private=private, guarded=guarded_now), bash]


_WEB_SEARCH = "web_search"


def _user_folders(settings: Settings) -> Path:
    return settings.user_folders or settings.home / "users"


def _user_folder(settings: Settings, user: str) -> Path | None:
    """Return the folder of a user, created if necessary; None for the owner, who works in the configured folder."""
    if user in ("", "owner"):
        return None
    if not _NAME_CHARACTERS.issuperset(user):
        raise ToolFailed(f"no folder for user {user!r}: expected a name of lowercase letters, digits, '-' and '_'")
    folder = _user_folders(settings) / user
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ToolFailed(f"cannot create the folder {folder}: {error.strerror}; set user_folders") from None
    return folder


def _web(settings: Settings, opening: AsyncExitStack, environment: Environment) -> list[Tool]:
    search = choose_search(settings.search, settings.search_url, settings.search_key, environment)
    return [web_search(opening, search), url_fetch(opening, hosts=settings.fetch_hosts)]


def _unconfigured_tools(settings: Settings, environment: Environment) -> set[str]:
    """Return the tools that can only fail because no service or account is configured, except Telegram's."""
    search = choose_search(settings.search, settings.search_url, settings.search_key, environment)
    x: set[str] = set() if _has_x(settings) else {POST, SEARCH}
    return x | {_WEB_SEARCH} if search == NOT_CONFIGURED else x


def keyword_tools(settings: Settings, environment: Environment) -> Interceptor:
    """Return the interceptor that offers some tools only after a keyword, and never those that are not configured."""
    bot = telegram_bot(settings)
    never: dict[str, Sequence[str]] = dict.fromkeys(_unconfigured_tools(settings, environment), ())
    with_bot, without_bot = offered_on({TELEGRAM: TELEGRAM_KEYWORDS, **never}), offered_on({TELEGRAM: (), **never})

    async def offer(request: Request) -> Request | None:
        names_it = any(spec.name == TELEGRAM for spec in request.tools)
        return await (with_bot if names_it and bot.token else without_bot)(request)

    return Interceptor(request=offer)


async def find_unavailable_tools(settings: Settings) -> dict[str, str]:
    """Return the tools that are not offered because no sandbox works here, with the reason; none if a person chose to
    run them without a sandbox."""
    try:
        await choose(settings.sandbox)
    except SandboxUnavailable as failure:
        remedy = f'{failure.remedy}; or set sandbox = "none" to run them with all your permissions'
        return dict.fromkeys(_SANDBOXED_TOOLS, f"no sandbox works here ({failure.reason}). To fix: {remedy}")
    return {}


def only_named_tools(settings: Settings, environment: Environment, state: WorkspaceState) -> frozenset[str]:
    """Return the tools that `Tools: *` leaves out, because their service, account or data is missing."""
    missing = _unconfigured_tools(settings, environment)
    if not telegram_bot(settings).token:
        missing.add(TELEGRAM)
    if len(state.agents) == 1:
        missing |= {delegate_task.name, get_team_members.name}
    if not is_postgres(settings):  # plans are for an installation with several customers
        missing.add(get_subscription_info.name)
    if not state.skills:
        missing.add("read_skill")
    return frozenset(missing)


def _telegram(settings: Settings, opening: AsyncExitStack) -> Tool:
    bot, pairing = telegram_bot(settings), Pairing(settings.home)
    opening.push_async_callback(bot.close)

    def default_chat() -> str | None:
        """Return the configured chat, or else that of the only person who is paired."""
        paired = list(pairing.pairs())
        return settings.telegram_chat or (str(paired[0]) if len(paired) == 1 else None)

    return telegram_tool(bot.api, default_chat)


def telegram_bot(settings: Settings) -> BotAccount:
    """Return the Telegram bot of the settings, which may have its token in the secret file."""
    return BotAccount(settings.telegram_token, settings.home, settings.telegram_url)


def _has_x(settings: Settings) -> bool:
    return settings.x_token is not None or settings.x_refresh_token is not None


def _x(settings: Settings, opening: AsyncExitStack) -> list[Tool]:
    if not _has_x(settings):
        return x_tools(None)
    account = Account(settings.x_client_id, settings.x_client_secret, settings.x_token, settings.x_refresh_token)
    client = XClient(settings.x_url)
    opening.push_async_callback(client.close)
    return x_tools(XApi(client, XTokens(account, settings.home / "x.json", client)))


_DEFAULT_CELLS: dict[str, dict[str, Cell]] = {
    "bash": {"*": "yes"},  # the tool itself asks, unless a rule on its argv decides
    "code_interpreter": {"*": "ask"},
    "file_write": {"*": "ask"},
    "file_edit": {"*": "ask"},
    "send_telegram_message": {"*": "ask"},
    "post_to_x": {},  # denied until a policy names a role
    "search_x": {},
    "remember": {"*": "yes"},
    "forget": {"*": "ask"},  # irreversible, and a page that was read may have prompted it
    "delegate_task": {"*": "yes"},  # the other agent acts under its own permissions
}
DEFAULT_POLICY = Policy(name="default policy", tools=_DEFAULT_CELLS)
"""Permissions without a policy file: pure tools, and these after approval."""


@tool(effect="pure")
async def current_time() -> str:
    """Tell the date and the time of this machine."""
    return datetime.now().astimezone().strftime("%A, %d %B %Y, %H:%M:%S %Z")


def default_policy(servers: Servers) -> Policy:
    """Return the default policy; tools of approved MCP servers that have effects need approval."""
    effectful = [offer for offer in servers.approved_tools() if offer.tool.effect != "pure"]
    cells: dict[str, dict[str, Cell]] = {f"{offer.server}/{offer.tool.name}": {"*": "ask"} for offer in effectful}
    return Policy(name="default policy", tools=_DEFAULT_CELLS | cells) if cells else DEFAULT_POLICY


def permissions_file(settings: Settings) -> Path:
    """Return the file with the permissions: the policy, or changes to the default policy in the home folder."""
    return settings.policy or settings.home / "permissions.toml"


class PermissionsEditor:
    """Permissions in effect: the policy file, or the default policy with the changes of `permissions.toml`."""

    def __init__(self, settings: Settings, servers: Servers, trust: Trust) -> None:
        self.path = permissions_file(settings)
        self.trust: Trust | None = trust
        self._settings = settings
        self._servers = servers
        self._apply: Callable[[Policy], None] | None = None

    def connect(self, apply: Callable[[Policy], None]) -> None:
        """Set the function with which `reload` and `watch` apply the permissions."""
        self._apply = apply

    def read(self) -> bytes:
        """Return the version of the file that is in use; empty if there is none."""
        _, agreed = read_versions(self.path, self.trust)
        return agreed or b""

    def effective(self, content: bytes) -> Policy:
        """Return the policy that applies with this content of the file; ConfigError if it is invalid."""
        found = Policy.load(self.path, content)
        if self._settings.policy:
            return found
        if found.version != Policy(tools=found.tools).version:
            raise ConfigError(f"{self.path}: expected only tables such as [tools.bash]; set policy for other rules")
        return default_policy(self._servers).with_tools(found.tools)

    def load(self) -> Policy:
        """Return the policy that applies now; ConfigError if the file is invalid."""
        if self._settings.policy:
            return open_policy(self._settings, self.trust) or default_policy(self._servers)
        return self.effective(self.read())

    async def reload(self) -> None:
        """Reload the file and apply it."""
        policy = await run_in_thread(self.load)
        if self._apply is not None:
            self._apply(policy)

    async def watch(self) -> None:
        """Apply the file whenever it changes, or a person agrees to a change; an invalid file changes nothing."""
        seen = self._read_stamps()
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if (now := self._read_stamps()) != seen:
                seen = now
                try:
                    await self.reload()
                except ConfigError as error:
                    logger.warning("permissions rejected, the previous ones stay in use: error=%s", error)

    def _read_stamps(self) -> tuple[int, ...]:
        return (*_stamp(self.path), *(self.trust.stamp() if self.trust is not None else ()))


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


def build_tool_registry(
    settings: Settings,
    opening: AsyncExitStack | None = None,
    plugins: Plugins | None = None,
    environment: Environment | None = None,
    knowledge: KnowledgeBase | None = None,
    servers: Servers | None = None,
    trust: Trust | None = None,
) -> ToolRegistry:
    """Return the registry of built-in tools and those of plugins and MCP servers; `opening` closes their resources.
    Without a `knowledge` base, its tools can only be listed."""
    registry = ToolRegistry()
    resources = opening or AsyncExitStack(), environment or Environment()
    knowledge = knowledge or KnowledgeBase(MemoryStore(), search_tool=settings.knowledge_tool)
    for item in (
        current_time,
        skill_tool(settings.workspace, trust),
        *builtin_tools(settings, *resources),
        *knowledge.tools,
    ):
        registry.add(item, source="builtin")
    registry.load_plugins(plugins or Plugins(settings.disabled_plugins))
    if servers is not None:
        add_mcp_tools(registry, servers)
    return registry


def hold_changes(settings: Settings, environment: Environment, trust: Trust, tool: Tool) -> Tool:
    """Wrap a tool that may change files: changes that it makes to prompts, skills, policies, settings and plugins take
    effect only after a person agreed to them.

    An approved call of `file_write` or `file_edit` counts as agreed: the person saw the change.
    """
    if tool.effect == "pure" or not (tool.name in _WRITING_TOOLS or "/" in tool.name):
        return tool

    def begin(reason: str) -> None:
        folders = [settings.workspace, *plugin_folders(settings)]
        trust.begin(_control_files(settings, environment), folders, reason)

    async def end_after(begun: asyncio.Task[None]) -> list[Path]:
        await begun
        return await run_in_thread(lambda: trust.end(_control_files(settings, environment)))

    @asynccontextmanager
    async def around(context: ToolContext) -> AsyncGenerator[None]:
        if context.approved and tool.name in _FILE_TOOLS:
            yield
            return
        reason = f"while the agent {context.agent.id} used {tool.name} in session {context.conversation.id}"
        begun = asyncio.create_task(run_in_thread(begin, reason))
        try:
            await asyncio.shield(begun)
            yield
        finally:  # a call that is cancelled must not leave the files locked
            changed = await asyncio.shield(asyncio.create_task(end_after(begun)))
            if changed:
                context.note("held", ", ".join(sorted(path.name for path in changed)))

    return tool.within(around)


def _control_files(settings: Settings, environment: Environment) -> list[Path]:
    """Return the files that define agents, prompts, permissions, settings and plugins."""
    here = Path.cwd()
    found = [folder / name for folder in (here, settings.home) for name in (".env", "atlas.toml")]
    found += [user_config(environment), permissions_file(settings), *filter(None, (settings.config, settings.policy))]
    for folder in plugin_folders(settings):
        found += islice((path for path in folder.rglob("*") if path.suffix in CODE_SUFFIXES), _MAX_PLUGIN_FILES)
    return [*found, *workspace_files(settings.workspace)]


def plugin_folders(settings: Settings) -> list[Path]:
    """Return the folders that Python imports plugins from and that tools can write to."""
    root = Path(os.path.realpath(settings.folder or settings.workspace))
    found = {Path(os.path.realpath(each)) for each in sys.path if each}
    return [each for each in sorted(found) if each.is_relative_to(root) and not is_protected(each.relative_to(root))]


def add_mcp_tools(registry: ToolRegistry, servers: Servers) -> None:
    """Replace the tools of MCP servers with those that are approved now."""
    registry.drop("mcp")
    for offer in servers.approved_tools():
        try:
            registry.add(offer.tool, source="mcp", namespace=offer.server)
        except ConfigError as error:
            logger.warning("MCP tool skipped: server=%s error=%s", offer.server, error)
