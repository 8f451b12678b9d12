"""Methods `jobs.*` and `schedules.*`: jobs and recurring tasks of the caller."""

import hashlib
import time

from atlas_agents.agents.schedules import next_due_time
from atlas_agents.agents.stream import AtlasStream
from atlas_agents.builtin_tools.team import parse_deadline
from atlas_agents.core.aio import TimeSlices
from atlas_agents.core.errors import BadArguments, Conflict, NotFound
from atlas_agents.core.messages import new_id
from atlas_agents.core.store import PRIORITIES, JobRow, Schedule
from atlas_agents.core.telemetry import read_trace_context
from atlas_agents.core.text import list_known
from atlas_agents.gateway.connection import ClientConnection
from atlas_agents.gateway.convert import agent_model
from atlas_agents.gateway.dispatch import Methods
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol import jobs as wire
from atlas_agents.gateway.protocol.events import JobUpdated, encode_event
from atlas_agents.gateway.protocol.frames import ProtocolError, not_found
from atlas_agents.gateway.protocol.types import Ack, NoParams

_MAX_SCHEDULES = 100
"""Maximum number of schedules of each user who has sessions of their own."""


def add_methods(methods: Methods) -> None:
    methods.add("jobs.list", list_jobs)
    methods.add("jobs.get", get_job)
    methods.add("jobs.submit", submit_job)
    methods.add("jobs.cancel", cancel_job)
    methods.add("jobs.retry", retry_job)
    methods.add("schedules.add", add_schedule)
    methods.add("schedules.list", list_schedules)
    methods.add("schedules.pause", pause_schedule)
    methods.add("schedules.run", run_schedule)
    methods.add("schedules.remove", remove_schedule)


async def list_jobs(caller: ClientConnection, params: wire.JobsList) -> wire.JobPage:
    """List the caller's jobs, latest first, and subscribe the caller to changes."""
    caller.jobs = True
    before = int(params.cursor) if params.cursor is not None else None
    found = await caller.hub.store.jobs(
        caller.hub.atlas.tenant,
        states=params.states,
        limit=params.limit + 1,
        before=before,
        prefix=caller.grant.prefix,
    )
    shown = found[: params.limit]
    more = str(shown[-1].seq) if len(found) > params.limit else None
    return wire.JobPage(tuple([job_shape(each, caller.grant.prefix) for each in shown]), more)


async def get_job(caller: ClientConnection, params: wire.OneJob) -> wire.JobResult:
    return wire.JobResult(job_shape(await _require_job(caller, params.job_id), caller.grant.prefix))


async def submit_job(caller: ClientConnection, params: wire.JobsSubmit) -> wire.JobSubmitted:
    """Give an agent a task, as a job in a session of its own."""
    hub, grant = caller.hub, caller.grant
    hub.check_accepting()
    agent = await hub.resolve_agent("", params.target_agent)
    if not params.task.strip():
        raise ProtocolError("INVALID_PARAMS", "task: must not be blank")
    now = int(time.time() * 1000)
    seed = f"{grant.principal.id}\n{params.idempotency_key or new_id()}"
    id = hashlib.sha256(seed.encode()).hexdigest()[:16]
    session = f"{grant.prefix}requests/jobs/{id}"
    if grant.prefix:
        await hub.quotas.check(session, sessions=1, messages=1, size=len(params.task.encode()))
    job = JobRow(
        id,
        "request",
        agent.id,
        params.task,
        session=session,
        priority=PRIORITIES.index(params.priority),
        root=id,
        user=grant.principal.id,
        due_at=now,
        deadline=_deadline(params.deadline, now),
        traceparent=hub.atlas.telemetry.incoming(read_trace_context(params.traceparent, params.tracestate)),
    )
    return wire.JobSubmitted(id, job_shape(await hub.atlas.jobs.add(job), grant.prefix))


def _deadline(wanted: int | str | None, now: int) -> int | None:
    try:
        if isinstance(wanted, str):
            return parse_deadline(wanted, now)
    except BadArguments as error:
        raise ProtocolError("INVALID_PARAMS", str(error)) from None
    if wanted is not None and wanted <= now:
        raise ProtocolError("INVALID_PARAMS", "deadline: is in the past")
    return wanted


async def cancel_job(caller: ClientConnection, params: wire.OneJob) -> wire.JobResult:
    job = await _require_job(caller, params.job_id)
    try:
        ended = await caller.hub.atlas.jobs.cancel(job.id, by=caller.grant.principal.id)
    except Conflict:
        raise ProtocolError("CONFLICT", "the job has already ended") from None
    return wire.JobResult(job_shape(ended, caller.grant.prefix))


async def retry_job(caller: ClientConnection, params: wire.OneJob) -> wire.JobResult:
    job = await _require_job(caller, params.job_id)
    try:
        again = await caller.hub.atlas.jobs.retry(job.id)
    except Conflict:
        raise ProtocolError("CONFLICT", "cannot retry: the job has not failed") from None
    return wire.JobResult(job_shape(again, caller.grant.prefix))


async def _require_job(caller: ClientConnection, id: str) -> JobRow:
    """Return a job that the caller may access; raise 'not found' otherwise."""
    try:
        job = await caller.hub.atlas.jobs.get(id)
    except NotFound:
        raise not_found("JOB") from None
    if not job.session.startswith(caller.grant.prefix):
        raise not_found("JOB")
    return job


def job_shape(job: JobRow, prefix: str) -> wire.JobShape:
    return wire.JobShape(
        job_id=job.id,
        kind=job.kind,
        agent_id=job.agent_id,
        task=job.task,
        state=job.state,
        priority=PRIORITIES[job.priority],
        session_key=job.session.removeprefix(prefix),
        created_at=job.created_at,
        due_at=job.due_at,
        attempts=job.attempts,
        parent=job.parent,
        user=job.user,
        asked_by=job.asker_agent,
        asker_session=job.asker_session.removeprefix(prefix),
        deadline=job.deadline,
        result=job.result,
        error=job.error,
        ended_at=job.ended_at,
    )


def follow_jobs(hub: Hub) -> None:
    """Log and deliver the events of job runs, and notify subscribers when jobs change."""

    def follow(stream: AtlasStream, agent_id: str) -> None:
        agent = hub.agent(agent_id)
        hub.runs.follow(stream, agent_model(agent, hub.atlas.registry) if agent else "")

    def send_update(job: JobRow) -> None:
        for peer in hub.readers():
            prefix = peer.grant.prefix
            if peer.jobs and job.session.startswith(prefix):
                peer.send(encode_event(JobUpdated(job_shape(job, prefix))))

    hub.atlas.jobs.on_turn(follow)
    hub.atlas.jobs.on_change(send_update)


async def add_schedule(caller: ClientConnection, params: wire.SchedulesAdd) -> wire.ScheduleResult:
    agent = await caller.hub.resolve_agent("", params.agent_id)
    if caller.grant.prefix:
        own = [each for each in await caller.hub.atlas.jobs.schedules.list() if each.prefix == caller.grant.prefix]
        if len(own) >= _MAX_SCHEDULES:
            raise ProtocolError(
                "LIMIT_EXCEEDED", f"a user can have at most {_MAX_SCHEDULES} schedules; remove one first"
            )
    schedule = Schedule(
        params.name,
        params.cron.strip(),
        agent.id,
        params.task,
        params.zone,
        params.missed,
        params.priority,
        user=caller.grant.principal.id,
        prefix=caller.grant.prefix,
    )
    try:
        return wire.ScheduleResult(_schedule_shape(await caller.hub.atlas.jobs.schedules.add(schedule)))
    except Conflict:
        raise ProtocolError("CONFLICT", f"schedule {params.name!r} already exists") from None


async def list_schedules(caller: ClientConnection, _: NoParams) -> wire.SchedulesResult:
    """List the caller's schedules by name."""
    shapes, slices = list[wire.ScheduleShape](), TimeSlices()
    for each in await caller.hub.atlas.jobs.schedules.list():
        if each.prefix.startswith(caller.grant.prefix):
            shapes.append(_schedule_shape(each))
            await slices.pause()  # its next due time takes about 0.1 ms
    return wire.SchedulesResult(tuple(shapes))


async def pause_schedule(caller: ClientConnection, params: wire.SchedulesPause) -> wire.ScheduleResult:
    await _require_schedule(caller, params.name)
    return wire.ScheduleResult(
        _schedule_shape(await caller.hub.atlas.jobs.schedules.pause(params.name, paused=params.paused))
    )


async def run_schedule(caller: ClientConnection, params: wire.OneSchedule) -> wire.JobResult:
    await _require_schedule(caller, params.name)
    return wire.JobResult(job_shape(await caller.hub.atlas.jobs.schedules.run(params.name), caller.grant.prefix))


async def remove_schedule(caller: ClientConnection, params: wire.OneSchedule) -> Ack:
    await _require_schedule(caller, params.name)
    await caller.hub.atlas.jobs.schedules.remove(params.name)
    return Ack(True)


async def _require_schedule(caller: ClientConnection, name: str) -> None:
    """Check that the schedule exists and belongs to the caller; the error is the same in both cases."""
    try:
        found = await caller.hub.atlas.jobs.schedules.get(name)
    except NotFound:
        found = None
    if found is None or not found.prefix.startswith(caller.grant.prefix):
        own = [each.name for each in (await list_schedules(caller, NoParams())).schedules]
        raise ProtocolError("INVALID_PARAMS", f"unknown schedule {name!r}; {list_known('schedules', own)}")


def _schedule_shape(schedule: Schedule) -> wire.ScheduleShape:
    return wire.ScheduleShape(
        name=schedule.name,
        cron=schedule.cron,
        zone=schedule.zone,
        agent_id=schedule.agent_id,
        task=schedule.task,
        missed=schedule.missed,
        priority=schedule.priority,
        paused=schedule.paused,
        created_at=schedule.created_at,
        user=schedule.user,
        next_at=None if schedule.paused else next_due_time(schedule, int(time.time() * 1000)),
    )
