"""The tools of a team: hand work to each other, know who is there and what the house may use."""

import hashlib
import re
from datetime import UTC, datetime
from typing import Any

from atlas_agents.core.errors import BadArguments, LimitExceeded, ToolFailed
from atlas_agents.core.store import PRIORITIES, AddJob, JobRow, Priority
from atlas_agents.core.tenancy import TeamServices
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import tool

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_WHILE = re.compile(r"(?:in\s+)?(\d{1,6})\s*(s|m|h|d|w|sec|min|hr|second|minute|hour|day|week)s?\.?", re.IGNORECASE)


def when(text: str, now: int) -> int:
    """Milliseconds since 1970; BadArguments unless it is a time to come. One without a zone is UTC, and a day lasts to
    its end."""
    written = text.strip()
    moment = _after(written, now) or _moment(written)
    if moment is None:
        raise BadArguments(
            f"deadline: {text[:80]!r} is no time; write it like 2026-11-15T18:00:00Z, or like 30 minutes"
        )
    if moment <= now:
        raise BadArguments(f"deadline: {text[:80]!r} has passed; now it is {_shown(now)}")
    return moment


def _after(written: str, now: int) -> int | None:
    found = _WHILE.fullmatch(written)
    return now + int(found[1]) * _UNITS[found[2][0].lower()] * 1000 if found else None


def _moment(written: str) -> int | None:
    try:
        found = datetime.fromisoformat(written)
    except ValueError:
        return None
    if len(written) <= len("2026-11-15"):
        found = found.replace(hour=23, minute=59, second=59)
    zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)


def _shown(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


@tool(effect="keyed")
async def delegate_task(
    target_agent: str,
    task_description: str,
    context: ToolContext,
    priority: Priority = "normal",
    deadline: str = "",
) -> dict[str, Any]:
    """Hand a task to another agent. You need not wait: its answer comes to you later, as a message.

    Args:
        target_agent: The id of the agent that is to do it.
        task_description: All that it needs to know; it does not see this conversation.
        priority: How urgent it is.
        deadline: Until when it is of use: a time like 2026-11-15T18:00:00Z, or a while like "30 minutes".
    """
    services = context.team_services
    if services is None:
        raise ToolFailed("nothing is kept here: handing on work needs a store")
    if not task_description.strip():
        raise BadArguments("task_description is empty: say what is to be done")
    _check(target_agent, context, services)
    now = int(services.clock.time() * 1000)
    id = hashlib.sha256(context.idempotency_key.encode()).hexdigest()[:16]
    job = JobRow(
        id,
        "delegation",
        target_agent,
        task_description,
        session=f"{context.conversation.id.split('/jobs/')[0]}/jobs/{id}",
        priority=PRIORITIES.index(priority),
        parent=context.chain.job,
        root=context.chain.root or context.run_id,
        chain=(*context.chain.agents, context.agent.id),
        user=context.user,
        asker_run=context.run_id,
        asker_call=context.call_id,
        asker_session=context.conversation.id,
        asker_agent=context.agent.id,
        due_at=now,
        deadline=_earlier(when(deadline, now) if deadline.strip() else None, context.chain.deadline),
    )
    context.also(AddJob(job, services.delegation.jobs))
    return {"job_id": id, "status": "queued", "message": f"{target_agent} has the task. Its answer will come to you."}


def _check(target: str, context: ToolContext, services: TeamServices) -> None:
    """There is such an agent, none that waits for this turn already, and the chain is not too long."""
    me, waiting = context.agent.id, context.chain.agents
    others = sorted(each.id for each in services.agents() if each.id != me and each.id not in waiting)
    choice = f"You can ask: {', '.join(others) or 'nobody'}."
    if target == me:
        raise BadArguments(f"{target} is you: do it yourself. {choice}")
    if target in waiting:
        raise LimitExceeded(f"{target} waits for what you do, so it cannot do it for you. {choice}")
    if target not in others:
        raise BadArguments(f"There is no agent {target[:80]!r}. {choice}")
    if len(waiting) >= services.delegation.depth:
        raise LimitExceeded(
            f"The task was handed on {len(waiting)} times already, and no more is allowed: do it yourself."
        )


def _earlier(one: int | None, other: int | None) -> int | None:
    """What is asked for in a job is of no use after it."""
    return min(one, other) if one is not None and other is not None else one if one is not None else other


@tool(effect="pure")
async def get_team_members(
    context: ToolContext, role_filter: str = "", status_filter: str = ""
) -> list[dict[str, Any]]:
    """List all agents and users here, with their roles, their status and when they were last active.

    Args:
        role_filter: Only those with this role.
        status_filter: Only those with this status: active, invited or suspended.
    """
    services = _services(context)
    seen = await services.store.active(context.tenant_id)
    agents = {agent: max(at for name, _, at in seen if name == agent) for agent, _, _ in seen}
    users = {user: max(at for _, name, at in seen if name == user) for _, user, _ in seen}
    found = [_member("agent", each.id, each.name, each.role, "active", agents) for each in services.agents()]
    found += [_member("user", each.name, each.name, each.role, each.status, users) for each in await services.users()]
    wanted = (("role", role_filter), ("status", status_filter))
    return [each for each in found if all(not wish or each[key].lower() == wish.lower() for key, wish in wanted)]


@tool(effect="pure")
async def get_subscription_info(context: ToolContext) -> dict[str, Any]:
    """Tell the plan of this organisation, its limits, and how much of them is used."""
    services = _services(context)
    plan, used = await services.tenancy.plan(), await services.tenancy.used()
    return {
        "plan": plan.name,
        "tokens": {"used_this_month": used.tokens, "limit": plan.tokens},
        "storage_bytes": {"used": used.storage, "limit": plan.storage},
        "agents": {"used": len(services.agents()), "limit": plan.agents},
        "seats": {"used": used.seats, "limit": plan.seats},
    }


def _services(context: ToolContext) -> TeamServices:
    if context.team_services is None:
        raise ToolFailed("nothing is kept here: this needs a store")
    return context.team_services


def _member(kind: str, id: str, name: str, role: str, status: str, seen: dict[str, int]) -> dict[str, Any]:
    at = seen.get(id)
    last = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds") if at else None
    return {"type": kind, "id": id, "name": name, "role": role, "status": status, "last_active": last}


__all__ = ["delegate_task", "get_subscription_info", "get_team_members"]
