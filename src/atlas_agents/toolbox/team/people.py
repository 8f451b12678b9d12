"""`get_team_members` and `get_subscription_info`: who is there, and what the house may use."""

from datetime import UTC, datetime
from typing import Any

from atlas_agents.core.errors import ToolFailed
from atlas_agents.core.office import Office
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import tool


@tool(effect="pure")
async def get_team_members(
    context: ToolContext, role_filter: str = "", status_filter: str = ""
) -> list[dict[str, Any]]:
    """List all agents and users here, with their roles, their status and when they were last active.

    Args:
        role_filter: Only those with this role.
        status_filter: Only those with this status: active, invited or suspended.
    """
    office = _office(context)
    seen = await office.store.active(context.tenant_id)
    agents = {agent: max(at for name, _, at in seen if name == agent) for agent, _, _ in seen}
    users = {user: max(at for _, name, at in seen if name == user) for _, user, _ in seen}
    found = [_member("agent", each.id, each.name, each.role, "active", agents) for each in office.agents()]
    found += [_member("user", each.name, each.name, each.role, each.status, users) for each in await office.users()]
    wanted = (("role", role_filter), ("status", status_filter))
    return [each for each in found if all(not wish or each[key].lower() == wish.lower() for key, wish in wanted)]


@tool(effect="pure")
async def get_subscription_info(context: ToolContext) -> dict[str, Any]:
    """Tell the plan of this organisation, its limits, and how much of them is used."""
    office = _office(context)
    plan, used = await office.tenancy.plan(), await office.tenancy.used()
    return {
        "plan": plan.name,
        "tokens": {"used_this_month": used.tokens, "limit": plan.tokens},
        "storage_bytes": {"used": used.storage, "limit": plan.storage},
        "agents": {"used": len(office.agents()), "limit": plan.agents},
        "seats": {"used": used.seats, "limit": plan.seats},
    }


def _office(context: ToolContext) -> Office:
    if context.office is None:
        raise ToolFailed("nothing is kept here: this needs a store")
    return context.office


def _member(kind: str, id: str, name: str, role: str, status: str, seen: dict[str, int]) -> dict[str, Any]:
    at = seen.get(id)
    last = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds") if at else None
    return {"type": kind, "id": id, "name": name, "role": role, "status": status, "last_active": last}
