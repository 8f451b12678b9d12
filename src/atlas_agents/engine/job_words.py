"""What an agent is told of a job that it gave to another one."""

from datetime import UTC, datetime

from atlas_agents.core.jobs import JobRow
from atlas_agents.core.messages import Message, user

_LONGEST = 20_000
_TASK = 200


def answer_of(job: JobRow) -> Message:
    """What came of a job, as a message to whoever asked. The same job gives the same words, however often."""
    words = f"The job {job.id}, which you gave to {job.agent_id}, {_end(job)}\n\n(The task was: {_short(job.task)})"
    return user(words, job=job.id, state=job.state, agent=job.agent_id)


def task_of(job: JobRow) -> Message:
    """The task as the agent reads it that is to do it."""
    told: dict[str, str] = {"job": job.id}
    if job.asker_agent:
        told["asked_by"] = job.asker_agent
    return user(job.task, **told)


def _end(job: JobRow) -> str:
    match job.state:
        case "done":
            return f"is done. The answer of {job.agent_id}:\n\n{_cut(job)}"
        case "expired":
            return f"was not done by its deadline, {_time(job.deadline)}, and was stopped."
        case "cancelled":
            return f"was cancelled: {job.error or 'nobody said why'}."
        case "dead":
            return f"could not be done, in {job.attempts} attempts: {job.error}"
        case _:
            return f"could not be done: {job.error}"


def _cut(job: JobRow) -> str:
    text = job.result or "(nothing)"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…\n(It goes on; the whole is kept with the job.)"


def _short(task: str) -> str:
    line = " ".join(task.split())
    return line if len(line) <= _TASK else f"{line[: _TASK - 1]}…"


def _time(milliseconds: int | None) -> str:
    return datetime.fromtimestamp((milliseconds or 0) / 1000, UTC).isoformat(timespec="seconds")
