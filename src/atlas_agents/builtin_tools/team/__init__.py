"""Team tools: delegate a task, list the agents and users, show the plan and its usage."""

import hashlib
import re
from datetime import UTC, datetime
from typing import Any

from atlas_agents.core.errors import BadArguments, LimitExceeded, ToolFailed
from atlas_agents.core.store import PRIORITIES, AddJob, JobRow, Priority
from atlas_agents.core.telemetry import read_trace_context
from atlas_agents.core.tenancy import TeamServices
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import tool

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(?:in\s+)?(\d{1,6})\s*(s|m|h|d|w|sec|min|hr|second|minute|hour|day|week)s?\.?", re.IGNORECASE)


def parse_deadline(text: str, now: int) -> int:
    """Return a future time in Unix milliseconds. A time without a zone is UTC; a date means the end of that day."""
    deadline = _parse_duration(text.strip(), now) or _parse_timestamp(text.strip())
    if deadline is None:
        raise BadArguments(
            f"deadline: expected a time like 2026-11-15T18:00:00Z or a duration like '30 minutes', got {text[:80]!r}"
        )
    if deadline <= now:
        raise BadArguments(f"deadline: {text[:80]!r} is in the past; the time is now {_format_time(now)}")
    return deadline


def _parse_duration(text: str, now: int) -> int | None:
    found = _DURATION.fullmatch(text)
    return now + int(found[1]) * _UNITS[found[2][0].lower()] * 1000 if found else None


def _parse_timestamp(text: str) -> int | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if len(text) <= len("2026-11-15"):
        found = found.replace(hour=23, minute=59, second=59)
    zoned = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)


def _format_time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


@tool(effect="keyed")
async def delegate_task(
    target_agent: str,
    task_description: str,
    context: ToolContext,
    priority: Priority = "normal",
    deadline: str = "",
) -> dict[str, Any]:
    """Delegate a task to another agent. Do not wait for it: its answer arrives later as a message.

    Args:
        target_agent: The id of the agent that does the task.
        task_description: Everything that the agent needs to know; it does not see this conversation.
        priority: How urgent the task is.
        deadline: When the result stops being useful: a time like 2026-11-15T18:00:00Z, or a duration like "30 minutes".
    """
    services = _services(context)
    if not task_description.strip():
        raise BadArguments("task_description: must not be empty")
    _check_target(target_agent, context, services)
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
        traceparent=read_trace_context(context.traceparent, context.tracestate),
        deadline=_earlier(parse_deadline(deadline, now) if deadline.strip() else None, context.chain.deadline),
    )
    context.add_write(AddJob(job, services.delegation.jobs))
    return {
        "job_id": id,
        "status": "queued",
        "message": f"Delegated to {target_agent}. Its answer will arrive as a message.",
    }


def _check_target(target: str, context: ToolContext, services: TeamServices) -> None:
    """Check that the target exists and does not wait for this turn, and that the chain is not too long."""
    me, waiting = context.agent.id, context.chain.agents
    others = sorted(each.id for each in services.agents() if each.id != me and each.id not in waiting)
    available = f"Available agents: {', '.join(others) or 'none'}."
    if target == me:
        raise BadArguments(f"You are {target}: an agent cannot delegate to itself. {available}")
    if target in waiting:
        raise LimitExceeded(f"{target} is waiting for your result, so you cannot delegate to it. {available}")
    if target not in others:
        raise BadArguments(f"Unknown agent {target[:80]!r}. {available}")
    services.delegation.check_depth(context.chain)


def _earlier(one: int | None, other: int | None) -> int | None:
    """Return the earlier deadline: a delegated task ends no later than the job that it belongs to."""
    return min(one, other) if one is not None and other is not None else one if one is not None else other


@tool(effect="pure")
async def get_team_members(
    context: ToolContext, role_filter: str = "", status_filter: str = ""
) -> list[dict[str, Any]]:
    """List all agents and users with their role, status and time of last activity.

    Args:
        role_filter: Return only members with this role.
        status_filter: Return only members with this status: active, invited or suspended.
    """
    services = _services(context)
    activity = await services.store.last_turns(context.tenant_id)
    agents = {agent: max(at for name, _, at in activity if name == agent) for agent, _, _ in activity}
    users = {user: max(at for _, name, at in activity if name == user) for _, user, _ in activity}
    members = [_member("agent", each.id, each.name, each.role, "active", agents) for each in services.agents()]
    members += [_member("user", each.name, each.name, each.role, each.status, users) for each in await services.users()]
    filters = (("role", role_filter), ("status", status_filter))
    return [each for each in members if all(not value or each[key].lower() == value.lower() for key, value in filters)]


@tool(effect="pure")
async def get_subscription_info(context: ToolContext) -> dict[str, Any]:
    """Show the subscription plan of this organisation, its limits and the current usage."""
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
        raise ToolFailed("this tool requires a store")
    return context.team_services


def _member(kind: str, id: str, name: str, role: str, status: str, last_active: dict[str, int]) -> dict[str, Any]:
    at = last_active.get(id)
    last = _format_time(at) if at else None
    return {"type": kind, "id": id, "name": name, "role": role, "status": status, "last_active": last}


__all__ = ["delegate_task", "get_subscription_info", "get_team_members"]
