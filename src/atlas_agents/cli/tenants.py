"""`atlas users …`, `atlas plans …` and `atlas tenants …`: users, plans and their limits."""

import sys
from typing import Annotated, Any

import typer

from atlas_agents.cli.command import JsonFlag, command, command_group
from atlas_agents.cli.connect import call
from atlas_agents.cli.output import format_age, print_json, print_table

users = command_group()
plans = command_group()
tenants = command_group()
_LIMITS = ("tokens", "agents", "storage", "seats")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Lowercase letters, digits, - and _.")]


def _limit_option(help: str) -> Any:
    return typer.Option(metavar="N", min=0, help=f"{help}; without this option there is no limit.")


@command(users, "list")
async def list_users(as_json: JsonFlag = False) -> None:
    """List users, their roles and when they were last active."""
    found = (await call("users.list"))["users"]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["name"],
            each["role"],
            each["status"],
            format_age(each["lastActive"]) if "lastActive" in each else "never",
        )
        for each in found
    ]
    print_table(("user", "role", "status", "last active"), rows, "There are no users.")


@command(users, "set")
async def set_user(
    name: Name,
    role: Annotated[str, typer.Option(metavar="ROLE", help="The user's role.")] = "member",
    status: Annotated[str, typer.Option(metavar="STATUS", help="active, invited or suspended.")] = "active",
) -> None:
    """Add or change a user. The tokens of a suspended user are rejected."""
    await call("users.put", name=name, role=role, status=status)
    print(f"{name}: {status}, {role}.", file=sys.stderr)


@command(users, "remove")
async def remove_user(name: Name) -> None:
    """Remove a user; their sessions are kept."""
    await call("users.remove", name=name)
    print(f"{name}: removed.", file=sys.stderr)


@command(plans, "list")
async def list_plans(as_json: JsonFlag = False) -> None:
    """List the plans."""
    found = (await call("plans.list"))["plans"]
    if as_json:
        print_json(found)
        return
    rows = [(each["name"], *(_limit(each, name) for name in _LIMITS)) for each in found]
    print_table(("plan", "tokens per month", "agents", "bytes", "seats"), rows, "There are no plans.")


@command(plans, "set")
async def set_plan(
    name: Name,
    tokens: Annotated[int | None, _limit_option("Tokens per month")] = None,
    agents: Annotated[int | None, _limit_option("Number of agents")] = None,
    storage: Annotated[int | None, _limit_option("Bytes of storage")] = None,
    seats: Annotated[int | None, _limit_option("Number of users")] = None,
) -> None:
    """Create or change a plan."""
    await call("plans.put", name=name, tokens=tokens, agents=agents, storage=storage, seats=seats)
    print(f"Saved plan {name}.", file=sys.stderr)


@command(plans, "use")
async def use_plan(name: Name) -> None:
    """Switch this tenant to a plan."""
    await call("tenants.update", plan=name)
    print(f"Switched to plan {name}.", file=sys.stderr)


@command(tenants, "show")
async def show_tenant(as_json: JsonFlag = False) -> None:
    """Show the plan and how much of it is used."""
    found = await call("tenants.get")
    if as_json:
        print_json(found)
        return
    print(f"{found['tenant']}, plan {found['plan']['name']}")
    rows = [(name, f"{found[name]:,}", _limit(found["plan"], name)) for name in _LIMITS]
    print_table(("resource", "used", "limit"), rows, "")


@command(tenants, "list")
async def list_tenants(as_json: JsonFlag = False) -> None:
    """List the tenants of this store."""
    found = (await call("tenants.list"))["tenants"]
    if as_json:
        print_json(found)
        return
    print_table(("tenant",), [(each,) for each in found], "No tenant has its own plan.")


def _limit(plan: dict[str, Any], name: str) -> str:
    return f"{plan[name]:,}" if plan.get(name) is not None else "no limit"
