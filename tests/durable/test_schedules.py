"""Recurring tasks: each due time is one job, whatever the clock does and whichever process crashes."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from atlas_agents import Agent, Atlas, ConfigError, Conflict, NotFound
from atlas_agents.agents.schedules import next_due_times
from atlas_agents.core.errors import StoreLost
from atlas_agents.core.store import Schedule, Write
from atlas_agents.storage.sqlite import MemoryStore, SqliteStore
from atlas_agents.testing import Environment, Registry, Scripted, VirtualClock, says

START = datetime(2026, 11, 15, 11, 58, tzinfo=UTC)


class WallClock(VirtualClock):
    """A clock whose wall time can be set."""

    def __init__(self, start: datetime = START) -> None:
        super().__init__(start.timestamp())
        self.wrong = 0.0

    def time(self) -> float:
        return super().time() + self.wrong

    async def jump(self, seconds: float) -> None:
        """Advance the time without a check, then by two ticks."""
        self.wrong += seconds
        await self.advance(10)


def daily(**more: Any) -> Schedule:
    given: dict[str, Any] = {"name": "news", "cron": "0 12 * * *", "agent_id": "a", "task": "The news!"}
    return Schedule(**{**given, **more})


def scheduled_atlas(clock: WallClock, store: Any = None, replies: int = 9) -> Atlas:
    agent = Agent("a", model=Scripted(*[says("Done.")] * replies))
    registry = Registry(Environment({}, dotenv=None))
    return Atlas([agent], store=store or MemoryStore(clock=clock), clock=clock, registry=registry)


async def tasks(atlas: Atlas) -> list[str]:
    return [job.id for job in await atlas.jobs.list()]


async def test_due_time_creates_one_job() -> None:
    clock = WallClock()
    async with scheduled_atlas(clock) as atlas, atlas.jobs.running():
        await atlas.jobs.schedules.add(daily(priority="high", user="ann"))
        await clock.advance(110)
        assert await tasks(atlas) == []
        await clock.advance(20)
        (job,) = await atlas.jobs.list()
        assert (job.kind, job.task, job.state, job.result) == ("schedule", "The news!", "done", "Done.")
        assert (job.user, job.priority, job.notified) == ("ann", 2, True)
        assert job.session == f"schedules/news/jobs/{job.id}"
        await clock.jump(3600)
        assert await tasks(atlas) == [job.id]
        await clock.jump(24 * 3600)
        assert len(await tasks(atlas)) == 2


@pytest.mark.parametrize(("missed", "jobs"), [("once", 1), ("skip", 0)])
async def test_missed_due_times_run_once_or_are_skipped(missed: str, jobs: int) -> None:
    clock = WallClock()
    async with scheduled_atlas(clock) as atlas:
        await atlas.jobs.schedules.add(daily(cron="0 * * * *", missed=missed))
        await clock.jump(6 * 3600)
        async with atlas.jobs.running():
            await clock.advance(6)
            assert len(await tasks(atlas)) == jobs
            await clock.jump(89)
            await clock.advance(10)
            assert len(await tasks(atlas)) == jobs + 1, "it goes on as it should"


async def test_check_that_other_programs_interrupt_takes_no_time_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = count(step=0.1)
    monkeypatch.setattr(time, "perf_counter", lambda: next(seconds))
    clock = WallClock()
    async with scheduled_atlas(clock) as atlas, atlas.jobs.running():
        for name in ("morning", "noon"):
            await atlas.jobs.schedules.add(daily(name=name))
        await clock.advance(130)
        assert len(await tasks(atlas)) == 2


async def test_clock_jumps_create_no_second_job() -> None:
    clock = WallClock()
    async with scheduled_atlas(clock) as atlas, atlas.jobs.running():
        await atlas.jobs.schedules.add(daily())
        await clock.advance(130)
        assert len(await tasks(atlas)) == 1
        await clock.jump(-7200)
        await clock.jump(7200)
        assert len(await tasks(atlas)) == 1, "noon comes again, and it is the same noon"
        await clock.jump(400 * 86400)
        assert len(await tasks(atlas)) == 2
        await clock.jump(-400 * 86400)
        assert len(await tasks(atlas)) == 2
        await clock.jump(86400)
        assert len(await tasks(atlas)) == 3


async def test_crash_between_two_checks_neither_loses_nor_doubles_a_due_time(tmp_path: Path) -> None:
    clock = WallClock()
    store = SqliteStore(tmp_path / "atlas.db", clock=clock)
    await store.open()
    commit = store.commit

    async def lost(tenant: str, writes: Sequence[Write]) -> list[Any]:
        await commit(tenant, writes)
        raise StoreLost("gone", unclear=True)

    async with scheduled_atlas(clock, store) as atlas:
        await atlas.jobs.schedules.add(daily())
        await clock.advance(130)
        store.commit = lost  # committed, but reported as lost
        with pytest.raises(StoreLost):
            await atlas.jobs.schedules.add_due_jobs()
        store.commit = commit
        (job,) = await tasks(atlas)
    async with scheduled_atlas(clock, store) as atlas:
        for _ in range(3):
            await atlas.jobs.schedules.add_due_jobs()
        assert await tasks(atlas) == [job]
        assert (await atlas.jobs.schedules.get("news")).last == int(
            datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp() * 1000
        )
    await store.close()


@pytest.mark.parametrize(
    ("cron", "begin", "times"),
    [
        ("30 2 * * *", "2026-03-28T12:00", ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]),
        ("30 2 * * *", "2026-10-24T12:00", ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]),
        ("30 * * * *", "2026-10-25T01:45", ["2026-10-25T02:30+02:00", "2026-10-25T02:30+01:00"]),
        ("@monthly", "2026-01-31T12:00", ["2026-02-01T00:00+01:00", "2026-03-01T00:00+01:00"]),
    ],
)
async def test_daylight_saving_neither_skips_nor_repeats_a_due_time(cron: str, begin: str, times: list[str]) -> None:
    zone = ZoneInfo("Europe/Berlin")
    start = datetime.fromisoformat(begin).replace(tzinfo=zone)
    schedule = daily(cron=cron, zone="Europe/Berlin")
    found = [
        datetime.fromtimestamp(each / 1000, zone) for each in next_due_times(schedule, int(start.timestamp() * 1000), 2)
    ]
    assert [each.isoformat(timespec="minutes") for each in found] == times
    clock = WallClock(start)
    async with scheduled_atlas(clock, replies=99) as atlas, atlas.jobs.running():
        await atlas.jobs.schedules.add(schedule)
        for made, moment in enumerate(found, 1):
            await clock.jump(moment.timestamp() - clock.time() - 12)
            assert len(await tasks(atlas)) == made - 1
            await clock.advance(10)
            assert len(await tasks(atlas)) == made


async def test_schedule_can_be_paused_run_and_removed() -> None:
    clock = WallClock()
    async with scheduled_atlas(clock) as atlas, atlas.jobs.running():
        schedules = atlas.jobs.schedules
        await schedules.add(daily())
        assert (await schedules.pause("news")).paused
        await clock.advance(130)
        assert await tasks(atlas) == []
        await schedules.pause("news", paused=False)
        await clock.advance(10)
        assert await tasks(atlas) == [], "what passed while it rested is not made up for"
        job = await schedules.run("news")
        await clock.advance(1)
        assert (await atlas.jobs.get(job.id)).state == "done"
        assert await schedules.list() == [await schedules.get("news")]
        with pytest.raises(Conflict):
            await schedules.add(daily())
        await schedules.remove("news")
        for name in ("news", "no"):
            with pytest.raises(NotFound):
                await schedules.get(name)
        assert await tasks(atlas) == [job.id]


@pytest.mark.parametrize(
    "wrong",
    [
        {"cron": "61 * * * *"},
        {"cron": "* * * *"},
        {"cron": "* * * * * *"},
        {"cron": "0 0 30 2 *"},
        {"cron": ""},
        {"zone": "Middle/Earth"},
        {"zone": "../../etc/passwd"},
        {"name": "a/b"},
        {"name": ""},
        {"task": "  "},
    ],
)
async def test_invalid_schedule_is_rejected_in_one_line(wrong: dict[str, str]) -> None:
    async with scheduled_atlas(WallClock()) as atlas:
        with pytest.raises(ConfigError) as refused:
            await atlas.jobs.schedules.add(daily(**wrong))
        assert "\n" not in str(refused.value)
        assert await atlas.jobs.schedules.list() == []
