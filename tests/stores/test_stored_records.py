"""Records, and the totals of a tenant."""

import pytest
from store_helpers import DAY, TENANT, everything, outcomes, with_run

from atlas_agents.core.errors import Conflict, NotFound
from atlas_agents.core.store import (
    AcceptRun,
    AddJournal,
    AddMessage,
    AddUsage,
    DropRecord,
    PutRecord,
    PutSession,
    Store,
    StoredRecord,
    UsageRow,
)


async def test_record_is_stored_changed_and_deleted(store: Store) -> None:
    (first,) = await store.commit(TENANT, [PutRecord("user", "ann", b"1")])
    assert first == StoredRecord("user", "ann", b"1", 1) == await store.record(TENANT, "user", "ann")
    (second,) = await store.commit(TENANT, [PutRecord("user", "ann", b"2")])
    assert second == StoredRecord("user", "ann", b"2", 2)
    await store.commit(TENANT, [PutRecord("user", "abe", b""), PutRecord("plan", "ann", b"")])
    assert [record.key for record in await store.records(TENANT, "user")] == ["abe", "ann"]
    assert [record.key for record in await store.records(TENANT, "user", prefix="an")] == ["ann"]
    assert await store.records(TENANT, "user", prefix="ann:") == []
    await store.commit(TENANT, [DropRecord("user", "ann")])
    assert await store.record(TENANT, "user", "ann") is None
    with pytest.raises(NotFound):
        await store.commit(TENANT, [DropRecord("user", "ann")])


async def test_outdated_version_of_a_record_raises_conflict(store: Store) -> None:
    good, bad = await outcomes(store.commit(TENANT, [PutRecord("user", "ann", b"%d" % n, 0)]) for n in range(5))
    assert (len(good), {type(error) for error in bad}) == (1, {Conflict})
    await store.commit(TENANT, [PutRecord("user", "ann", b"next", 1)])
    with pytest.raises(Conflict, match="was changed"):
        await store.commit(TENANT, [PutRecord("user", "ann", b"late", 1)])
    record = await store.record(TENANT, "user", "ann")
    assert record is not None and (record.body, record.version) == (b"next", 2)


async def test_records_of_tenants_are_separate(store: Store) -> None:
    await store.commit("b", [PutRecord("user", "ann", b"b"), PutRecord("tenant", "", b"{}")])
    await store.commit("a", [PutRecord("tenant", "", b"{}")])
    before = await everything(store, "b")
    assert await store.record(TENANT, "user", "ann") is None
    with pytest.raises(NotFound):
        await store.commit(TENANT, [DropRecord("user", "ann")])
    assert await everything(store, "b") == before
    assert await store.tenants() == ["a", "b"]


async def test_usage_of_a_tenant_is_summed(store: Store) -> None:
    assert (
        await store.tokens(TENANT, "", "9999"),
        await store.storage_bytes(TENANT),
        await store.last_turns(TENANT),
    ) == (
        0,
        0,
        [],
    )
    for day, model in ((DAY, "m"), (DAY, "n"), ("2026-12-01", "m")):
        await store.commit(TENANT, [AddUsage(UsageRow(day, "s", "a", model, 10, 5))])
    await store.commit("other", [AddUsage(UsageRow(DAY, "s", "a", "m", 1000, 0))])
    assert await store.tokens(TENANT, "2026-11-01", "2026-12-01") == 30
    assert await store.tokens(TENANT, "2026-11-16", "9999") == 15
    await with_run(store)
    await store.commit(TENANT, [AddMessage("s", "m", b"12345", "r1"), AddJournal("r1", 0, "accepted", "", b"123")])
    assert await store.storage_bytes(TENANT) == 8
    await store.commit(TENANT, [PutSession("t"), AcceptRun("r2", "t", "b", "ann"), AcceptRun("r3", "t", "a", "ann")])
    assert [(agent, user) for agent, user, _ in await store.last_turns(TENANT)] == [
        ("a", ""),
        ("a", "ann"),
        ("b", "ann"),
    ]
    assert all(at > 1_700_000_000_000 for _, _, at in await store.last_turns(TENANT))
