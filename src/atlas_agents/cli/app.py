"""The `atlas` commands: a table of names and help lines. The module of a command is imported when it is used."""

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, NamedTuple

from atlas_agents.cli import command as cli
from atlas_agents.core import package_version


class Entry(NamedTuple):
    """Location of a command: a module of this package and the group in it."""

    help: str
    module: str
    group: str = "app"
    is_group: bool = True


COMMANDS = {
    "serve": Entry("Start the gateway and its web UI.", "serve", is_group=False),
    "open": Entry("Open the web UI of the running gateway, signed in.", "serve", is_group=False),
    "chat": Entry("Chat with an agent in the terminal.", "chat", is_group=False),
    "ask": Entry("Ask one question and print the answer.", "ask", is_group=False),
    "acp": Entry("Use agents in an editor, over the Agent Client Protocol.", "acp", is_group=False),
    "agents": Entry("List, create, change, try and remove agents.", "info", "agents"),
    "tools": Entry("List the tools and which agents may use them.", "info", is_group=False),
    "usage": Entry("Show token usage and cost, and the remaining budgets.", "info", is_group=False),
    "doctor": Entry("Diagnose problems with this installation.", "doctor", is_group=False),
    "init": Entry("Create a workspace, settings and a policy in a folder, and choose a model.", "init", is_group=False),
    "trust": Entry("Trust a folder, and agree to changes that agents made.", "trust", is_group=False),
    "sessions": Entry("List, show, rename, copy, export and delete sessions.", "sessions"),
    "approvals": Entry("List and answer approval requests.", "approvals"),
    "jobs": Entry("List, cancel and retry the jobs that agents delegate.", "jobs"),
    "schedule": Entry("Manage recurring tasks.", "jobs", "schedules"),
    "policy": Entry("Show and change which agents may use which tools.", "info", "policy"),
    "trace": Entry("Show where the time of a turn went, as a tree.", "trace", is_group=False),
    "audit": Entry("Read and verify the audit log of tool calls.", "audit"),
    "eval": Entry("Evaluate agents and models with a file of cases: atlas eval FILE.", "evaluate"),
    "replay": Entry("Replay a finished run offline, save it as a test, or fork it.", "replay", is_group=False),
    "knowledge": Entry("Manage the documents that agents can search.", "knowledge"),
    "models": Entry("List models and their prices, and manage those that run on this machine.", "models"),
    "users": Entry("Manage the users of this tenant.", "access", "users"),
    "plans": Entry("Manage plans: limits on tokens, agents, storage and seats.", "access", "plans"),
    "tenants": Entry("Show the tenant and its plan usage.", "access", "tenants"),
    "mcp": Entry("Manage MCP servers, and serve agents over MCP.", "mcp"),
    "token": Entry("Manage the tokens that grant access to the gateway.", "access", "token"),
    "telegram": Entry("Manage who may use the Telegram bot.", "access", "telegram"),
    "cluster": Entry("Show the state of a cluster.", "serve", "cluster"),
    "store": Entry("Check, prune, back up and restore the database.", "store"),
    "config": Entry("Show the settings and where they come from.", "info", "config"),
    "protocol": Entry("Print the gateway's protocol as a schema.", "info", "protocol"),
    "plugins": Entry("List plugins, or create one.", "plugins"),
    "test": Entry("Test your own agents.", "crash_test"),
    "completion": Entry("Print the completion script of a shell.", "completion", is_group=False),
}
_ALIASES = {"plugin": "plugins"}


class Program(cli.Group):
    """The commands in `COMMANDS`, then the commands of plugins. A plugin cannot replace a command of ours."""

    def listing(self) -> list[tuple[str, str]]:
        plugins = [(name, self.find(name).help.partition("\n")[0]) for name in _plugin_commands()]
        return [*((name, entry.help) for name, entry in COMMANDS.items()), *plugins]

    def find(self, name: str) -> Any:
        name = _ALIASES.get(name, name)
        return _load(name, COMMANDS[name]) if name in COMMANDS else _load_plugin_command(name)

    @property
    def parameters(self) -> list[cli.Parameter]:
        return cli.Command("atlas", _root).parameters

    def run(self, arguments: Any, path: str) -> int:
        first = arguments[0] if arguments else cli.HELP
        if first == "__complete":  # called by the completion scripts
            from atlas_agents.cli.completion import print_candidates

            return print_candidates(self, arguments[1:])
        if any(first in parameter.names for parameter in self.parameters):
            return cli.Command("atlas", _root).run(arguments, path)
        return super().run(arguments or [first], path)


def _root(
    version: Annotated[bool, cli.Option("--version", help="Show the version and exit.")] = False,
    install: Annotated[
        bool, cli.Option("--install-completion", help="Install completion for the current shell.")
    ] = False,
    show: Annotated[
        bool,
        cli.Option(
            "--show-completion",
            help="Show completion for the current shell, to copy it or customize the installation.",
        ),
    ] = False,
) -> None:
    if version:
        print(f"atlas {package_version()}")
        return
    from atlas_agents.cli.completion import completion, current_shell, install_script

    if install:
        install_script()
    elif show:
        completion(current_shell())


def _load(name: str, entry: Entry) -> cli.Command | cli.Group:
    group: cli.Group = getattr(import_module(f"atlas_agents.cli.{entry.module}"), entry.group)
    if not entry.is_group:
        return group.commands[name]
    group.help = entry.help
    return group


def _plugin_commands() -> list[str]:
    if not _any_plugin_has_commands():
        return []
    from atlas_agents.core.plugins import Plugins

    return sorted(set(Plugins().names("commands")) - set(COMMANDS))


def _any_plugin_has_commands() -> bool:
    """Look for the entry point group in package metadata; importlib.metadata takes longer than the whole help."""
    for folder in filter(os.path.isdir, sys.path):
        for name in os.listdir(folder):
            if name.endswith((".dist-info", ".egg-info")):
                with suppress(OSError), open(os.path.join(folder, name, "entry_points.txt"), "rb") as file:
                    if b"[atlas_agents.commands]" in file.read():
                        return True
    return False


def _load_plugin_command(name: str) -> Any:
    from atlas_agents.core.plugins import Plugins

    loaded: dict[str, Any] = {}

    def load(plugin: str, target: Any) -> None:
        if plugin == name:
            loaded[plugin] = _as_command(name, target)

    plugins = Plugins()
    if name not in plugins.names("commands"):
        return None
    plugins.load("commands", load)
    if name not in loaded:
        cli.print_error(f"plugin {name} is disabled: {plugins.disabled.get(name)}")
        raise SystemExit(cli.EXIT_FAILED)
    return loaded[name]


def _as_command(name: str, target: Any) -> Any:
    """Convert a plugin's entry point to a command: a function whose parameters are options, or a Typer app."""
    typer = sys.modules.get("typer")  # a plugin that provides such an app has imported it
    return _TyperCommand(target) if typer and isinstance(target, typer.Typer) else cli.Command(name, target)


class _TyperCommand:
    """A Typer app of a plugin as a command."""

    def __init__(self, app: Any) -> None:
        from typer.main import get_command

        self._command: Any = get_command(app)
        self.help = self._command.help or ""

    def run(self, arguments: Any, path: str) -> int:
        return self._command.main([*arguments], prog_name=path)


app = Program("Run, use and administer LLM agents.")
