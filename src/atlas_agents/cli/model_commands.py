"""`atlas models …`: its options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="MODEL", help="Its name, as list shows it.")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the models that can run here, and which of them are here."""
    from atlas_agents.cli.models import show_models

    raise typer.Exit(show_models(as_json=as_json))


@app.command()
def pull(model: Name, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Fetch a model, or go on where the last try stopped; its checksum is verified."""
    from atlas_agents.cli.models import pull_model

    raise typer.Exit(pull_model(model, yes=yes))


@app.command()
def remove(model: Name) -> None:
    """Delete a model from this machine."""
    from atlas_agents.cli.models import drop_model

    raise typer.Exit(drop_model(model))
