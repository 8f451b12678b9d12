"""`atlas cluster …`: its options."""

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)


@app.callback()
def cluster() -> None:
    """Many machines on one Postgres: who is there, and how they stand."""


@app.command()
def status(as_json: Json = False) -> None:
    """Show who is there, who leads, what they have at hand, and what waits.

    The database is asked (ATLAS_DATABASE_URL), so that this works while no gateway answers. A member that has not been
    heard of for 8 seconds is lost: others go on with its turns.

    Exit codes: 0 the cluster was looked at, 1 Postgres cannot be reached, 2 there is no cluster, or wrong settings.
    """
    from atlas_agents.cli.cluster import status

    raise typer.Exit(status(as_json=as_json))
