"""Jobs and schedules for the pictures: an afternoon on which most things went well."""

import time
from pathlib import Path
from typing import Any

import msgspec

from atlas_agents.core.jobs import PRIORITIES, AddJob, ClaimJob, JobRow, JobState, Priority, SetJob
from atlas_agents.core.json import encode
from atlas_agents.core.records import PutRecord
from atlas_agents.core.schedules import Schedule
from atlas_agents.core.store import Write
from atlas_agents.stores.sqlite import SqliteStore
from atlas_agents.testing import VirtualClock

NOTE = "Draft the note to the team about the orders of this month"
"""Still under way when the pictures are made."""


class Past(msgspec.Struct, frozen=True):
    """A job of this day: made so many minutes ago, ended as `state` after so many tries."""

    ago: int
    task: str
    state: JobState
    words: str = ""
    priority: Priority = "normal"
    tries: int = 1
    deadline: int | None = None
    schedule: str = ""


JOBS = (
    Past(
        412,
        "Compare the orders of this week with those of last week",
        "done",
        "Orders rose by 6 %, most of it in the North. South is flat for the third week.",
        schedule="weekly-report",
    ),
    Past(
        291,
        "Fetch the price list of our partners and mark what has changed",
        "dead",
        "no answer from prices.example.org within 30 s",
        tries=5,
    ),
    Past(
        204,
        "Turn the refund policy into a friendly letter",
        "done",
        "Dear customer, thank you for writing to us. You can return what you bought within 30 days.",
    ),
    Past(
        166, "Answer the question of the press before noon", "expired", "its deadline has passed", "high", deadline=-96
    ),
    Past(121, "Write a post about the new office", "cancelled", "by owner", "low"),
    Past(
        74,
        "Translate the release notes into Portuguese",
        "failed",
        "the request was refused: the text is longer than the model can read",
    ),
    Past(
        38,
        "Read the three offers and put them side by side",
        "done",
        "The second offer is the cheapest over two years; the first is faster to begin with.",
        "high",
    ),
    Past(16, "Ask the suppliers for their prices in December", "queued", "the model is overloaded", tries=3),
)
SCHEDULES = (
    Schedule(
        "weekly-report",
        "0 8 * * 1",
        "analyst",
        "Compare the orders of this week with those of last week.",
        "Europe/Berlin",
    ),
    Schedule(
        "stock-check",
        "*/30 * * * *",
        "analyst",
        "Which products will be sold out within a week? Name them, and how many are left.",
        priority="high",
    ),
    Schedule(
        "press-digest",
        "0 7 * * 1-5",
        "writer",
        "What is written about us today? Five lines, with links.",
        "Europe/Berlin",
        paused=True,
    ),
)


async def add_jobs(path: Path) -> None:
    """Write down what was, at the times it was."""
    now = time.time()
    for number, past in enumerate(JOBS):
        store = SqliteStore(path, clock=VirtualClock(now - past.ago * 60))
        await store.open()
        await store.commit("default", _writes(f"{number:016x}", past, int(now * 1000)))
        await store.close()
    store = SqliteStore(path)
    await store.open()
    new = _row("f" * 16, Past(0, NOTE, "running", priority="urgent", deadline=45), int(now * 1000))
    kept = [msgspec.structs.replace(each, created_at=int(now * 1000), last=int(now * 1000)) for each in SCHEDULES]
    await store.commit("default", [AddJob(new), *[PutRecord("schedule", each.name, encode(each), 0) for each in kept]])
    await store.close()


def _writes(id: str, past: Past, now: int) -> list[Write]:
    again = [ClaimJob(id), SetJob(id, "queued")] * (past.tries - 1)
    said: dict[str, Any] = {"result" if past.state == "done" else "error": past.words}
    end = SetJob(id, past.state, due_at=now + 580_000 if past.state == "queued" else None, **said)
    return [AddJob(_row(id, past, now)), *again, ClaimJob(id), end]


def _row(id: str, past: Past, now: int) -> JobRow:
    session = f"schedules/{past.schedule}/jobs/{id}" if past.schedule else f"day/jobs/{id}"
    return JobRow(
        id,
        "schedule" if past.schedule else "delegation",
        "analyst" if past.schedule else "writer",
        past.task,
        session=session,
        priority=PRIORITIES.index(past.priority),
        root=id,
        user="owner",
        asker_agent="" if past.schedule else "analyst",
        due_at=now,
        deadline=None if past.deadline is None else now + past.deadline * 60_000,
    )
