"""The writes about jobs as steps."""

from atlas_agents.core.errors import Conflict
from atlas_agents.core.jobs import OPEN_JOB, AddJob, ClaimJob, JobRow, RetryJob, SetJob, TellJob
from atlas_agents.core.json import encode
from atlas_agents.stores import job_statements as sql
from atlas_agents.stores.query import Place, Steps, cleaned
from atlas_agents.stores.refusals import check_job_owner, job_ended, no_job, too_many_jobs
from atlas_agents.stores.rows import job_of


def add_job(place: Place, write: AddJob) -> Steps[JobRow]:
    job = write.job
    known = yield place.ask(sql.JOB, id=job.id)
    if known:
        return job_of(known[0])
    if write.most is not None and (yield place.ask(sql.COUNT_JOBS, root=job.root))[0][0] >= write.most:
        raise too_many_jobs(write.most)
    rows = yield place.ask(
        sql.ADD_JOB,
        id=job.id,
        kind=job.kind,
        agent_id=job.agent_id,
        task=cleaned(job.task),
        session=job.session,
        priority=job.priority,
        parent=job.parent,
        root=job.root,
        chain=encode(job.chain).decode(),
        user_id=job.user,
        asker_run=job.asker_run,
        asker_call=job.asker_call,
        asker_session=job.asker_session,
        asker_agent=job.asker_agent,
        due_at=job.due_at,
        deadline=job.deadline,
        allowed=job.allowed,
        told=not job.asker_session,
    )
    return job_of(rows[0])


def claim_job(place: Place, write: ClaimJob) -> Steps[JobRow]:
    rows = yield place.ask(sql.CLAIM_JOB, id=write.id)
    if rows:
        return job_of(rows[0])
    raise job_ended((yield from _known(place, write.id)))


def set_job(place: Place, write: SetJob) -> Steps[JobRow]:
    job = yield from _known(place, write.id)
    check_job_owner(job, write.epoch)
    rows = yield place.ask(
        sql.SET_JOB,
        id=write.id,
        state=write.state,
        epoch=job.epoch + (write.epoch is None),
        result=cleaned(write.result),
        error=cleaned(write.error),
        due_at=write.due_at,
        ended_at=None if write.state in OPEN_JOB else place.now,
    )
    return job_of(rows[0])


def retry_job(place: Place, write: RetryJob) -> Steps[JobRow]:
    job = yield from _known(place, write.id)
    if job.state in (*OPEN_JOB, "done"):
        raise Conflict(f"the job {job.id!r} is {job.state}: it is not to be tried again")
    rows = yield place.ask(sql.RETRY_JOB, id=job.id, more=write.more, told=not job.asker_session)
    return job_of(rows[0])


def tell_job(place: Place, write: TellJob) -> Steps[None]:
    yield from _known(place, write.id)
    yield place.ask(sql.TELL_JOB, id=write.id, attempts=write.attempts)


def _known(place: Place, id: str) -> Steps[JobRow]:
    rows = yield place.ask(sql.JOB, id=id)
    if not rows:
        raise no_job(id)
    return job_of(rows[0])
