"""Jobs and schedules for the screenshots."""

import time
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.core.json import encode
from atlas_agents.core.store import (
    PRIORITIES,
    AddJob,
    ClaimJob,
    JobRow,
    JobState,
    Priority,
    PutRecord,
    Schedule,
    SetJob,
    Write,
)
from atlas_agents.storage.sqlite import SqliteStore
from atlas_agents.testing import VirtualClock

RUNNING_TASK = "Draft the note to the team about this month's orders"
"""The task that still runs when the screenshots are taken."""


class PastJob(msgspec.Struct, frozen=True):
    """A job that was created `minutes_ago` and ended as `state` after `attempts`."""

    minutes_ago: int
    task: str
    state: JobState
    outcome: str = ""
    priority: Priority = "normal"
    attempts: int = 1
    deadline: int | None = None
    schedule: str = ""


JOBS = (
    PastJob(
        412,
        "Compare this week's orders with last week's",
        "done",
        "Orders rose by 6 %, mostly in the North. The South is flat for the third week.",
        schedule="weekly-report",
    ),
    PastJob(
        291,
        "Fetch our partners' price list and mark what has changed",
        "dead",
        "prices.example.org did not respond within 30 s",
        attempts=5,
    ),
    PastJob(
        204,
        "Turn the refund policy into a friendly letter",
        "done",
        "Dear customer, thank you for your message. You can return your purchase within 30 days.",
    ),
    PastJob(166, "Answer the press inquiry before noon", "expired", "the deadline has passed", "high", deadline=-96),
    PastJob(121, "Write a post about the new website", "cancelled", "cancelled by owner", "low"),
    PastJob(
        74,
        "Translate the release notes into Portuguese",
        "failed",
        "the text does not fit into the model's context window",
    ),
    PastJob(
        38,
        "Compare the three offers",
        "done",
        "The second offer is the cheapest over two years. The first can start sooner.",
        "high",
    ),
    PastJob(16, "Ask the suppliers for their December prices", "queued", "the model is overloaded", attempts=3),
)
SCHEDULES = (
    Schedule(
        "weekly-report",
        "0 8 * * 1",
        "analyst",
        "Compare this week's orders with last week's.",
        "Europe/Berlin",
    ),
    Schedule(
        "stock-check",
        "*/30 * * * *",
        "analyst",
        "Which products will sell out within a week? List them with the remaining stock.",
        priority="high",
    ),
    Schedule(
        "press-digest",
        "0 7 * * 1-5",
        "writer",
        "Summarise today's press coverage in five lines, with links.",
        "Europe/Berlin",
        paused=True,
    ),
)


async def add_jobs(path: Path) -> None:
    """Store the jobs and schedules with timestamps in the job."""
    now = time.time()
    for number, job in enumerate(JOBS):
        store = SqliteStore(path, clock=VirtualClock(now - job.minutes_ago * 60))
        await store.open()
        await store.commit("default", _writes(f"{number:016x}", job, int(now * 1000)))
        await store.close()
    store = SqliteStore(path)
    await store.open()
    running = _row("f" * 16, PastJob(0, RUNNING_TASK, "running", priority="urgent", deadline=45), int(now * 1000))
    created = {"created_at": int(now * 1000), "last": int(now * 1000)}
    schedules = [msgspec.structs.replace(schedule, **created) for schedule in SCHEDULES]
    records = [PutRecord("schedule", schedule.name, encode(schedule), 0) for schedule in schedules]
    await store.commit("default", [AddJob(running), *records])
    await store.close()


def _writes(id: str, job: PastJob, now: int) -> list[Write]:
    retries = [ClaimJob(id), SetJob(id, "queued")] * (job.attempts - 1)
    outcome: dict[str, Any] = {"result" if job.state == "done" else "error": job.outcome}
    end = SetJob(id, job.state, due_at=now + 580_000 if job.state == "queued" else None, **outcome)
    return [AddJob(_row(id, job, now)), *retries, ClaimJob(id), end]


def _row(id: str, job: PastJob, now: int) -> JobRow:
    session = f"schedules/{job.schedule}/jobs/{id}" if job.schedule else f"day/jobs/{id}"
    return JobRow(
        id,
        "schedule" if job.schedule else "delegation",
        "analyst" if job.schedule else "writer",
        job.task,
        session=session,
        priority=PRIORITIES.index(job.priority),
        root=id,
        user="owner",
        asker_agent="" if job.schedule else "analyst",
        due_at=now,
        deadline=None if job.deadline is None else now + job.deadline * 60_000,
    )
