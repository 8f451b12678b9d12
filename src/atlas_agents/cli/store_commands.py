"""`atlas store …`: its options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json, group

app = group("Look after the database: remove what is kept no longer, back it up, restore it.")


@app.command()
def prune(
    events: Annotated[
        int | None,
        typer.Option(metavar="DAYS", min=0, help="Keep what turns said for so many days; 0 is for ever."),
    ] = None,
    journals: Annotated[
        int | None,
        typer.Option(metavar="DAYS", min=0, help="Keep the steps of turns for so many days; 0 is for ever."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
    as_json: Json = False,
) -> None:
    """Remove now what ended turns said, once it is older than the settings or the options say.

    A gateway does the same by itself every hour, and may run meanwhile. Messages, the audit log, approvals and usage
    stay.
    """
    from atlas_agents.cli.store import prune

    raise typer.Exit(prune(events, journals, dry_run=dry_run, as_json=as_json))
