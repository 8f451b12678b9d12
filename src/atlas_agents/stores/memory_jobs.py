"""The writes about jobs on dictionaries, and what there is to do."""

import msgspec

from atlas_agents.core.errors import Conflict
from atlas_agents.core.jobs import OPEN_JOB, AddJob, ClaimJob, JobRow, RetryJob, SetJob, TellJob
from atlas_agents.stores.memory_desk import Desk
from atlas_agents.stores.query import Place, cleaned
from atlas_agents.stores.refusals import check_job_owner, job_ended, no_job, too_many_jobs


def add_job(desk: Desk, place: Place, write: AddJob) -> JobRow:
    job = write.job
    if job.id in desk.jobs:
        return desk.jobs[job.id]
    alike = sum(each.root == job.root for each in desk.jobs.values()) if job.root else 0
    if write.most is not None and alike >= write.most:
        raise too_many_jobs(write.most)
    new = msgspec.structs.replace(
        job,
        task=cleaned(job.task),
        state="queued",
        attempts=0,
        epoch=0,
        result=None,
        error=None,
        told=not job.asker_session,
        created_at=place.now,
        ended_at=None,
        seq=len(desk.jobs) + 1,
    )
    return desk.put(desk.jobs, job.id, new)


def claim_job(desk: Desk, place: Place, write: ClaimJob) -> JobRow:
    job = _known(desk, write.id)
    if job.state not in OPEN_JOB:
        raise job_ended(job)
    attempts = job.attempts + (job.state == "queued")
    new = msgspec.structs.replace(job, epoch=job.epoch + 1, attempts=attempts, state="running")
    return desk.put(desk.jobs, job.id, new)


def set_job(desk: Desk, place: Place, write: SetJob) -> JobRow:
    job = _known(desk, write.id)
    check_job_owner(job, write.epoch)
    new = msgspec.structs.replace(
        job,
        state=write.state,
        epoch=job.epoch + (write.epoch is None),
        result=job.result if write.result is None else cleaned(write.result),
        error=job.error if write.error is None else cleaned(write.error),
        due_at=job.due_at if write.due_at is None else write.due_at,
        ended_at=None if write.state in OPEN_JOB else place.now,
    )
    return desk.put(desk.jobs, job.id, new)


def retry_job(desk: Desk, place: Place, write: RetryJob) -> JobRow:
    job = _known(desk, write.id)
    if job.state in (*OPEN_JOB, "done"):
        raise Conflict(f"the job {job.id!r} is {job.state}: it is not to be tried again")
    late = job.deadline is not None and job.deadline <= place.now
    new = msgspec.structs.replace(
        job,
        state="queued",
        allowed=job.attempts + write.more,
        due_at=place.now,
        result=None,
        ended_at=None,
        deadline=None if late else job.deadline,
        told=not job.asker_session,
    )
    return desk.put(desk.jobs, job.id, new)


def tell_job(desk: Desk, place: Place, write: TellJob) -> None:
    job = _known(desk, write.id)
    if job.attempts == write.attempts and job.state not in OPEN_JOB:
        desk.put(desk.jobs, job.id, msgspec.structs.replace(job, told=True))


def pending(desk: Desk, now: int) -> list[JobRow]:
    """All that there is to do, the most urgent first."""
    found = [job for job in desk.jobs.values() if _is_pending(job, now)]
    return sorted(found, key=lambda job: (-job.priority, job.due_at, job.seq))


def _is_pending(job: JobRow, now: int) -> bool:
    if job.state != "queued":
        return job.state == "running" or not job.told
    return job.due_at <= now or (job.deadline is not None and job.deadline <= now)


def _known(desk: Desk, id: str) -> JobRow:
    if id not in desk.jobs:
        raise no_job(id)
    return desk.jobs[id]
