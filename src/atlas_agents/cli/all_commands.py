"""All that `atlas` can be told to do: its own commands, its groups of commands, and what plugins add."""

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from atlas_agents.cli.groups import GROUPS, Later


class AllCommands(TyperGroup):
    """Our own commands, and those of plugins; one of ours is never replaced, and they are looked for only if needed."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands.update({name: Later(name, group) for name, group in GROUPS.items()})

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        if not _announced():
            return own
        from atlas_agents.core.plugins import Plugins

        return [*own, *sorted(set(Plugins().names("commands")) - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or _of_plugin(cmd_name)


def _announced() -> bool:
    """Whether any package has a command for us. Asking importlib for it would cost the help more than all the rest."""
    for folder in filter(os.path.isdir, sys.path):
        for each in os.scandir(folder):
            if each.name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(each.path, "entry_points.txt"), "rb") as file:
                        if b"[atlas_agents.commands]" in file.read():
                            return True
                except OSError:
                    continue
    return False


def _of_plugin(name: str) -> Any:
    from atlas_agents.core.plugins import Plugins

    found: dict[str, Any] = {}

    def take(plugin: str, thing: Any) -> None:
        if plugin == name:
            found[plugin] = _command(name, thing)

    plugins = Plugins()
    if name not in plugins.names("commands"):
        return None
    plugins.load("commands", take)
    if name not in found:
        typer.echo(f"atlas: the plugin {name} is disabled: {plugins.disabled.get(name)}", err=True)
        raise typer.Exit(1)
    return found[name]


def _command(name: str, thing: Any) -> Any:
    """A plugin gives a Typer, or a function whose parameters are its options."""
    if not isinstance(thing, typer.Typer):
        function, thing = thing, typer.Typer()
        thing.command(name)(function)
    return typer.main.get_command(thing)
