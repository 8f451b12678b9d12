"""`atlas config …`: its options."""

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)


@app.command()
def show(as_json: Json = False) -> None:
    """Show every setting; secrets are hidden."""
    from atlas_agents.cli.config import show

    raise typer.Exit(show(as_json=as_json))


@app.command()
def explain(as_json: Json = False) -> None:
    """Show every setting with what it is for and where its value was said."""
    from atlas_agents.cli.config import explain

    raise typer.Exit(explain(as_json=as_json))


@app.command()
def path(as_json: Json = False) -> None:
    """Show the files and folders that count, and whether they are there."""
    from atlas_agents.cli.config import path

    raise typer.Exit(path(as_json=as_json))
