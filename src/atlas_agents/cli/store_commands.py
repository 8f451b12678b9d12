"""`atlas store …`: its options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)


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


@app.command()
def backup(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to put the copy; it must not be there yet.")],
    as_json: Json = False,
) -> None:
    """Copy the SQLite database as it is at this moment, and check the copy.

    A gateway may run meanwhile. The copy is one file, for its owner only. A Postgres database is copied with pg_dump.

    Exit codes: 0 done, 1 not done, or the copy has an audit log that is broken, 2 wrong options or settings.
    """
    from atlas_agents.cli.store_copy import backup

    raise typer.Exit(backup(file, as_json=as_json))


@app.command()
def restore(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A copy that `atlas store backup` has made.")],
    replace: Annotated[
        bool, typer.Option("--replace", help="Set a database that is not empty aside, and take its place.")
    ] = False,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Restore it even if its audit log is broken.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put a backup in the place of the SQLite database, once it is checked.

    No gateway may run. Turns that were under way when the backup was made go on at the next start: if that was some
    time ago, say `atlas store end-turns` first.
    """
    from atlas_agents.cli.store_copy import restore

    raise typer.Exit(restore(file, replace=replace, unverified=unverified, as_json=as_json))


@app.command("end-turns")
def end_turns(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False, as_json: Json = False
) -> None:
    """End all turns and jobs that are open: for a restored database, before the first start.

    What they did after the backup was made is not known in it; going on, they might do it again.
    """
    from atlas_agents.cli.store_copy import end_turns

    raise typer.Exit(end_turns(yes=yes, as_json=as_json))
