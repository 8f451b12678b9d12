"""`atlas telegram …`: its options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)


@app.command()
def pair(
    code: Annotated[str, typer.Argument(metavar="CODE", help="What the bot told them when they wrote to it.")],
) -> None:
    """Let somebody in: they can talk to all agents, and answer what they are asked.

    A code counts once, for an hour. It counts in private only: in groups the bot talks to nobody.
    """
    from atlas_agents.cli.telegram import pair

    raise typer.Exit(pair(code))


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List who was let in."""
    from atlas_agents.cli.telegram import list_pairs

    raise typer.Exit(list_pairs(as_json=as_json))


@app.command()
def unpair(
    who: Annotated[str, typer.Argument(metavar="USER", help="Their number or @name, as list shows it.")],
) -> None:
    """Let somebody in no longer; it counts at once."""
    from atlas_agents.cli.telegram import unpair

    raise typer.Exit(unpair(who))
