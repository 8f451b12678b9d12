"""What every store refuses, and in the same words."""

from atlas_agents.core.errors import Conflict, Fenced, LimitSpent, NotStored, SessionBusy, StoreError
from atlas_agents.core.jobs import OPEN_JOB, JobRow
from atlas_agents.core.store import OPEN, AcceptRun, AddEvents, ReserveEvents, RunRow

_MOST_EVENTS = 1 << 31
"""So many events may be reserved at once."""


def check_fingerprint(known: RunRow, write: AcceptRun) -> None:
    if known.fingerprint != write.fingerprint:
        raise Conflict(f"the idempotency key {write.idempotency_key!r} was used before, for another request")


def check_count(write: ReserveEvents) -> None:
    if not 0 <= write.count <= _MOST_EVENTS:
        raise StoreError(f"{write.count} events cannot be reserved at once")


def check_numbers(write: AddEvents, reserved: int) -> None:
    for seq, _ in write.events:
        if not 0 < seq <= reserved:
            raise Conflict(f"the run {write.run_id!r} has no event {seq} reserved: its last is {reserved}")


def check_teller(write: AddEvents | ReserveEvents, epoch: int) -> None:
    if write.epoch is not None and write.epoch != epoch:
        raise Fenced(f"the run {write.run_id!r} has a new owner: its epoch is {epoch}, not {write.epoch}")


def check_owner(run_id: str, status: str, epoch: int, claimed: int) -> None:
    if epoch != claimed:
        raise Fenced(f"the run {run_id!r} has a new owner: its epoch is {epoch}, not {claimed}")
    if status not in OPEN:
        raise ended(run_id)


def check_job_owner(job: JobRow, claimed: int | None) -> None:
    if claimed is not None and job.epoch != claimed:
        raise Fenced(f"the job {job.id!r} has a new owner: its epoch is {job.epoch}, not {claimed}")
    if job.state not in OPEN_JOB:
        raise job_ended(job)


def no_job(id: str) -> NotStored:
    return NotStored(f"there is no job {id!r}")


def too_many_jobs(most: int) -> LimitSpent:
    return LimitSpent(f"All {most} jobs that may follow from one message are given out: do the rest without them.")


def job_ended(job: JobRow) -> Conflict:
    return Conflict(f"the job {job.id!r} has ended: it is {job.state}")


def no_session(key: str) -> NotStored:
    return NotStored(f"there is no session {key!r}")


def no_run(run_id: str) -> NotStored:
    return NotStored(f"there is no run {run_id!r}")


def no_document(id: str) -> NotStored:
    return NotStored(f"there is no document {id!r}")


def ended(run_id: str) -> Conflict:
    return Conflict(f"the run {run_id!r} has ended")


def busy(session: str) -> SessionBusy:
    return SessionBusy(f"the session {session!r} has a turn under way, and this one was not to wait")
