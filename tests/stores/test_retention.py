"""Retention: expired events and journals are deleted in small batches, by one process of many."""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from store_helpers import TENANT, Make, everything, one_of_each

from atlas_agents.app.store_maintenance import RetentionJob, RetentionPolicy
from atlas_agents.core.aio import SystemClock
from atlas_agents.core.store import (
    AcceptRun,
    AddEvents,
    AddJournal,
    BudgetLimit,
    Prunable,
    Prune,
    Pruned,
    Reserve,
    ReserveBudget,
    ReserveEvents,
    SetRun,
    Store,
)
from atlas_agents.testing import VirtualClock
from checks import TIMEOUT

LATER = 1 << 62
BOTH: list[Prunable] = ["events", "journal"]


async def add_ended_runs(store: Store, *runs: str, events: int = 5, tenant: str = TENANT) -> None:
    """Add ended runs with events, one after the other."""
    for run in runs:
        bodies = tuple((n + 1, b"%d" % n) for n in range(events))
        steps = [AddJournal(run, 0, "accepted", "", b"{}"), AddJournal(run, 0, "ended", "", b"{ }")]
        await store.commit(tenant, [AcceptRun(run, "s", "a"), ReserveEvents(run, 512), AddEvents(run, bodies), *steps])
        await store.commit(tenant, [SetRun(run, 0, "done")])


async def with_open_run(store: Store) -> None:
    """One of each write, with an open run."""
    await store.commit(TENANT, one_of_each())
    await store.commit(TENANT, [SetRun("r1", 0, "waiting")])


async def remaining_rows(store: Store, *runs: str) -> list[tuple[int, int]]:
    return [(len(await store.events(TENANT, run)), len(await store.journal(TENANT, run))) for run in runs]


@pytest.mark.parametrize("what", BOTH)
async def test_prune_deletes_one_kind_of_rows_of_ended_runs_only(store: Store, what: Prunable) -> None:
    await with_open_run(store)
    await store.commit(TENANT, [SetRun("r1", 0, "done")])
    await add_ended_runs(store, "r2", "r3")
    await store.commit(TENANT, [AcceptRun("open", "s", "a"), ReserveEvents("open", 5), AddEvents("open", ((1, b"1"),))])
    await store.commit(TENANT, [AddJournal("open", 0, "accepted", "", b"{}")])
    await store.commit("another", one_of_each())
    before, others = await everything(store), await everything(store, "another")
    rows, size = (12, 7 + 7 + 10) if what == "events" else (5, 12)
    assert await store.prunable(TENANT, what, LATER) == Pruned(3, rows, size)
    assert await store.commit(TENANT, [Prune(what, LATER)]) == [Pruned(3, rows, size)]
    assert await store.commit(TENANT, [Prune(what, LATER)]) == [Pruned()]
    assert await store.prunable(TENANT, what, LATER) == Pruned()
    left = [row for row in before[what] if row.run_id == "open"]
    assert left and await everything(store) == before | {what: left}
    assert await everything(store, "another") == others


@pytest.mark.parametrize("what", BOTH)
async def test_runs_that_ended_later_are_not_pruned(store: Store, what: Prunable) -> None:
    await with_open_run(store)
    await store.commit(TENANT, [SetRun("r1", 0, "failed")])
    row = await store.run(TENANT, "r1")
    assert row is not None and row.ended_at is not None
    assert await store.commit(TENANT, [Prune(what, row.ended_at)]) == [Pruned()]
    assert await store.commit(TENANT, [Prune(what, row.ended_at + 1)]) != [Pruned()]


@pytest.mark.parametrize("what", BOTH)
async def test_prune_respects_its_limit_and_deletes_the_last_rows_first(store: Store, what: Prunable) -> None:
    await with_open_run(store)
    await store.commit(TENANT, [SetRun("r1", 0, "done")])
    await add_ended_runs(store, "r2", "r3", events=3)
    await store.commit(TENANT, [Prune(what, LATER, runs=1)])
    sizes: list[tuple[int, int]] = []
    at = BOTH.index(what)
    while piece := (await store.commit(TENANT, [Prune(what, LATER, limit=2)]))[0]:
        sizes.append((piece.runs, piece.rows))
        rows = await store.events(TENANT, "r2") if what == "events" else await store.journal(TENANT, "r2")
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert all(rows <= 2 for _, rows in sizes) and sum(runs for runs, _ in sizes) == 2
    assert sum(rows for _, rows in sizes) == (6 if what == "events" else 4)
    assert [each[at] for each in await remaining_rows(store, "r1", "r2", "r3")] == [0, 0, 0]


async def test_new_event_restarts_the_retention_of_a_run(store: Store) -> None:
    await with_open_run(store)
    await store.commit(TENANT, [SetRun("r1", 0, "done"), Prune("events", LATER)])
    row = await store.run(TENANT, "r1")
    assert row is not None and row.ended_at is not None and row.events == 2
    await asyncio.sleep(0.005)  # the store's clock has a resolution of one millisecond
    assert await store.commit(TENANT, [ReserveEvents("r1", 8), AddEvents("r1", ((3, b"end"),))]) == [10, None]
    assert await store.commit(TENANT, [Prune("events", row.ended_at + 2)]) == [Pruned()]
    assert await store.commit(TENANT, [Prune("events", LATER)]) == [Pruned(1, 1, 3)]


async def test_failing_commit_prunes_nothing(store: Store) -> None:
    await with_open_run(store)
    await store.commit(TENANT, [SetRun("r1", 0, "done")])
    before = await everything(store)
    with pytest.raises(Exception, match="r9"):
        await store.commit(TENANT, [Prune("events", LATER), Prune("journal", LATER), SetRun("r9", 0, "done")])
    assert await everything(store) == before
    assert await store.commit(TENANT, [Prune("events", LATER)]) == [Pruned(1, 2, 14)]


class FutureClock(SystemClock):
    """A clock that is sixty days ahead, so that everything is old."""

    def time(self) -> float:
        return super().time() + 60 * 86_400


class FixedClock(SystemClock):
    """A clock that always shows the same time."""

    def __init__(self, now: float) -> None:
        self._now = now

    def time(self) -> float:
        return self._now


async def test_retention_job_deletes_expired_rows_in_small_batches(store: Store, caplog: Any) -> None:
    await with_open_run(store)
    await store.commit(TENANT, [SetRun("r1", 0, "done")])
    await add_ended_runs(store, *(f"n{n}" for n in range(45)))
    totals: list[Pruned] = []
    for days, runs in ((61, 0), (59, 46)):
        gone = await RetentionJob(store, TENANT, RetentionPolicy(days, days), FutureClock()).prune(
            "journal", on_progress=totals.append
        )
        assert gone.runs == runs
    assert [each.runs for each in totals] == [20, 40, 46]
    assert await RetentionJob(store, TENANT, RetentionPolicy(0, 0), FutureClock()).prune("events") == Pruned()
    caplog.set_level(logging.INFO)
    assert await RetentionJob(store, TENANT, RetentionPolicy(59, 0, 0), FutureClock()).run_round()
    assert [record.getMessage() for record in caplog.records] == ["expired events deleted"]
    assert await remaining_rows(store, "r1", "n0", "n44") == [(0, 0)] * 3


async def test_counters_of_past_days_and_months_are_deleted(store: Store) -> None:
    now = datetime(2026, 11, 16, tzinfo=UTC).timestamp()
    periods = ("", "2026-08", "2026-09", "2026-10", "2026-11", "2026-09-14", "2026-09-15", "2026-11-15", "2026-11-16")
    for key, run in (("user/u", ""), ("session/s", "r1")):
        used = [ReserveBudget(run, (BudgetLimit(key, period, (9,) * 5),), (1, 0, 0, 0, 0)) for period in periods]
        await store.commit(TENANT, used)
    await store.commit(TENANT, [Reserve("a", day, 9) for day in ("2026-09-14", "2026-11-16")])
    await store.commit("another", [Reserve("a", "2026-09-14", 9)])
    job = RetentionJob(store, TENANT, RetentionPolicy(0, 0), FixedClock(now))
    assert await job.due("counters") == Pruned(0, 7, 0)
    assert await job.run_round() and await job.due("counters") == Pruned()
    for key in ("user/u", "session/s"):
        left = [period for period in periods if await store.budget_rows(TENANT, key, period)]
        assert left == ["", "2026-10", "2026-11", "2026-09-15", "2026-11-15", "2026-11-16"]
    days = [await store.call_count(TENANT, "a", day) for day in ("2026-09-14", "2026-11-16")]
    assert days == [0, 1] and await store.call_count("another", "a", "2026-09-14") == 1
    assert await store.commit(TENANT, [Prune("counters", int(now * 1000), limit=5)]) == [Pruned(0, 5, 0)]


async def test_one_of_many_retention_jobs_runs_a_round(make_store: Make) -> None:
    one = await make_store()
    stores = [one, one, await make_store(), await make_store()] if not _in_memory(one) else [one] * 4
    retention_jobs = [RetentionJob(each, TENANT, RetentionPolicy(), SystemClock()) for each in stores]
    assert sorted(await asyncio.gather(*(each.run_round() for each in retention_jobs))) == [False, False, False, True]
    assert not await retention_jobs[0].run_round()
    assert await RetentionJob(one, TENANT, RetentionPolicy(), FutureClock()).run_round(), (
        "an hour later it is due again"
    )
    assert await retention_jobs[0].run_round(), "a clock that was set back does not block it"


def _in_memory(store: Store) -> bool:
    return type(store).__name__ == "MemoryStore"


async def test_retention_job_ends_without_limits_and_continues_after_an_error(store: Store, caplog: Any) -> None:
    await asyncio.wait_for(RetentionJob(store, TENANT, RetentionPolicy(0, 0, 0)).run(), TIMEOUT)
    if _in_memory(store):
        return
    await store.close()
    clock = VirtualClock()
    task = asyncio.create_task(RetentionJob(store, TENANT, RetentionPolicy(), clock).run())
    try:
        async with asyncio.timeout(TIMEOUT):
            while not caplog.records:
                await clock.advance(3600)
    finally:
        task.cancel()
    assert "retention round failed" in caplog.records[0].getMessage() and not task.done()


def test_cutoff_is_in_milliseconds() -> None:
    assert RetentionPolicy(2, 0).cutoff("events", 86_400 * 3) == 86_400_000
    assert RetentionPolicy(2, 0).cutoff("journal", 1e9) is None
    assert msgspec.json.decode(msgspec.json.encode(RetentionPolicy()), type=RetentionPolicy) == RetentionPolicy(30, 0)
