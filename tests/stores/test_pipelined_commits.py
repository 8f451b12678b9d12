"""Commits of a turn on Postgres by several processes at a time: they lock rows of sessions and runs, not the tenant."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator

import psycopg
import pytest
from postgres_server import PostgresServer
from store_helpers import TENANT, outcomes, with_run

from atlas_agents.core.errors import Conflict, NotFound, SessionBusy, StaleOwner, StoreBusy
from atlas_agents.core.store import (
    AcceptRun,
    AddAudit,
    AddEvents,
    AddJournal,
    AddMessage,
    ClaimRun,
    PutRecord,
    PutSession,
    ReserveEvents,
    SetRun,
    Write,
)
from atlas_agents.storage.hash_chain import find_audit_break, find_journal_break
from atlas_agents.storage.postgres import PostgresStore
from checks import TIMEOUT

pytestmark = pytest.mark.slow  # they need a server


@pytest.fixture
async def stores(postgres_server: PostgresServer, schema: str) -> AsyncIterator[list[PostgresStore]]:
    """Three stores of one database, as three processes have them."""
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    opened = [
        PostgresStore(postgres_server.url, schema=schema, busy_timeout=TIMEOUT / 2, answer_timeout=TIMEOUT)
        for _ in range(3)  # with long timeouts: a slow server counts as alive
    ]
    for store in opened:
        await store.open()
    yield opened
    for store in opened:
        await store.close()


async def lock_row(connection: psycopg.AsyncConnection, schema: str, table: str, key: str, value: str) -> None:
    statement = f"SELECT 1 FROM {schema}.{table} WHERE {key} = '{value}' FOR UPDATE"
    await connection.execute(statement.encode())


async def test_turns_of_many_sessions_written_by_three_processes_lose_nothing(stores: list[PostgresStore]) -> None:
    """Runs of a session start one after the other, numbers have no gaps, and chains are intact."""
    sessions = [f"s{n}" for n in range(4)]
    order = random.Random(7)

    async def accept(n: int) -> None:
        store, session = stores[n % 3], order.choice(sessions)
        message = AddMessage(session, f"m{n}", b"{}")
        await store.commit(TENANT, [PutSession(session), AcceptRun(f"r{n}", session, "a"), message, AddAudit(b"in")])

    async def execute(n: int) -> None:
        """Run a turn when it is its session's turn, in another process than the one that accepted it."""
        store, run = stores[(n + 1) % 3], f"r{n}"
        while (row := await store.run(TENANT, run)) is None or row.status == "queued":
            continue
        (epoch,) = await store.commit(TENANT, [ClaimRun(run)])
        await store.commit(TENANT, [AddJournal(run, epoch, "reply", "0", b"{}"), ReserveEvents(run, 8, epoch)])
        await asyncio.gather(
            store.commit(TENANT, [AddEvents(run, ((1, b"one"), (2, b"two")), epoch)]),
            store.commit(TENANT, [AddJournal(run, epoch, "intent", "c", b"{}"), AddAudit(b"call")]),
        )
        ended = [AddMessage(row.session, f"a{n}", b"{}", run), AddJournal(run, epoch, "ended", "", b"{}")]
        await store.commit(TENANT, [*ended, SetRun(run, epoch, "done"), AddAudit(b"out")])

    count = 24
    async with asyncio.timeout(TIMEOUT):
        await asyncio.gather(*(accept(n) for n in range(count)), *(execute(n) for n in range(count)))
    store = stores[0]
    assert not await store.open_runs()
    assert find_audit_break(await store.audit(TENANT)) is None and len(await store.audit(TENANT)) == 3 * count
    messages = [await store.messages(TENANT, session) for session in sessions]
    assert sum(map(len, messages)) == 2 * count
    assert all([each.seq for each in found] == list(range(1, len(found) + 1)) for found in messages)
    for n in range(count):
        journal = await store.journal(TENANT, f"r{n}")
        assert [row.kind for row in journal] == ["reply", "intent", "ended"] and find_journal_break(journal) is None
        assert [event.seq for event in await store.events(TENANT, f"r{n}")] == [1, 2]


async def test_accepted_run_starts_although_the_run_before_it_ends_at_the_same_time(
    stores: list[PostgresStore],
) -> None:
    first, second, _ = stores
    await with_run(first, "r0")
    async with asyncio.timeout(TIMEOUT):
        for n in range(30):
            (epoch,) = await first.commit(TENANT, [ClaimRun(f"r{n}")])
            await asyncio.gather(
                first.commit(TENANT, [SetRun(f"r{n}", epoch, "done")]),
                second.commit(TENANT, [AcceptRun(f"r{n + 1}", "s", "a")]),
            )
            found = await first.run(TENANT, f"r{n + 1}")
            assert found is not None and found.status == "running"


async def test_step_of_a_former_owner_is_refused_or_seen_by_the_next_one(stores: list[PostgresStore]) -> None:
    """There is no step, and no event, that is acknowledged and that the new owner does not read."""
    old, new, _ = stores
    await with_run(old)
    (epoch,) = await old.commit(TENANT, [ClaimRun("r1")])
    await old.commit(TENANT, [ReserveEvents("r1", 1000, epoch)])

    async def write(n: int) -> int:
        await asyncio.gather(
            old.commit(TENANT, [AddJournal("r1", epoch, "hook", str(n), b"{}")]),
            old.commit(TENANT, [AddEvents("r1", ((n + 1, b"{}"),), epoch)]),
        )
        return n

    async with asyncio.timeout(TIMEOUT):
        writing = [asyncio.create_task(write(n)) for n in range(60)]
        await asyncio.wait(writing, return_when=asyncio.FIRST_COMPLETED)
        await new.commit(TENANT, [ClaimRun("r1")])
        steps = {row.key for row in await new.journal(TENANT, "r1")}
        events = {row.seq for row in await new.events(TENANT, "r1")}
        acknowledged, refused = await outcomes(writing)
    assert {type(error) for error in refused} <= {StaleOwner}
    assert {str(n) for n in acknowledged} <= steps and {n + 1 for n in acknowledged} <= events
    assert {row.key for row in await new.journal(TENANT, "r1")} == steps
    assert {row.seq for row in await new.events(TENANT, "r1")} == events
    with pytest.raises(StaleOwner):
        await old.commit(TENANT, [AddEvents("r1", ((999, b"{}"),), epoch)])
    with pytest.raises(StaleOwner):
        await old.commit(TENANT, [SetRun("r1", epoch, "done")])


async def test_journal_continues_when_another_process_wrote_to_it_in_between(stores: list[PostgresStore]) -> None:
    one, other, _ = stores
    await with_run(one)
    (epoch,) = await one.commit(TENANT, [ClaimRun("r1")])
    await one.commit(TENANT, [AddJournal("r1", epoch, "reply", "0", b"{}")])
    await other.commit(TENANT, [AddJournal("r1", epoch, "reply", "1", b"{}")])
    (row,) = await one.commit(TENANT, [AddJournal("r1", epoch, "reply", "2", b"{}")])
    assert row.seq == 3
    assert find_journal_break(await one.journal(TENANT, "r1")) is None


async def test_one_refused_commit_of_a_group_does_not_affect_the_others(stores: list[PostgresStore]) -> None:
    store = stores[0]
    await with_run(store)
    (epoch,) = await store.commit(TENANT, [ClaimRun("r1")])
    bad = (
        [AddJournal("r1", epoch + 1, "reply", "x", b"{}")],
        [AcceptRun("r1", "s", "a")],
        [AcceptRun("r2", "s", "a", at_once=True)],
        [SetRun("r1", epoch, "queued")],
    )
    good = [[AddMessage("s", str(n), b"{}"), AddJournal("r1", epoch, "reply", str(n), b"{}")] for n in range(6)]
    _, refused = await outcomes(store.commit(TENANT, list(each)) for each in (*good[:3], *bad, *good[3:]))
    assert [type(error) for error in refused] == [StaleOwner, Conflict, SessionBusy, Conflict]
    journal = await store.journal(TENANT, "r1")
    assert [row.key for row in journal] == list("012345") and find_journal_break(journal) is None
    assert [message.id for message in await store.messages(TENANT, "s")] == list("012345")


async def test_step_after_the_end_of_its_run_is_refused_in_the_same_group(stores: list[PostgresStore]) -> None:
    store = stores[0]
    await with_run(store)
    (epoch,) = await store.commit(TENANT, [ClaimRun("r1")])
    commits = [SetRun("r1", epoch, "done")], [AddJournal("r1", epoch, "reply", "0", b"{}")], [ClaimRun("r1")]
    good, refused = await outcomes(store.commit(TENANT, each) for each in commits)
    assert good == [[None]] and [type(error) for error in refused] == [Conflict, Conflict]


async def test_sessions_of_a_tenant_do_not_wait_for_each_other(
    stores: list[PostgresStore], postgres_server: PostgresServer, schema: str
) -> None:
    store = stores[0]
    await with_run(store, "r1", "held")
    await with_run(store, "r2", "free")
    (epoch,) = await store.commit(TENANT, [ClaimRun("r1")])
    await store.commit(TENANT, [ReserveEvents("r1", 1, epoch)])
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as other:
        await lock_row(other, schema, "sessions", "key", "held")
        async with asyncio.timeout(TIMEOUT):
            await stores[1].commit(TENANT, [AddMessage("free", "m", b"{}"), ClaimRun("r2"), AddAudit(b"")])
            await stores[1].commit(TENANT, [AddEvents("r1", ((1, b"{}"),), epoch)])  # needs only the row of its run
        waiting = asyncio.create_task(stores[2].commit(TENANT, [AddMessage("held", "m", b"{}")]))
        assert not await store.messages(TENANT, "held")
    await waiting
    assert [message.id for message in await store.messages(TENANT, "held")] == ["m"]


async def test_commits_of_other_kinds_wait_for_those_of_turns_and_hold_them_up(
    stores: list[PostgresStore], postgres_server: PostgresServer, schema: str
) -> None:
    hasty = PostgresStore(postgres_server.url, schema=schema, busy_timeout=0.2)
    await hasty.open()
    await with_run(hasty)
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as other:
        await lock_row(other, schema, "sessions", "key", "s")
        waiting = asyncio.create_task(stores[0].commit(TENANT, [AddMessage("s", "m", b"{}")]))
        async with asyncio.timeout(TIMEOUT):
            while True:  # until the commit of the turn holds its tenant's lock
                try:
                    await hasty.commit(TENANT, [PutRecord("probe", "p", b"")])
                except StoreBusy:
                    break
    await waiting
    await hasty.commit(TENANT, [PutRecord("probe", "p", b"")])
    await hasty.close()


async def test_pages_of_sessions_that_were_changed_in_the_same_millisecond_are_complete(
    stores: list[PostgresStore], postgres_server: PostgresServer, schema: str
) -> None:
    store = stores[0]
    await store.commit(TENANT, [PutSession(f"s{n}") for n in range(10)])
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as other:
        await other.execute(
            f"UPDATE {schema}.sessions SET updated_at = 1000 + CAST(substr(key, 2) AS BIGINT) / 4".encode()
        )
    found: list[str] = []
    before, before_key = None, ""
    while page := await store.sessions(TENANT, limit=3, before=before, before_key=before_key):
        found += [session.key for session in page]
        before, before_key = page[-1].updated_at, page[-1].key
    assert sorted(found) == [f"s{n}" for n in range(10)]


@pytest.mark.parametrize("accepted", range(3, 8))
async def test_commits_go_on_after_a_repeated_idempotency_key(
    postgres_server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch, accepted: int
) -> None:
    """Statements behind a failed one are not prepared, although psycopg has counted them as such."""
    store = PostgresStore(postgres_server.url, schema=schema)
    monkeypatch.setattr(store, "_connections", 1)
    await store.open()

    def turn(n: int) -> list[Write]:
        session, run = PutSession(f"s{n}"), AcceptRun(f"r{n}", f"s{n}", "a", idempotency_key="k")
        return [session, run, AddMessage(f"s{n}", f"m{n}", b"{}"), AddAudit(b"in")]

    try:
        with pytest.raises(NotFound):
            await store.commit(TENANT, [AcceptRun("none", "missing", "a")])
        for n in range(accepted):
            await store.commit(TENANT, turn(n))
        first = await store.commit(TENANT, [PutSession("x"), AcceptRun("x1", "x", "a", idempotency_key="k")])
        repeated = [PutSession("x"), AcceptRun("x2", "x", "a", idempotency_key="k"), AddMessage("x", "m", b"{}")]
        again = await store.commit(TENANT, [*repeated, AddAudit(b"in")])
        assert first[1].id == again[1].id == "x1"
        for n in range(100, 104):
            await store.commit(TENANT, turn(n))
        assert find_audit_break(await store.audit(TENANT)) is None
    finally:
        await store.close()


async def test_run_accepted_after_another_ended_in_the_same_commit_is_running(stores: list[PostgresStore]) -> None:
    store = stores[0]
    await with_run(store)
    (epoch,) = await store.commit(TENANT, [ClaimRun("r1")])
    ended, accepted = await store.commit(TENANT, [SetRun("r1", epoch, "done"), AcceptRun("r2", "s", "a")])
    assert ended is None and accepted.status == "running"
