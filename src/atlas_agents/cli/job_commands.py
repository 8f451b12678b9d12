"""`atlas jobs …`: its options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)
Id = Annotated[str, typer.Argument(metavar="ID", help="The job, or enough of its beginning.")]


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="queued, running, done, failed, expired, cancelled or dead."),
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, max=500, help="How many.")] = 20,
    as_json: Json = False,
) -> None:
    """List jobs, the latest first."""
    from atlas_agents.cli.jobs import list_jobs

    raise typer.Exit(list_jobs(state or [], limit, as_json=as_json))


@app.command()
def show(id: Id, as_json: Json = False) -> None:
    """Show a job: who asked for it, how it stands, what came of it."""
    from atlas_agents.cli.jobs import show

    raise typer.Exit(show(id, as_json=as_json))


@app.command()
def cancel(id: Id) -> None:
    """Stop a job, and what was asked for in it; whoever asked is told."""
    from atlas_agents.cli.jobs import change

    raise typer.Exit(change(id, "jobs.cancel"))


@app.command()
def retry(id: Id) -> None:
    """Try a job again that failed, expired or was cancelled."""
    from atlas_agents.cli.jobs import change

    raise typer.Exit(change(id, "jobs.retry"))
