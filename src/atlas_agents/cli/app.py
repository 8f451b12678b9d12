"""The `atlas` commands: a table of names and help lines. The module of a command is imported when it is used."""

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
import typer.main

from atlas_agents.cli import version_text
from atlas_agents.cli.command import PlainGroup


class Entry(NamedTuple):
    """Where a command is defined: a module of this package and the Typer in it."""

    help: str
    module: str
    typer: str = "app"
    is_group: bool = True


COMMANDS = {
    "serve": Entry("Start the gateway and its web UI.", "serve", is_group=False),
    "chat": Entry("Chat with an agent in the terminal.", "chat", is_group=False),
    "ask": Entry("Ask one question and print the answer.", "ask", is_group=False),
    "agents": Entry("List the agents, their models and their tools.", "info", is_group=False),
    "tools": Entry("List the tools and which agents may use them.", "info", is_group=False),
    "usage": Entry("Show token usage and cost, and what is left of the budgets.", "info", is_group=False),
    "doctor": Entry("Diagnose problems with this installation.", "doctor", is_group=False),
    "init": Entry("Create a workspace, settings and a policy in a folder.", "init", is_group=False),
    "trust": Entry("Trust a folder, and agree to changes that agents made.", "trust", is_group=False),
    "sessions": Entry("List, show, rename, copy, export and delete sessions.", "sessions"),
    "approvals": Entry("List and answer approval requests.", "approvals"),
    "jobs": Entry("List, cancel and retry the jobs that agents delegate.", "jobs"),
    "schedule": Entry("Manage recurring tasks.", "jobs", "schedules"),
    "audit": Entry("Read and verify the audit log of tool calls.", "audit"),
    "knowledge": Entry("Manage the documents that agents can search.", "knowledge"),
    "models": Entry("List models and their prices, and manage those that run on this machine.", "models"),
    "users": Entry("Manage the users of this tenant.", "access", "users"),
    "plans": Entry("Manage plans: limits on tokens, agents, storage and seats.", "access", "plans"),
    "tenants": Entry("Show the tenant and its plan usage.", "access", "tenants"),
    "mcp": Entry("Manage MCP servers, and serve agents over MCP.", "mcp"),
    "token": Entry("Manage the tokens that grant access to the gateway.", "access", "token"),
    "telegram": Entry("Manage who may use the Telegram bot.", "access", "telegram"),
    "cluster": Entry("Show the state of a cluster.", "serve", "cluster"),
    "store": Entry("Prune, back up and restore the database.", "store"),
    "config": Entry("Show the settings and where they come from.", "config"),
    "protocol": Entry("Print the gateway's protocol as a schema.", "config", "protocol"),
    "plugins": Entry("List plugins, or create one.", "plugins"),
}
_ALIASES = {"plugin": "plugins"}


class AtlasGroup(PlainGroup):
    """The commands in `COMMANDS`, then the commands of plugins. A plugin cannot replace a command of ours."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *_plugin_commands()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        name = _ALIASES.get(cmd_name, cmd_name)
        return _load(name, COMMANDS[name]) if name in COMMANDS else _load_plugin_command(name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands without importing their modules."""
        plugins = [(name, self.get_command(ctx, name).get_short_help_str(60)) for name in _plugin_commands()]
        with formatter.section("Commands"):
            formatter.write_dl([*((name, entry.help) for name, entry in COMMANDS.items()), *plugins])


def _load(name: str, entry: Entry) -> Any:
    module = import_module(f"atlas_agents.cli.{entry.module}")
    group = typer.main.get_group(getattr(module, entry.typer))
    if not entry.is_group:
        return group.commands[name]
    group.name, group.help = name, entry.help
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
        typer.echo(f"atlas: plugin {name} is disabled: {plugins.disabled.get(name)}", err=True)
        raise typer.Exit(1)
    return loaded[name]


def _as_command(name: str, target: Any) -> Any:
    """Turn what a plugin provides, a Typer or a function whose parameters are options, into a command."""
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer()
        target.command(name)(function)
    return typer.main.get_command(target)


app = typer.Typer(cls=AtlasGroup, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def atlas(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Run, use and administer LLM agents."""
    if version:
        typer.echo(version_text())
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
