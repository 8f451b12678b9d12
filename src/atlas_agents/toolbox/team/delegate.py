"""`delegate_task`: hand a task to another agent, as a job that outlives the process."""

import hashlib
from typing import Any

from atlas_agents.core.errors import BadArguments, LimitReached, ToolFailed
from atlas_agents.core.jobs import PRIORITIES, AddJob, JobRow, Priority
from atlas_agents.core.office import Office
from atlas_agents.toolbox.team.when import when
from atlas_agents.tools.context import ToolContext
from atlas_agents.tools.tool import tool


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
    office = context.office
    if office is None:
        raise ToolFailed("nothing is kept here: handing on work needs a store")
    if not task_description.strip():
        raise BadArguments("task_description is empty: say what is to be done")
    _check(target_agent, context, office)
    now = int(office.clock.time() * 1000)
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
    context.also(AddJob(job, office.delegation.jobs))
    return {"job_id": id, "status": "queued", "message": f"{target_agent} has the task. Its answer will come to you."}


def _check(target: str, context: ToolContext, office: Office) -> None:
    """There is such an agent, none that waits for this turn already, and the chain is not too long."""
    me, waiting = context.agent.id, context.chain.agents
    others = sorted(each.id for each in office.agents() if each.id != me and each.id not in waiting)
    choice = f"You can ask: {', '.join(others) or 'nobody'}."
    if target == me:
        raise BadArguments(f"{target} is you: do it yourself. {choice}")
    if target in waiting:
        raise LimitReached(f"{target} waits for what you do, so it cannot do it for you. {choice}")
    if target not in others:
        raise BadArguments(f"There is no agent {target[:80]!r}. {choice}")
    if len(waiting) >= office.delegation.depth:
        raise LimitReached(
            f"The task was handed on {len(waiting)} times already, and no more is allowed: do it yourself."
        )


def _earlier(one: int | None, other: int | None) -> int | None:
    """What is asked for in a job is of no use after it."""
    return min(one, other) if one is not None and other is not None else one if one is not None else other
