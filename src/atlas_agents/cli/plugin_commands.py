"""`atlas plugins …`: its options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the plugins, what they offer, and why one is disabled."""
    from atlas_agents.cli.plugins import show_plugins

    raise typer.Exit(show_plugins(as_json=as_json))


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is called, like my-tools.")],
    folder: Annotated[str | None, typer.Argument(metavar="FOLDER", help="Where to put it; by default NAME.")] = None,
) -> None:
    """Write a plugin to begin with: a package with a tool, and its test."""
    from atlas_agents.cli.plugins import new_plugin

    raise typer.Exit(new_plugin(name, folder))
