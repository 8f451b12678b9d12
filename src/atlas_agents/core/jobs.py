"""Jobs: work that one agent hands to another, or that is due at a time. A job is a row; whoever owns it has its epoch.

Each job is done in a session of its own, and what came of it is told to whoever asked, once.
"""

from typing import Literal, TypeAlias

import msgspec

JobState: TypeAlias = Literal["queued", "running", "done", "failed", "expired", "cancelled", "dead"]
JobKind: TypeAlias = Literal["delegation", "schedule"]
Priority: TypeAlias = Literal["low", "normal", "high", "urgent"]
PRIORITIES: tuple[Priority, ...] = ("low", "normal", "high", "urgent")
OPEN_JOB: tuple[JobState, ...] = ("queued", "running")
MOST_ATTEMPTS = 5
"""So often a job is tried; then it is dead, until a person has it tried again."""


class Chain(msgspec.Struct, frozen=True, omit_defaults=True):
    """For whom a turn is taken: the agents that asked one another, the first one first; the run that it all began with;
    the job that this turn is a part of, until when that is of use, and how urgent it is."""

    root: str = ""
    agents: tuple[str, ...] = ()
    job: str = ""
    deadline: int | None = None
    urgency: int = 1


NOBODY = Chain()
"""The chain of a turn that a person began."""


class JobRow(msgspec.Struct, frozen=True):
    """A job. `asker_*` say who asked, in which call of which run, and for which user; nobody did where they are empty.
    `chain` names the agents that wait for it, up to the one that asked. Times are in milliseconds since 1970."""

    id: str
    kind: JobKind
    agent_id: str
    task: str
    session: str
    state: JobState = "queued"
    priority: int = 1
    parent: str = ""
    """The job in which it was asked for, if it was in one."""
    root: str = ""
    chain: tuple[str, ...] = ()
    user: str = ""
    asker_run: str = ""
    asker_call: str = ""
    asker_session: str = ""
    asker_agent: str = ""
    due_at: int = 0
    deadline: int | None = None
    attempts: int = 0
    allowed: int = MOST_ATTEMPTS
    """It is dead once it was tried so often in vain."""
    epoch: int = 0
    result: str | None = None
    error: str | None = None
    told: bool = False
    """Whoever asked knows what came of it, or nobody is there to be told."""
    created_at: int = 0
    ended_at: int | None = None
    seq: int = 0
    """Its place among all jobs of its tenant."""


class AddJob(msgspec.Struct, frozen=True, tag=True):
    """Keep a job; its row is the result. Adding the same id again changes nothing, and the row is the first one.
    `LimitSpent` if its root has `most` of them already."""

    job: JobRow
    most: int | None = None


class ClaimJob(msgspec.Struct, frozen=True, tag=True):
    """Become the owner of an open job: its epoch rises, and it is running; one that was queued begins another attempt.
    Its row is the result. One that has ended is `Conflict`."""

    id: str


class SetJob(msgspec.Struct, frozen=True, tag=True):
    """Change an open job; its row is the result, one that has ended is `Conflict`. Its owner names its epoch, who else
    does is `Fenced`; without one anybody may, and whoever owned the job does not any more. Queued again, it waits until
    it is due."""

    id: str
    state: JobState
    epoch: int | None = None
    result: str | None = None
    error: str | None = None
    due_at: int | None = None


class RetryJob(msgspec.Struct, frozen=True, tag=True):
    """Have a job tried again that was not done: it may be tried `more` times. Its row is the result. `Conflict` while
    it is open, and when it is done. A deadline that has passed holds no more."""

    id: str
    more: int = MOST_ATTEMPTS


class TellJob(msgspec.Struct, frozen=True, tag=True):
    """Whoever asked was told what came of a job when it ended after so many attempts; one that was begun again since
    is to be told of again."""

    id: str
    attempts: int


JobWrite: TypeAlias = AddJob | ClaimJob | SetJob | RetryJob | TellJob
