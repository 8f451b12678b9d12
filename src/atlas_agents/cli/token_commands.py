"""`atlas token …`: its options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Whose it is: small letters, digits, - and _.")]


@app.command()
def show() -> None:
    """Print the main token."""
    from atlas_agents.cli.tokens import show

    raise typer.Exit(show())


@app.command()
def rotate() -> None:
    """Make a new main token; the old one opens nothing any more."""
    from atlas_agents.cli.tokens import rotate

    raise typer.Exit(rotate())


@app.command()
def create(
    name: Name,
    scopes: Annotated[str, typer.Option(metavar="LIST", help="Of read, write, approve, admin.")] = "read,write",
    all_sessions: Annotated[bool, typer.Option("--all-sessions", help="Not only its own sessions.")] = False,
    role: Annotated[str, typer.Option(metavar="ROLE", help="A role for policies.")] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="Whose it is, if not the user of that name.")] = "",
) -> None:
    """Make a token for somebody else, and print it; it is not shown again."""
    from atlas_agents.cli.tokens import create

    raise typer.Exit(create(name, scopes, all_sessions=all_sessions, role=role, user=user))


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List whom there are tokens for, without the tokens."""
    from atlas_agents.cli.tokens import list_tokens

    raise typer.Exit(list_tokens(as_json=as_json))


@app.command()
def revoke(name: Name) -> None:
    """End somebody's token at once."""
    from atlas_agents.cli.tokens import revoke

    raise typer.Exit(revoke(name))
