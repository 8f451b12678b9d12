"""Event log of runs: numbers are reserved before they are used."""

import asyncio

import psycopg
import pytest
from postgres_server import PostgresServer
from store_helpers import TENANT, everything, with_run

from atlas_agents.core.errors import Conflict, StaleOwner
from atlas_agents.core.messages import new_ordered_id
from atlas_agents.core.store import (
    AcceptRun,
    AddEvents,
    ClaimRun,
    EventRow,
    PutSession,
    ReserveEvents,
    SetRun,
    Store,
)
from atlas_agents.storage.postgres import PostgresStore


def add_events(*numbers: int) -> AddEvents:
    return AddEvents("r1", tuple((n, b"%d" % n) for n in numbers))


async def numbers(store: Store, *, after: int = 0, limit: int | None = None) -> list[int]:
    return [event.seq for event in await store.events(TENANT, "r1", after=after, limit=limit)]


async def test_event_numbers_are_reserved_in_order_even_for_an_ended_run(store: Store) -> None:
    await with_run(store)
    assert await store.commit(TENANT, [ReserveEvents("r1", 10), ReserveEvents("r1", 0)]) == [10, 10]
    await store.commit(TENANT, [SetRun("r1", 0, "done")])
    assert await store.commit(TENANT, [ReserveEvents("r1", 5), add_events(11, 15)]) == [15, None]
    run = await store.run(TENANT, "r1")
    assert run is not None and (run.events, run.status) == (15, "done")


async def test_events_are_stored_once_and_read_in_order(store: Store) -> None:
    await with_run(store)
    await store.commit(
        TENANT, [ReserveEvents("r1", 300), add_events(*range(200, 300)), add_events(7, 3, 5), add_events()]
    )
    await store.commit(TENANT, [AddEvents("r1", ((5, b"changed"), (6, b"new"), (6, b"twice")))])
    assert await store.events(TENANT, "r1", limit=4) == [
        EventRow("r1", 3, b"3"), EventRow("r1", 5, b"5"), EventRow("r1", 6, b"new"), EventRow("r1", 7, b"7"),
    ]  # fmt: skip
    assert await numbers(store, after=7) == list(range(200, 300))
    assert await numbers(store, after=250, limit=2) == [251, 252]
    assert await numbers(store, limit=0) == await numbers(store, after=299) == []
    assert await store.events("another tenant", "r1") == await store.events(TENANT, "r2") == []


@pytest.mark.parametrize("number", [4, 0, -1, 1 << 70])
async def test_event_number_that_is_not_reserved_fails_the_commit(store: Store, number: int) -> None:
    await with_run(store)
    await store.commit(TENANT, [ReserveEvents("r1", 3)])
    before = await everything(store)
    with pytest.raises(Conflict, match="reserved"):
        await store.commit(TENANT, [add_events(1, 2), AddEvents("r1", ((3, b""), (number, b"")))])
    assert await everything(store) == before


async def test_no_event_number_is_reserved_twice_under_a_race(store: Store) -> None:
    await with_run(store)
    results = await asyncio.gather(*(store.commit(TENANT, [ReserveEvents("r1", 3)]) for _ in range(40)))
    assert sorted(last for (last,) in results) == list(range(3, 121, 3))


async def test_failing_commit_stores_no_events(store: Store) -> None:
    await with_run(store)
    with pytest.raises(Conflict):
        await store.commit(TENANT, [ReserveEvents("r1", 3), add_events(1, 2), add_events(4)])
    assert await numbers(store) == []
    assert await store.commit(TENANT, [ReserveEvents("r1", 1), add_events(1)]) == [1, None]
    assert await numbers(store) == [1]


async def test_previous_owner_of_a_run_cannot_add_events(store: Store) -> None:
    await with_run(store)
    await store.commit(TENANT, [ClaimRun("r1"), ReserveEvents("r1", 10, epoch=1)])
    await store.commit(TENANT, [AddEvents("r1", ((1, b"1"),), epoch=1), SetRun("r1", 1, "done")])
    assert await store.commit(TENANT, [ReserveEvents("r1", 5, epoch=1, takes=True)]) == [15]
    before = await everything(store)
    for late in (AddEvents("r1", ((2, b"2"),), epoch=1), ReserveEvents("r1", 5, epoch=1, takes=True)):
        with pytest.raises(StaleOwner):
            await store.commit(TENANT, [late])
    assert await everything(store) == before
    await store.commit(TENANT, [AddEvents("r1", ((11, b"11"),), epoch=2)])
    assert await numbers(store) == [1, 11]


async def test_adding_events_reads_none_of_other_runs_on_postgres(
    postgres_server: PostgresServer, migrated: str, schema: str
) -> None:
    with postgres_server.copy_of(migrated, schema) as url:
        store = PostgresStore(url, schema="atlas")
        await store.open()
        runs, rows = [new_ordered_id() for _ in range(40)], 40
        for id in runs:
            accepted = AcceptRun(id, id, "a", at_once=True)
            await store.commit(TENANT, [PutSession(id), accepted, ClaimRun(id), ReserveEvents(id, rows, 1)])
        for seq in range(1, rows + 1):
            await asyncio.gather(*(store.commit(TENANT, [AddEvents(id, ((seq, b"{}"),), 1)]) for id in runs))
        await store.close()
        read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'events_pkey'"
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            (count,) = await (await connection.execute(read)).fetchone() or (0,)
        assert count <= len(runs) * rows
