"""`atlas jobs …` and `atlas schedule …`: jobs that agents delegate, and recurring tasks."""

import sys
from typing import Annotated, Any, get_args

from atlas_agents.cli.command import AgentOption, Argument, Group, JsonFlag, Option, command
from atlas_agents.cli.connect import GatewayCall, call, find_id, open_calls
from atlas_agents.cli.output import format_age, format_time, print_json, print_table, printable
from atlas_agents.core.errors import ConfigError

app = Group()
schedules = Group()
JobId = Annotated[str, Argument(metavar="ID", help="The job id, or a unique prefix of it.")]
ScheduleName = Annotated[str, Argument(metavar="NAME", help="The name of the schedule.")]


# Jobs


@command(app, "list")
def list_jobs(
    state: Annotated[
        list[str] | None,
        Option(
            metavar="STATE",
            help="Only jobs in this state: queued, running, done, failed, expired, cancelled or dead. Repeatable.",
        ),
    ] = None,
    limit: Annotated[int, Option(metavar="N", min=1, max=500, help="Maximum number of jobs.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List jobs, most recent first."""
    from atlas_agents.gateway.protocol.jobs import JobState

    for each in state or ():
        _check_choice("--state", each, get_args(JobState))
    found = call("jobs.list", states=state or [], limit=limit)["jobs"]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["jobId"],
            each["state"],
            each["agentId"],
            _requester(each),
            each["priority"],
            format_age(each.get("endedAt") or each["createdAt"]),
            each["task"],
        )
        for each in found
    ]
    print_table(("job", "state", "agent", "requested by", "priority", "when", "task"), rows, "There are no jobs.")


@command(app)
def show(id: JobId, as_json: JsonFlag = False) -> None:
    """Show a job: who requested it, its state and its result."""
    with open_calls() as gateway:
        job = gateway("jobs.get", job_id=_full_id(gateway, id))["job"]
    if as_json:
        print_json(job)
        return
    print(f"{job['jobId']}  {job['state']}, {job['priority']}")
    print(f"for {job['agentId']}, requested by {_requester(job)}, {format_time(job['createdAt'])}")
    if "deadline" in job:
        print(f"deadline {format_time(job['deadline'])}")
    print(f"{job.get('attempts', 0)} attempts, session {job['sessionKey']}")
    print(f"\n{printable(job['task'])}")
    for key in ("result", "error"):
        if job.get(key):
            print(f"\n{key}:\n{printable(job[key])}")


@command(app)
def submit(
    task: Annotated[str, Argument(metavar="TASK", help="What the agent should do.")],
    agent: AgentOption = None,
    priority: Annotated[str, Option(metavar="NAME", help="low, normal, high or urgent.")] = "normal",
    deadline: Annotated[
        str | None, Option(metavar="WHEN", help="A time such as 2026-11-15T18:00:00Z, or a duration such as 30m.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Give an agent a task to do in the background, while a gateway is running."""
    import secrets

    from atlas_agents.core.store import PRIORITIES

    _check_choice("--priority", priority, PRIORITIES)
    options = {"target_agent": agent, "priority": priority, "deadline": deadline}
    job = call("jobs.submit", task=task, idempotency_key=secrets.token_hex(16), **options)["job"]
    if as_json:
        print_json(job)
        return
    print(job["jobId"])
    print(f"for {job['agentId']}, {job['state']}; see it with: atlas jobs show {job['jobId']}", file=sys.stderr)


@command(app)
def cancel(id: JobId) -> None:
    """Cancel a job and the jobs it delegated; the requester is notified."""
    _change_job(id, "jobs.cancel")


@command(app)
def retry(id: JobId) -> None:
    """Retry a job that failed, expired or was cancelled."""
    _change_job(id, "jobs.retry")


def _change_job(id: str, method: str) -> None:
    with open_calls() as gateway:
        job = gateway(method, job_id=_full_id(gateway, id))["job"]
    print(f"{job['jobId']} is {job['state']}.", file=sys.stderr)


def _full_id(client: GatewayCall, prefix: str) -> str:
    return find_id(client, "job", "job_id", prefix)


def _requester(job: dict[str, Any]) -> str:
    return job.get("askedBy") or ("a schedule" if job["kind"] == "schedule" else job.get("user") or "-")


# Schedules


@command(schedules)
def add(
    name: ScheduleName,
    cron: Annotated[str, Argument(metavar="CRON", help="A cron expression such as '0 9 * * 1-5', or @daily.")],
    task: Annotated[str, Argument(metavar="TASK", help="What the agent should do.")],
    agent: AgentOption = None,
    zone: Annotated[str, Option(metavar="ZONE", help="The time zone, for example Europe/Berlin.")] = "UTC",
    missed: Annotated[
        str, Option(metavar="HOW", help="Runs missed while no gateway was running: once or skip.")
    ] = "once",
    priority: Annotated[str, Option(metavar="NAME", help="low, normal, high or urgent.")] = "normal",
) -> None:
    """Run a task on a schedule while a gateway is running."""
    from atlas_agents.core.store import PRIORITIES

    _check_choice("--missed", missed, ("once", "skip"))
    _check_choice("--priority", priority, PRIORITIES)
    options = {"agent_id": agent, "zone": zone, "missed": missed, "priority": priority}
    added = call("schedules.add", name=name, cron=cron, task=task, **options)
    print(f"{name}: next run at {format_time(added['schedule']['nextAt'])}.", file=sys.stderr)


@command(schedules, "list")
def list_schedules(as_json: JsonFlag = False) -> None:
    """List schedules and their next run."""
    found = call("schedules.list")["schedules"]
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["name"],
            each["cron"],
            each["zone"],
            each["agentId"],
            format_time(each["nextAt"]) if "nextAt" in each else "paused",
            each["task"],
        )
        for each in found
    ]
    print_table(("schedule", "cron", "zone", "agent", "next", "task"), rows, "There are no schedules.")


@command(schedules)
def pause(name: ScheduleName, undo: Annotated[bool, Option("--undo", help="Resume it.")] = False) -> None:
    """Pause a schedule, or resume it."""
    call("schedules.pause", name=name, paused=not undo)
    print(f"{name}: {'resumed' if undo else 'paused'}.", file=sys.stderr)


@command(schedules, "run")
def run_now(name: ScheduleName) -> None:
    """Run the task now and print the job id."""
    print(call("schedules.run", name=name)["job"]["jobId"])


@command(schedules)
def remove(name: ScheduleName) -> None:
    """Remove a schedule; its jobs are kept."""
    call("schedules.remove", name=name)
    print(f"{name}: removed.", file=sys.stderr)


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"invalid {option} {value!r}: expected one of {', '.join(choices)}")
