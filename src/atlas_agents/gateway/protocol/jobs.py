"""Parameters and results of `jobs.*` and `schedules.*`: delegated and scheduled work."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from atlas_agents.gateway.protocol.chat import Page
from atlas_agents.gateway.protocol.types import Traceparent, Tracestate, WireStruct

JobState: TypeAlias = Literal["queued", "running", "done", "failed", "expired", "cancelled", "dead"]
JobId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Text = Annotated[str, Meta(min_length=1, max_length=20_000)]


class JobShape(WireStruct, frozen=True):
    """A job and its status. It runs in the session `sessionKey`.

    `askedBy` is the agent that created it, in the session `askerSession`; `parent` is the job that agent was working
    on.
    """

    job_id: str
    kind: Literal["delegation", "schedule", "request"]
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


class JobsSubmit(WireStruct, frozen=True):
    """A task for an agent, in a session of its own. A repeated `idempotencyKey` returns the job that it created.

    `deadline` is a time such as `2026-11-15T18:00:00Z`, a duration such as `30 minutes`, or milliseconds since 1970.
    `traceparent` and `tracestate` are the trace context of the client (W3C).
    """

    task: Text
    target_agent: str | None = None
    priority: Literal["low", "normal", "high", "urgent"] = "normal"
    deadline: Annotated[int, Meta(ge=0, le=2**53 - 1)] | Annotated[str, Meta(max_length=64)] | None = None
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    traceparent: Traceparent | None = None
    tracestate: Tracestate | None = None


class JobSubmitted(WireStruct, frozen=True):
    job_id: str
    job: JobShape


class JobsList(WireStruct, frozen=True):
    """Filter by status; latest first."""

    states: tuple[JobState, ...] = ()
    limit: Page = 50
    cursor: Annotated[str, Meta(pattern=r"^\d{1,18}$")] | None = None


class JobPage(WireStruct, frozen=True):
    jobs: tuple[JobShape, ...]
    next_cursor: str | None = None


class OneJob(WireStruct, frozen=True):
    """Identifies a job."""

    job_id: JobId


class JobResult(WireStruct, frozen=True):
    job: JobShape


class ScheduleShape(WireStruct, frozen=True):
    """A recurring task. `nextAt` is the next run in milliseconds since 1970, unless it is paused."""

    name: str
    cron: str
    zone: str
    agent_id: str
    task: str
    missed: Literal["once", "skip"]
    priority: Literal["low", "normal", "high", "urgent"]
    paused: bool
    created_at: int
    user: str = ""
    next_at: int | None = None


class SchedulesAdd(WireStruct, frozen=True):
    """A cron expression with five fields, or a shorthand such as `@daily`, in a time zone such as `Europe/Berlin`."""

    name: Name
    cron: Annotated[str, Meta(max_length=200)]
    task: Text
    agent_id: str | None = None
    zone: Annotated[str, Meta(max_length=64)] = "UTC"
    missed: Literal["once", "skip"] = "once"
    priority: Literal["low", "normal", "high", "urgent"] = "normal"


class OneSchedule(WireStruct, frozen=True):
    """Identifies a schedule."""

    name: Name


class SchedulesPause(WireStruct, frozen=True):
    """Pause a schedule, or resume it with `paused: false`."""

    name: Name
    paused: bool = True


class ScheduleResult(WireStruct, frozen=True):
    schedule: ScheduleShape


class SchedulesResult(WireStruct, frozen=True):
    schedules: tuple[ScheduleShape, ...]
