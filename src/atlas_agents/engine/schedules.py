"""When recurring tasks are due: each due time makes exactly one job, whatever the clock does."""

import hashlib
import logging
import re
from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec

from atlas_agents.core.clock import Clock
from atlas_agents.core.errors import ConfigError, Conflict, NotStored
from atlas_agents.core.ids import new_id
from atlas_agents.core.jobs import PRIORITIES, AddJob, JobRow
from atlas_agents.core.json import encode
from atlas_agents.core.records import DropRecord, PutRecord, Record
from atlas_agents.core.schedules import Schedule
from atlas_agents.core.store import Store, Write

logger = logging.getLogger(__name__)
_schedules = msgspec.json.Decoder(Schedule)
_NAME = re.compile(r"[\w.-]{1,64}")
_SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
_LATE = 60_000
"""A time that passed longer ago than this, in milliseconds, was missed."""
_WRONG = 86_400_000
"""A clock that was further ahead than this was wrong, and what it said of a schedule does not count."""


class Schedules:
    """All of a tenant's, in its store."""

    def __init__(self, store: Store, tenant: Callable[[], str], clock: Clock, wake: Callable[[], None]) -> None:
        self._store = store
        self._tenant = tenant
        self._clock = clock
        self._wake = wake

    async def add(self, schedule: Schedule) -> Schedule:
        """Keep a new one; its first time is the next one from now. ConfigError if it cannot be, Conflict if there is
        one of this name."""
        check(schedule)
        now = self._now()
        new = msgspec.structs.replace(schedule, created_at=now, last=now)
        try:
            await self._store.commit(self._tenant(), [PutRecord("schedule", new.name, encode(new), 0)])
        except Conflict:
            raise Conflict(f"there is a schedule {new.name!r} already") from None
        return new

    async def list(self) -> list[Schedule]:
        """By name."""
        return [_schedules.decode(record.body) for record in await self._store.records(self._tenant(), "schedule")]

    async def get(self, name: str) -> Schedule:
        return _schedules.decode((await self._record(name)).body)

    async def remove(self, name: str) -> None:
        """Its jobs stay as they are."""
        await self._store.commit(self._tenant(), [DropRecord("schedule", name)])

    async def pause(self, name: str, *, paused: bool = True) -> Schedule:
        """Let it rest, or go on; times that pass while it rests are not made up for."""
        record = await self._record(name)
        changed = msgspec.structs.replace(_schedules.decode(record.body), paused=paused, last=self._now())
        await self._store.commit(self._tenant(), [PutRecord("schedule", name, encode(changed), record.version)])
        return changed

    async def run(self, name: str) -> JobRow:
        """Have its task done now, whatever its times say."""
        (job,) = await self._store.commit(self._tenant(), [AddJob(self._job(await self.get(name), new_id()))])
        self._wake()
        return job

    async def due(self) -> None:
        """Make a job for each schedule whose time has come; the job and that it is dealt with are one commit."""
        for record in await self._store.records(self._tenant(), "schedule"):
            schedule = _schedules.decode(record.body)
            if not schedule.paused:
                await self._look(record, schedule)

    async def _look(self, record: Record, schedule: Schedule) -> None:
        now = self._now()
        wrong = schedule.last > now + _WRONG
        latest = now if wrong else before(schedule, now)
        if latest is None or (latest <= schedule.last and not wrong):
            return
        missed = schedule.missed == "skip" and now - latest > _LATE
        dealt = encode(msgspec.structs.replace(schedule, last=latest))
        writes: list[Write] = [PutRecord("schedule", record.key, dealt, record.version)]
        if wrong or missed:
            logger.info(
                "the schedule %s: %s", schedule.name, "its time was missed" if missed else "the clock was wrong"
            )
        else:
            writes.append(AddJob(self._job(schedule, str(latest))))
        try:
            await self._store.commit(self._tenant(), writes)
        except Conflict:
            logger.info("the schedule %s was changed by somebody else: it is looked at again", schedule.name)

    async def _record(self, name: str) -> Record:
        record = await self._store.record(self._tenant(), "schedule", name)
        if record is None:
            raise NotStored(f"there is no schedule {name!r}")
        return record

    def _job(self, schedule: Schedule, slot: str) -> JobRow:
        """The one job of this schedule for this time."""
        id = hashlib.sha256(f"{schedule.name}\n{schedule.created_at}\n{slot}".encode()).hexdigest()[:16]
        return JobRow(
            id,
            "schedule",
            schedule.agent_id,
            schedule.task,
            session=f"{schedule.prefix}schedules/{schedule.name}/jobs/{id}",
            priority=PRIORITIES.index(schedule.priority),
            root=id,
            user=schedule.user,
            due_at=self._now(),
        )

    def _now(self) -> int:
        return int(self._clock.time() * 1000)


def check(schedule: Schedule) -> None:
    """ConfigError in one line, if it cannot work."""
    if not _NAME.fullmatch(schedule.name):
        raise ConfigError(f"{schedule.name!r} is no name for a schedule: letters, digits, . _ and -, 64 at most")
    if not schedule.task.strip():
        raise ConfigError(f"the schedule {schedule.name!r} has no task")
    zone_of(schedule)
    if after(schedule, 0) is None:
        raise ConfigError(f"{schedule.cron!r} never comes")


def zone_of(schedule: Schedule) -> ZoneInfo:
    try:
        return ZoneInfo(schedule.zone)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"there is no time zone {schedule.zone!r}: it is one like Europe/Berlin, or UTC") from error


def before(schedule: Schedule, now: int) -> int | None:
    """The latest due time up to now; None if there was none in 50 years."""
    return _next(schedule, now + 1000, reverse=True)


def after(schedule: Schedule, now: int) -> int | None:
    """The next due time after now."""
    return _next(schedule, now, reverse=False)


def _next(schedule: Schedule, start: int, *, reverse: bool) -> int | None:
    """By Debian's rules: a fixed time that the clock leaps over comes right after it, and one that comes twice comes
    once; an expression with a wildcard in the hour just follows the clock."""
    from cronsim import CronSim, CronSimError

    moment = datetime.fromtimestamp(start / 1000, zone_of(schedule)).replace(microsecond=0)
    written = _SHORT.get(schedule.cron, schedule.cron)
    if len(written.split()) != 5:
        raise ConfigError(f"{schedule.cron!r} is no cron expression: minute, hour, day, month, weekday, or @daily")
    try:
        found = next(CronSim(written, moment, reverse=reverse))
    except StopIteration:
        return None
    except CronSimError as error:
        raise ConfigError(f"{schedule.cron!r} is no cron expression: {error}") from error
    return int(found.timestamp() * 1000)


def upcoming(schedule: Schedule, now: int, count: int) -> list[int]:
    """The next due times."""
    times: list[int] = []
    while len(times) < count and (found := after(schedule, times[-1] if times else now)) is not None:
        times.append(found)
    return times
