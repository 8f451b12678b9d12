"""`atlas users …`, `atlas plans …`, `atlas tenants …`: their options."""

from typing import Annotated

import typer

from atlas_agents.cli.flags import Json

users = typer.Typer(rich_markup_mode=None)
plans = typer.Typer(rich_markup_mode=None)
tenants = typer.Typer(rich_markup_mode=None)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Small letters, digits, - and _.")]
Limit = Annotated[int | None, typer.Option(metavar="N", min=0, help="None is no limit.")]


@users.command("list")
def list_users(as_json: Json = False) -> None:
    """List users, their roles, and when they were last active."""
    from atlas_agents.cli.tenants import list_users

    raise typer.Exit(list_users(as_json=as_json))


@users.command("set")
def set_user(
    name: Name,
    role: Annotated[str, typer.Option(metavar="ROLE", help="What they are here.")] = "member",
    status: Annotated[str, typer.Option(metavar="STATUS", help="active, invited or suspended.")] = "active",
) -> None:
    """Add somebody, or change them. Keys of a suspended user open nothing."""
    from atlas_agents.cli.tenants import change

    raise typer.Exit(change("users.put", f"{name} is {status}, {role}.", name=name, role=role, status=status))


@users.command("remove")
def remove_user(name: Name) -> None:
    """Remove somebody; their sessions stay."""
    from atlas_agents.cli.tenants import change

    raise typer.Exit(change("users.remove", f"{name} is removed.", name=name))


@plans.command("list")
def list_plans(as_json: Json = False) -> None:
    """List the plans that there are."""
    from atlas_agents.cli.tenants import list_plans

    raise typer.Exit(list_plans(as_json=as_json))


@plans.command("set")
def set_plan(
    name: Name, tokens: Limit = None, agents: Limit = None, storage: Limit = None, seats: Limit = None
) -> None:
    """Make a plan, or change one: tokens in a month, agents, bytes, users."""
    from atlas_agents.cli.tenants import change

    limits = {"tokens": tokens, "agents": agents, "storage": storage, "seats": seats}
    raise typer.Exit(change("plans.put", f"The plan {name} is kept.", name=name, **limits))


@plans.command("use")
def use_plan(name: Name) -> None:
    """Have this plan from now on."""
    from atlas_agents.cli.tenants import change

    raise typer.Exit(change("tenants.update", f"The plan is {name} from now on.", plan=name))


@tenants.command("show")
def show_tenant(as_json: Json = False) -> None:
    """Show the plan, and how much of it is used."""
    from atlas_agents.cli.tenants import show

    raise typer.Exit(show(as_json=as_json))


@tenants.command("list")
def list_tenants(as_json: Json = False) -> None:
    """List the tenants of this store."""
    from atlas_agents.cli.tenants import list_tenants

    raise typer.Exit(list_tenants(as_json=as_json))
