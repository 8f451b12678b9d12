"""Commands that have commands of their own: listed here with a line each, imported when one of theirs is wanted."""

from importlib import import_module
from typing import Any, NamedTuple

import typer.main
from typer.core import TyperGroup


class Group(NamedTuple):
    """Where a group's commands are: a module of this package, and the Typer in it."""

    help: str
    module: str
    typer: str = "app"
    hidden: bool = False


_PLUGINS = "What installed packages add: tools, providers, interceptors, stores, commands."
GROUPS = {
    "sessions": Group("List, read, change, copy, carry and remove sessions.", "session_commands"),
    "approvals": Group("See and answer what agents ask before they act.", "approvals_commands"),
    "jobs": Group("See, stop and retry what agents hand to each other.", "job_commands"),
    "schedule": Group("Tasks that recur: add, list, pause, run and remove them.", "schedule_commands"),
    "audit": Group("Read and check the log of all tool calls.", "audit_commands"),
    "knowledge": Group("The documents that agents know: read, listed, searched and removed.", "knowledge_commands"),
    "models": Group("The models that run on this machine.", "model_commands"),
    "users": Group("Who belongs here: add, change, suspend and remove them.", "tenant_commands", "users"),
    "plans": Group("How much may be used: tokens, agents, bytes, users.", "tenant_commands", "plans"),
    "tenants": Group("The tenant that is served here, and its plan.", "tenant_commands", "tenants"),
    "mcp": Group("MCP servers whose tools agents may use, and this house as an MCP server.", "mcp_commands"),
    "token": Group("What opens the gateway: the main token, and others with fewer rights.", "token_commands"),
    "telegram": Group("Who may talk to agents through the Telegram bot.", "telegram_commands"),
    "cluster": Group("Many machines on one Postgres: who is there, and how they stand.", "cluster_commands"),
    "store": Group("The database: remove what is kept no longer, back it up, restore it.", "store_commands"),
    "config": Group("The settings in force, and where they come from.", "config_commands"),
    "protocol": Group("The gateway's protocol, for programs that speak it.", "protocol_commands"),
    "plugins": Group(_PLUGINS, "plugin_commands"),
    "plugin": Group(_PLUGINS, "plugin_commands", hidden=True),
}


class Later(TyperGroup):
    """A group that reads its commands when it is asked for one."""

    def __init__(self, name: str, group: Group) -> None:
        super().__init__(name=name, help=group.help, hidden=group.hidden, no_args_is_help=True, rich_markup_mode=None)
        self._group = group

    def _read(self) -> None:
        if not self.commands:
            module = import_module(f"atlas_agents.cli.{self._group.module}")
            self.commands.update(typer.main.get_group(getattr(module, self._group.typer)).commands)

    def list_commands(self, ctx: Any) -> list[str]:
        self._read()
        return super().list_commands(ctx)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        self._read()
        return super().get_command(ctx, cmd_name)
