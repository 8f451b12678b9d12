"""What is kept no longer: removed in small pieces, by one of many, and nothing else with it, on each kind of store."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from store_words import TENANT, everything, one_of_each

from atlas_agents.core.aio import SystemClock
from atlas_agents.core.store import (
    AcceptRun,
    AddEvents,
    AddJournal,
    Prunable,
    Prune,
    Pruned,
    ReserveEvents,
    SetRun,
    Store,
)
from atlas_agents.stores.retention import RetentionJob, RetentionPolicy
from atlas_agents.testing import VirtualClock
from conftest import Make

LATER = 1 << 62
BOTH: list[Prunable] = ["events", "journal"]


async def ended(store: Store, *runs: str, events: int = 5, tenant: str = TENANT) -> None:
    """Runs that have said something, one after the other, and are over."""
    for run in runs:
        said = tuple((n + 1, b"%d" % n) for n in range(events))
        steps = [AddJournal(run, 0, "accepted", "", b"{}"), AddJournal(run, 0, "ended", "", b"{ }")]
        await store.commit(tenant, [AcceptRun(run, "s", "a"), ReserveEvents(run, 512), AddEvents(run, said), *steps])
        await store.commit(tenant, [SetRun(run, 0, "done")])


async def begun(store: Store) -> None:
    """One of each, with a run that is open."""
    await store.commit(TENANT, one_of_each())
    await store.commit(TENANT, [SetRun("r1", 0, "waiting")])


async def kept(store: Store, *runs: str) -> list[tuple[int, int]]:
    return [(len(await store.events(TENANT, run)), len(await store.journal(TENANT, run))) for run in runs]


@pytest.mark.parametrize("what", BOTH)
async def test_only_what_was_asked_for_goes_and_only_of_runs_that_have_ended(store: Store, what: Prunable) -> None:
    await begun(store)
    await store.commit(TENANT, [SetRun("r1", 0, "done")])
    await ended(store, "r2", "r3")
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
async def test_what_ended_later_stays(store: Store, what: Prunable) -> None:
    await begun(store)
    await store.commit(TENANT, [SetRun("r1", 0, "failed")])
    row = await store.run(TENANT, "r1")
    assert row is not None and row.ended_at is not None
    assert await store.commit(TENANT, [Prune(what, row.ended_at)]) == [Pruned()]
    assert await store.commit(TENANT, [Prune(what, row.ended_at + 1)]) != [Pruned()]


@pytest.mark.parametrize("what", BOTH)
async def test_a_piece_is_no_larger_than_asked_and_takes_the_end_first(store: Store, what: Prunable) -> None:
    await begun(store)
    await store.commit(TENANT, [SetRun("r1", 0, "done")])
    await ended(store, "r2", "r3", events=3)
    await store.commit(TENANT, [Prune(what, LATER, runs=1)])
    sizes: list[tuple[int, int]] = []
    at = BOTH.index(what)
    while piece := (await store.commit(TENANT, [Prune(what, LATER, limit=2)]))[0]:
        sizes.append((piece.runs, piece.rows))
        rows = await store.events(TENANT, "r2") if what == "events" else await store.journal(TENANT, "r2")
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert all(rows <= 2 for _, rows in sizes) and sum(runs for runs, _ in sizes) == 2
    assert sum(rows for _, rows in sizes) == (6 if what == "events" else 4)
    assert [each[at] for each in await kept(store, "r1", "r2", "r3")] == [0, 0, 0]


async def test_a_run_that_says_something_again_is_kept_as_long_again(store: Store) -> None:
    await begun(store)
    await store.commit(TENANT, [SetRun("r1", 0, "done"), Prune("events", LATER)])
    row = await store.run(TENANT, "r1")
    assert row is not None and row.ended_at is not None and row.events == 2
    await asyncio.sleep(0.005)  # the store's clock counts milliseconds
    assert await store.commit(TENANT, [ReserveEvents("r1", 8), AddEvents("r1", ((3, b"end"),))]) == [10, None]
    assert await store.commit(TENANT, [Prune("events", row.ended_at + 2)]) == [Pruned()]
    assert await store.commit(TENANT, [Prune("events", LATER)]) == [Pruned(1, 1, 3)]


async def test_a_commit_that_fails_forgets_nothing(store: Store) -> None:
    await begun(store)
    await store.commit(TENANT, [SetRun("r1", 0, "done")])
    before = await everything(store)
    with pytest.raises(Exception, match="r9"):
        await store.commit(TENANT, [Prune("events", LATER), Prune("journal", LATER), SetRun("r9", 0, "done")])
    assert await everything(store) == before
    assert await store.commit(TENANT, [Prune("events", LATER)]) == [Pruned(1, 2, 14)]


@pytest.mark.durable
async def test_what_an_older_schema_holds_can_be_forgotten(make_store: Make, old_database: Any) -> None:
    old_database("v1")
    store = await make_store()
    found = await store.prunable("default", "journal", LATER)
    assert found.runs > 0 and await store.commit("default", [Prune("journal", LATER, runs=99)]) == [found]


class Far(SystemClock):
    """Sixty days on: by this clock all that was just written is old."""

    def time(self) -> float:
        return super().time() + 60 * 86_400


async def test_a_keeper_removes_what_its_days_say_in_small_pieces(store: Store, caplog: Any) -> None:
    await begun(store)
    await store.commit(TENANT, [SetRun("r1", 0, "done")])
    await ended(store, *(f"n{n}" for n in range(45)))
    heard: list[Pruned] = []
    for days, runs in ((61, 0), (59, 46)):
        gone = await RetentionJob(store, TENANT, RetentionPolicy(days, days), Far()).prune(
            "journal", on_progress=heard.append
        )
        assert gone.runs == runs
    assert [each.runs for each in heard] == [20, 40, 46]
    assert await RetentionJob(store, TENANT, RetentionPolicy(0, 0), Far()).prune("events") == Pruned()
    caplog.set_level(logging.INFO)
    assert await RetentionJob(store, TENANT, RetentionPolicy(59, 0), Far()).run_round()
    assert [record.getMessage() for record in caplog.records] == ["expired events deleted"]
    assert await kept(store, "r1", "n0", "n44") == [(0, 0)] * 3


async def test_of_many_keepers_one_has_the_round(make_store: Make) -> None:
    one = await make_store()
    stores = [one, one, await make_store(), await make_store()] if not _in_memory(one) else [one] * 4
    keepers = [RetentionJob(each, TENANT, RetentionPolicy(), SystemClock()) for each in stores]
    assert sorted(await asyncio.gather(*(keeper.run_round() for keeper in keepers))) == [False, False, False, True]
    assert not await keepers[0].run_round()
    assert await RetentionJob(one, TENANT, RetentionPolicy(), Far()).run_round(), "an hour later it is due again"
    assert await keepers[0].run_round(), "and a clock that was put back does not wait for it"


def _in_memory(store: Store) -> bool:
    return type(store).__name__ == "MemoryStore"


async def test_a_keeper_that_keeps_all_ends_and_one_in_trouble_goes_on(store: Store, caplog: Any) -> None:
    await asyncio.wait_for(RetentionJob(store, TENANT, RetentionPolicy(0, 0)).run(), 5)
    if _in_memory(store):
        return
    await store.close()
    clock = VirtualClock()
    task = asyncio.create_task(RetentionJob(store, TENANT, RetentionPolicy(), clock).run())
    try:
        async with asyncio.timeout(5):
            while not caplog.records:
                await clock.advance(3600)
    finally:
        task.cancel()
    assert "retention round failed" in caplog.records[0].getMessage() and not task.done()


def test_days_are_told_in_milliseconds() -> None:
    assert RetentionPolicy(2, 0).cutoff("events", 86_400 * 3) == 86_400_000
    assert RetentionPolicy(2, 0).cutoff("journal", 1e9) is None
    assert msgspec.json.decode(msgspec.json.encode(RetentionPolicy()), type=RetentionPolicy) == RetentionPolicy(30, 0)
