"""Params and results of `schedules.*`: tasks that recur."""

from typing import Annotated, Literal

from msgspec import Meta

from atlas_agents.gateway.protocol.shapes import Wire

Name = Annotated[str, Meta(min_length=1, max_length=64)]
Words = Annotated[str, Meta(min_length=1, max_length=20_000)]


class ScheduleShape(Wire, frozen=True):
    """A task that recurs; `nextAt` is when it is due next, in milliseconds since 1970, unless it is paused."""

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


class SchedulesAdd(Wire, frozen=True):
    """A cron expression of five fields, or `@daily` and its kin, in a time zone like `Europe/Berlin`."""

    name: Name
    cron: Annotated[str, Meta(max_length=200)]
    task: Words
    agent_id: str | None = None
    zone: Annotated[str, Meta(max_length=64)] = "UTC"
    missed: Literal["once", "skip"] = "once"
    priority: Literal["low", "normal", "high", "urgent"] = "normal"


class OneSchedule(Wire, frozen=True):
    """Name a schedule."""

    name: Name


class SchedulesPause(Wire, frozen=True):
    """Let it rest, or with `paused: false` go on."""

    name: Name
    paused: bool = True


class ScheduleFound(Wire, frozen=True):
    schedule: ScheduleShape


class SchedulesFound(Wire, frozen=True):
    schedules: tuple[ScheduleShape, ...]
