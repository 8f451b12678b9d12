"""Recurring tasks: a cron expression, a time zone, and what to do when a time was missed."""

from typing import Literal, TypeAlias

import msgspec

from atlas_agents.core.jobs import Priority

Missed: TypeAlias = Literal["once", "skip"]


class Schedule(msgspec.Struct, frozen=True):
    """A task that an agent is given again and again. Times that passed while nobody was there are made up for `once`,
    however many they were, or are skipped. `prefix` stands before the sessions of whoever it belongs to."""

    name: str
    cron: str
    agent_id: str
    task: str
    zone: str = "UTC"
    missed: Missed = "once"
    priority: Priority = "normal"
    paused: bool = False
    user: str = ""
    prefix: str = ""
    created_at: int = 0
    last: int = 0
    """Its due times up to this one are dealt with, in milliseconds since 1970."""
