"""Jobs: added once, owned by one process, ended once, reported once."""

from typing import Any

import msgspec
import pytest
from store_helpers import TENANT, everything, job, outcomes

from atlas_agents.core.errors import Conflict, DailyLimitExceeded, NotFound, StaleOwner
from atlas_agents.core.store import (
    AddAudit,
    AddJob,
    ClaimJob,
    JobRow,
    JobState,
    MarkJobNotified,
    RetryJob,
    SetJob,
    Store,
    Write,
)

FAR_FUTURE = 1 << 60


async def add(store: Store, *jobs: JobRow) -> list[JobRow]:
    return await store.commit(TENANT, [AddJob(each) for each in jobs])


async def pending(store: Store, now: int = FAR_FUTURE) -> list[str]:
    return [each.id for each in await store.pending_jobs(TENANT, now)]


async def test_job_is_stored_as_given(store: Store) -> None:
    given = job(priority=3, parent="j0", chain=("a", "ü"), user="ann", asker_call="c", due_at=5, deadline=9)
    (added,) = await add(store, given)
    assert added == msgspec.structs.replace(given, created_at=added.created_at, seq=1)
    assert await store.job(TENANT, "j1") == added and added.created_at > 0
    assert await store.jobs(TENANT) == await store.child_jobs(TENANT, "j0") == [added]
    assert await store.child_jobs(TENANT, "") == await store.jobs("other") == []
    assert await store.job("other", "j1") is None


async def test_adding_a_job_again_changes_nothing(store: Store) -> None:
    (first,) = await add(store, job())
    await store.commit(TENANT, [ClaimJob("j1")])
    (again,) = await add(store, job(priority=3))
    assert again == msgspec.structs.replace(first, state="running", epoch=1, attempts=1)
    assert await store.jobs(TENANT) == [again]


async def test_jobs_per_root_run_are_limited_under_a_race(store: Store) -> None:
    tries = (store.commit(TENANT, [AddAudit(b""), AddJob(job(f"j{n}"), limit=5)]) for n in range(12))
    good, bad = await outcomes(tries)
    assert (len(good), {type(error) for error in bad}) == (5, {DailyLimitExceeded})
    assert len(await store.audit(TENANT)) == 5, "what belonged to the refused ones is not written either"
    await store.commit(TENANT, [AddJob(good[0][1], limit=5), AddJob(job("x", root="other"), limit=5)])


async def test_previous_owner_of_a_job_cannot_write(store: Store) -> None:
    await add(store, job())
    (mine,) = await store.commit(TENANT, [ClaimJob("j1")])
    (theirs,) = await store.commit(TENANT, [ClaimJob("j1")])
    assert (mine.epoch, theirs.epoch, theirs.attempts, theirs.state) == (1, 2, 1, "running")
    with pytest.raises(StaleOwner):
        await store.commit(TENANT, [SetJob("j1", "done", mine.epoch, "mine")])
    (done,) = await store.commit(TENANT, [SetJob("j1", "done", theirs.epoch, "the \0 answer")])
    assert (done.state, done.result, done.epoch) == ("done", "the \ufffd answer", 2) and done.ended_at is not None
    for write in (ClaimJob("j1"), SetJob("j1", "failed", 2), SetJob("j1", "cancelled"), RetryJob("j1")):
        with pytest.raises(Conflict):
            await store.commit(TENANT, [write])
    assert await store.job(TENANT, "j1") == done


async def test_change_without_an_epoch_takes_the_job_from_its_owner(store: Store) -> None:
    await add(store, job())
    (mine,) = await store.commit(TENANT, [ClaimJob("j1")])
    (stopped,) = await store.commit(TENANT, [SetJob("j1", "cancelled", error="by ann")])
    assert (stopped.state, stopped.error, stopped.epoch) == ("cancelled", "by ann", 2)
    with pytest.raises(StaleOwner):
        await store.commit(TENANT, [SetJob("j1", "done", mine.epoch)])


async def test_requeued_job_waits_until_it_is_due(store: Store) -> None:
    await add(store, job())
    (mine,) = await store.commit(TENANT, [ClaimJob("j1")])
    (again,) = await store.commit(TENANT, [SetJob("j1", "queued", mine.epoch, error="away", due_at=100)])
    assert (again.state, again.attempts, again.error, again.ended_at) == ("queued", 1, "away", None)
    assert await pending(store, 99) == [] and await pending(store, 100) == ["j1"]
    (second,) = await store.commit(TENANT, [ClaimJob("j1")])
    assert second.attempts == 2


@pytest.mark.parametrize("state", ["failed", "dead", "expired", "cancelled"])
async def test_failed_job_can_be_retried_and_is_reported_again(store: Store, state: JobState) -> None:
    await add(store, job(deadline=1), job("j2", asker_session=""))
    for id in ("j1", "j2"):
        (mine,) = await store.commit(TENANT, [ClaimJob(id)])
        await store.commit(TENANT, [SetJob(id, state, mine.epoch, error="no"), MarkJobNotified(id, 1)])
    assert await pending(store) == []
    again, alone = await store.commit(TENANT, [RetryJob("j1"), RetryJob("j2", 2)])
    assert (again.state, again.allowed, again.deadline, again.notified, again.ended_at) == (
        "queued",
        6,
        None,
        False,
        None,
    )
    assert (alone.allowed, alone.notified) == (3, True)
    await store.commit(TENANT, [ClaimJob("j1"), SetJob("j1", "done", 2), MarkJobNotified("j1", 1)])
    assert await pending(store) == ["j1", "j2"], "the report of the first attempt does not cover the second"
    await store.commit(TENANT, [MarkJobNotified("j1", 2)])
    assert await pending(store) == ["j2"]


async def test_pending_jobs_are_ordered_by_urgency(store: Store) -> None:
    rows = [("low", 0, 1), ("late", 1, 8), ("soon", 1, 2), ("first", 1, 2), ("urgent", 3, 9), ("later", 3, 50)]
    await add(store, *(job(id, priority=priority, due_at=due) for id, priority, due in rows))
    await add(store, job("over", priority=0, due_at=90, deadline=10), job("alone", asker_session="", due_at=99))
    assert await pending(store, 10) == ["urgent", "soon", "first", "late", "low", "over"]
    assert [each.id for each in await store.pending_jobs(TENANT, 10, limit=2)] == ["urgent", "soon"]
    await store.commit(TENANT, [ClaimJob("alone"), SetJob("alone", "done", 1), SetJob("over", "expired")])
    assert await pending(store, 5) == ["soon", "first", "low", "over"], "a job without an asker needs no report"


async def test_jobs_are_listed_newest_first_and_filtered_by_state(store: Store) -> None:
    await add(store, *(job(f"j{n}") for n in range(5)))
    await store.commit(TENANT, [SetJob("j1", "dead"), SetJob("j3", "failed")])
    assert [each.id for each in await store.jobs(TENANT, limit=2)] == ["j4", "j3"]
    assert [each.id for each in await store.jobs(TENANT, limit=2, before=4)] == ["j2", "j1"]
    assert [each.id for each in await store.jobs(TENANT, states=("dead", "failed"))] == ["j3", "j1"]


@pytest.mark.parametrize("write", [ClaimJob("j"), SetJob("j", "done", 0), RetryJob("j"), MarkJobNotified("j", 0)])
async def test_write_to_a_missing_job_or_one_of_another_tenant_raises_not_found(store: Store, write: Write) -> None:
    await store.commit("other", [AddJob(job("j"))])
    before = await everything(store, "other")
    with pytest.raises(NotFound):
        await store.commit(TENANT, [write])
    assert await everything(store, "other") == before


@pytest.mark.durable
async def test_jobs_survive_a_restart(store: Store, make_store: Any) -> None:
    await add(store, job())
    (mine,) = await store.commit(TENANT, [ClaimJob("j1")])
    await store.close()
    assert await (await make_store()).job(TENANT, "j1") == mine
