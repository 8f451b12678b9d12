"""Schedules: recurring tasks with cron expressions. Each due time creates exactly one job, even if the clock jumps."""

import hashlib
import logging
import re
from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec

from atlas_agents.core import store as records
from atlas_agents.core.aio import Clock, TimeSlices
from atlas_agents.core.errors import ConfigError, Conflict, NotFound
from atlas_agents.core.json import decode_readable, encode
from atlas_agents.core.messages import new_id

logger = logging.getLogger(__name__)
_schedules = msgspec.json.Decoder(records.Schedule)
_NAME = re.compile(r"[\w.-]{1,64}")
_ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_MISSED_AFTER = 60_000
"""A due time that is this many milliseconds in the past counts as missed."""
_CLOCK_ERROR = 86_400_000
"""If a schedule was last handled this many milliseconds in the future, the clock was wrong then."""


class Schedules:
    """The schedules of a tenant, kept in its store."""

    def __init__(self, store: records.Store, tenant: Callable[[], str], clock: Clock, wake: Callable[[], None]) -> None:
        self._store = store
        self._tenant = tenant
        self._clock = clock
        self._wake = wake

    async def add(self, schedule: records.Schedule) -> records.Schedule:
        """Add a schedule, first due at its next time from now.

        Raises ConfigError if it is invalid, Conflict if the name is taken.
        """
        check_schedule(schedule)
        now = self._now()
        new = msgspec.structs.replace(schedule, created_at=now, last=now)
        try:
            await self._store.commit(self._tenant(), [records.PutRecord("schedule", new.name, encode(new), 0)])
        except Conflict:
            raise Conflict(f"schedule {new.name!r} already exists") from None
        return new

    async def list(self) -> list[records.Schedule]:
        """Return all schedules, sorted by name."""
        found = await self._store.records(self._tenant(), "schedule")
        return decode_readable(_schedules, [(f"schedule {record.key}", record.body) for record in found])

    async def get(self, name: str) -> records.Schedule:
        return _schedules.decode((await self._record(name)).body)

    async def remove(self, name: str) -> None:
        """Remove a schedule; its existing jobs stay."""
        await self._store.commit(self._tenant(), [records.DropRecord("schedule", name)])

    async def pause(self, name: str, *, paused: bool = True) -> records.Schedule:
        """Pause or resume a schedule; due times during the pause are skipped."""
        record = await self._record(name)
        changed = msgspec.structs.replace(_schedules.decode(record.body), paused=paused, last=self._now())
        await self._store.commit(self._tenant(), [records.PutRecord("schedule", name, encode(changed), record.version)])
        return changed

    async def run(self, name: str) -> records.JobRow:
        """Add a job for the schedule now, independent of its due times."""
        (job,) = await self._store.commit(self._tenant(), [records.AddJob(self._job(await self.get(name), new_id()))])
        self._wake()
        return job

    async def add_due_jobs(self) -> None:
        """Add a job for each schedule that is due, and mark the due time as handled in the same transaction."""
        found, slices = await self._store.records(self._tenant(), "schedule"), TimeSlices()
        for record in found:
            await slices.pause()
            for schedule in decode_readable(_schedules, [(f"schedule {record.key}", record.body)]):
                if not schedule.paused:
                    await self._handle(record, schedule)

    async def _handle(self, record: records.StoredRecord, schedule: records.Schedule) -> None:
        now = self._now()
        clock_was_wrong = schedule.last > now + _CLOCK_ERROR
        latest = now if clock_was_wrong else previous_due_time(schedule, now)
        if latest is None or (latest <= schedule.last and not clock_was_wrong):
            return
        missed = schedule.missed == "skip" and now - latest > _MISSED_AFTER
        handled = encode(msgspec.structs.replace(schedule, last=latest))
        writes: list[records.Write] = [records.PutRecord("schedule", record.key, handled, record.version)]
        if clock_was_wrong or missed:
            reason = "missed" if missed else "clock was wrong"
            logger.info("skipped a due time: schedule=%s reason=%r", schedule.name, reason)
        else:
            writes.append(records.AddJob(self._job(schedule, str(latest))))
        try:
            await self._store.commit(self._tenant(), writes)
        except Conflict:
            logger.info("schedule was changed meanwhile, it is checked again: schedule=%s", schedule.name)

    async def _record(self, name: str) -> records.StoredRecord:
        record = await self._store.record(self._tenant(), "schedule", name)
        if record is None:
            raise NotFound(f"not found: schedule {name!r}")
        return record

    def _job(self, schedule: records.Schedule, slot: str) -> records.JobRow:
        """Build the job of a schedule for one due time. Its id derives from both, so it is added only once."""
        id = hashlib.sha256(f"{schedule.name}\n{schedule.created_at}\n{slot}".encode()).hexdigest()[:16]
        return records.JobRow(
            id,
            "schedule",
            schedule.agent_id,
            schedule.task,
            session=f"{schedule.prefix}schedules/{schedule.name}/jobs/{id}",
            priority=records.PRIORITIES.index(schedule.priority),
            root=id,
            user=schedule.user,
            due_at=self._now(),
        )

    def _now(self) -> int:
        return int(self._clock.time() * 1000)


def check_schedule(schedule: records.Schedule) -> None:
    """Validate a schedule; raises ConfigError with a one-line message."""
    if not _NAME.fullmatch(schedule.name):
        raise ConfigError(f"invalid schedule name {schedule.name!r}: expected 1 to 64 letters, digits, '.', '_' or '-'")
    if not schedule.task.strip():
        raise ConfigError(f"schedule {schedule.name!r} requires a task that is not blank")
    load_zone(schedule)
    if next_due_time(schedule, 0) is None:
        raise ConfigError(f"cron expression {schedule.cron!r} matches no time")


def load_zone(schedule: records.Schedule) -> ZoneInfo:
    try:
        return ZoneInfo(schedule.zone)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"unknown time zone {schedule.zone!r}: expected one like 'Europe/Berlin' or 'UTC'") from error


def previous_due_time(schedule: records.Schedule, now: int) -> int | None:
    """Return the latest due time up to now; None if there was none in 50 years."""
    return _next(schedule, now + 1000, reverse=True)


def next_due_time(schedule: records.Schedule, now: int) -> int | None:
    """Return the next due time after now."""
    return _next(schedule, now, reverse=False)


def _next(schedule: records.Schedule, start: int, *, reverse: bool) -> int | None:
    """Find the next due time with Debian's rules for daylight saving time.

    A fixed time that the clock skips runs right after the change, and one that occurs twice runs once. An expression
    with a wildcard in the hour follows the clock.
    """
    from cronsim import CronSim, CronSimError

    moment = datetime.fromtimestamp(start / 1000, load_zone(schedule)).replace(microsecond=0)
    cron = _ALIASES.get(schedule.cron, schedule.cron)
    if len(cron.split()) != 5:
        raise ConfigError(
            f"invalid cron expression {schedule.cron!r}: expected minute, hour, day, month and weekday, or e.g. @daily"
        )
    try:
        found = next(CronSim(cron, moment, reverse=reverse))
    except StopIteration:
        return None
    except CronSimError as error:
        raise ConfigError(f"invalid cron expression {schedule.cron!r}: {error}") from error
    return int(found.timestamp() * 1000)


def next_due_times(schedule: records.Schedule, now: int, count: int) -> list[int]:
    """Return the next due times."""
    times: list[int] = []
    while len(times) < count and (found := next_due_time(schedule, times[-1] if times else now)) is not None:
        times.append(found)
    return times
