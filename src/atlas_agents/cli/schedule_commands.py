"""`atlas schedule …`: its options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json

app = typer.Typer(rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]


@app.command()
def add(
    name: Name,
    cron: Annotated[str, typer.Argument(metavar="CRON", help="Like '0 9 * * 1-5', or @daily.")],
    task: Annotated[str, typer.Argument(metavar="TASK", help="What the agent is to do.")],
    agent: Annotated[str | None, typer.Option("--agent", "-a", metavar="ID", help="The agent that does it.")] = None,
    zone: Annotated[str, typer.Option(metavar="ZONE", help="The time zone, like Europe/Berlin.")] = "UTC",
    missed: Annotated[str, typer.Option(metavar="HOW", help="once or skip: times when nobody was there.")] = "once",
    priority: Annotated[str, typer.Option(metavar="NAME", help="low, normal, high or urgent.")] = "normal",
) -> None:
    """Have a task done again and again, while a gateway runs."""
    from atlas_agents.cli.schedules import add

    raise typer.Exit(add(name, cron, task, agent_id=agent, zone=zone, missed=missed, priority=priority))


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List schedules, and when they are due next."""
    from atlas_agents.cli.schedules import list_schedules

    raise typer.Exit(list_schedules(as_json=as_json))


@app.command()
def pause(name: Name, undo: Annotated[bool, typer.Option("--undo", help="Let it go on.")] = False) -> None:
    """Let a schedule rest, or go on."""
    from atlas_agents.cli.schedules import change

    words = f"{name} {'goes on' if undo else 'rests'}."
    raise typer.Exit(change("schedules.pause", words, name=name, paused=not undo))


@app.command()
def run(name: Name) -> None:
    """Have its task done now; prints the id of the job."""
    from atlas_agents.cli.schedules import run_now

    raise typer.Exit(run_now(name))


@app.command()
def remove(name: Name) -> None:
    """Remove a schedule; its jobs stay."""
    from atlas_agents.cli.schedules import change

    raise typer.Exit(change("schedules.remove", f"{name} is removed.", name=name))
