"""`atlas approvals …`: its options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)
Id = Annotated[str, typer.Argument(metavar="ID", help="The question, or enough of its beginning.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; the agent reads it.")]


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the questions that wait."""
    from atlas_agents.cli.approvals import list_approvals

    raise typer.Exit(list_approvals(as_json=as_json))


@app.command()
def approve(
    id: Id,
    session: Annotated[bool, typer.Option("--session", help="For the same call in this session too.")] = False,
    always: Annotated[bool, typer.Option("--always", help="For exactly this call, always.")] = False,
    values: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A value that it asks for; can be repeated.")
    ] = None,
    reason: Reason = "",
) -> None:
    """Say yes, once or for longer; or give the values that are asked for."""
    from atlas_agents.cli.approvals import answer

    decision = "allow-always" if always else "allow-session" if session else "allow-once"
    raise typer.Exit(answer(id, decision, reason, values or ()))


@app.command()
def deny(id: Id, reason: Reason = "") -> None:
    """Say no."""
    from atlas_agents.cli.approvals import answer

    raise typer.Exit(answer(id, "deny", reason))


@app.command()
def dismiss(id: Id) -> None:
    """Leave a question unanswered. For a call that waits it is a no."""
    from atlas_agents.cli.approvals import answer

    raise typer.Exit(answer(id, "dismiss"))


@app.command()
def watch() -> None:
    """Wait for questions; in a terminal, answer them as they come. Ctrl-C ends it."""
    from atlas_agents.cli.watch import watch

    raise typer.Exit(watch())
