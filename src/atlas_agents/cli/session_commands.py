"""`atlas sessions …`: its options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)
Key = Annotated[str, typer.Argument(metavar="KEY", help="The session, or enough of its beginning.")]


@app.command("list")
def list_(
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=500, help="How many.")] = 20,
    archived: Annotated[bool, typer.Option(help="Those that were archived.")] = False,
    as_json: Json = False,
) -> None:
    """List sessions, the latest first."""
    from atlas_agents.cli.sessions import list_sessions

    raise typer.Exit(list_sessions(limit, archived=archived, as_json=as_json))


@app.command()
def show(key: Key, as_json: Json = False) -> None:
    """Show a session and what was said in it."""
    from atlas_agents.cli.sessions import show

    raise typer.Exit(show(key, as_json=as_json))


@app.command()
def rename(key: Key, label: Annotated[str, typer.Argument(metavar="LABEL", help="Its new name.")]) -> None:
    """Give a session another name."""
    from atlas_agents.cli.sessions import change

    raise typer.Exit(change(key, f"renamed to {label!r}", label=label))


@app.command()
def archive(key: Key, undo: Annotated[bool, typer.Option("--undo", help="Bring it back.")] = False) -> None:
    """Put a session away, or bring it back."""
    from atlas_agents.cli.sessions import change

    raise typer.Exit(change(key, "brought back" if undo else "archived", archived=not undo))


@app.command()
def fork(
    key: Key,
    at: Annotated[str | None, typer.Option(metavar="MESSAGE", help="Copy up to and with this message.")] = None,
) -> None:
    """Copy a session; prints the key of the copy."""
    from atlas_agents.cli.sessions import fork

    raise typer.Exit(fork(key, at))


@app.command("export")
def export_(key: Key) -> None:
    """Write a session to standard output, as JSON lines."""
    from atlas_agents.cli.sessions import write_out

    raise typer.Exit(write_out(key))


@app.command("import")
def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What export has written; '-' is standard input.")],
    key: Annotated[str | None, typer.Option(metavar="KEY", help="Another key than its own.")] = None,
) -> None:
    """Read an exported session; prints its key."""
    from atlas_agents.cli.sessions import read_in

    raise typer.Exit(read_in(file, key))


@app.command()
def delete(key: Key, yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False) -> None:
    """Remove a session and all that was said in it."""
    from atlas_agents.cli.sessions import delete

    raise typer.Exit(delete(key, yes=yes))
