"""`atlas mcp …`: its options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="SERVER", help="Its name in mcp.json.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the servers of the workspace, and whether they may be used."""
    from atlas_agents.cli.mcp import list_servers

    raise typer.Exit(list_servers(as_json=as_json))


@app.command()
def show(server: Name) -> None:
    """Show what was approved of a server, word by word."""
    from atlas_agents.cli.mcp import show_server

    raise typer.Exit(show_server(server))


@app.command()
def approve(server: Name, yes: Yes = False) -> None:
    """Start a server, show all that it says of its tools, and allow them if you agree.

    Nothing of a server is started or shown to a model before. When its entry or what it says changes, it has to be
    approved again.
    """
    from atlas_agents.cli.mcp import approve_server

    raise typer.Exit(approve_server(server, yes=yes))


@app.command()
def test(server: Name) -> None:
    """Start an approved server and look whether it is as it was approved.

    Exit codes: 0 it is, 1 it is not or cannot be reached.
    """
    from atlas_agents.cli.mcp import test_server

    raise typer.Exit(test_server(server))


@app.command()
def login(server: Name) -> None:
    """Log in to a server that wants it; the address to open is printed."""
    from atlas_agents.cli.mcp import log_in

    raise typer.Exit(log_in(server))


@app.command(context_settings={"ignore_unknown_options": True})
def add(
    server: Name,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="After --, what starts it, and its arguments.")
    ] = None,
    url: Annotated[str | None, typer.Option(metavar="URL", help="Where it is, in place of a command.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A variable for it; ${NAME} takes one of yours.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A header for a URL; ${NAME} takes a variable.")
    ] = None,
) -> None:
    """Write a server into mcp.json of the workspace."""
    from atlas_agents.cli.mcp_entries import add_server

    raise typer.Exit(add_server(server, command or [], url, env or [], header or []))


@app.command()
def remove(server: Name) -> None:
    """Take a server out of mcp.json, with its approval and its login."""
    from atlas_agents.cli.mcp_entries import remove_server

    raise typer.Exit(remove_server(server))


@app.command()
def serve(
    agent: Annotated[str, typer.Option("--agent", "-a", metavar="ID", help="The agent whose tools are offered.")] = "",
) -> None:
    """Be an MCP server on standard input and output, for a client that starts commands.

    It speaks for the gateway that runs, or for one of its own.
    """
    from atlas_agents.cli.mcp_bridge import serve

    raise typer.Exit(serve(agent))
