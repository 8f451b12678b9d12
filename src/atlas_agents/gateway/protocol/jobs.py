"""Params and results of `jobs.*`: work that agents hand to each other, or that is due at a time."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from atlas_agents.gateway.protocol.chat import Page
from atlas_agents.gateway.protocol.shapes import Wire

JobState: TypeAlias = Literal["queued", "running", "done", "failed", "expired", "cancelled", "dead"]
JobId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]


class JobShape(Wire, frozen=True):
    """A job, and how it stands; it is done in the session `sessionKey`. `askedBy` is the agent that asked, in the
    session `askerSession`; `parent` the job in which it did."""

    job_id: str
    kind: Literal["delegation", "schedule"]
    agent_id: str
    task: str
    state: JobState
    priority: Literal["low", "normal", "high", "urgent"]
    session_key: str
    created_at: int
    due_at: int
    attempts: int = 0
    parent: str = ""
    user: str = ""
    asked_by: str = ""
    asker_session: str = ""
    deadline: int | None = None
    result: str | None = None
    error: str | None = None
    ended_at: int | None = None


class JobsList(Wire, frozen=True):
    """The latest first; in these states, or in any."""

    states: tuple[JobState, ...] = ()
    limit: Page = 50
    cursor: Annotated[str, Meta(pattern=r"^\d{1,18}$")] | None = None


class JobPage(Wire, frozen=True):
    jobs: tuple[JobShape, ...]
    next_cursor: str | None = None


class OneJob(Wire, frozen=True):
    """Name a job."""

    job_id: JobId


class JobFound(Wire, frozen=True):
    job: JobShape
