"""Commits of a turn on Postgres by several processes at a time: they lock their sessions, not the tenant."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from postgres_server import PostgresServer
from store_helpers import DAY, TENANT, outcomes, with_run

from atlas_agents.core.errors import Conflict, NotFound, SessionBusy, StaleOwner, StoreBusy, StoreError
from atlas_agents.core.messages import new_ordered_id
from atlas_agents.core.store import (
    AcceptRun,
    AddAudit,
    AddEvents,
    AddJournal,
    AddMessage,
    AddUsage,
    ClaimRun,
    Prune,
    PutRecord,
    PutSession,
    RefreshIndexes,
    ReleaseBudgets,
    ReserveEvents,
    SetRun,
    UsageRow,
    Write,
)
from atlas_agents.storage.hash_chain import ChainEnds, find_audit_break, find_journal_break
from atlas_agents.storage.postgres import PostgresStore, statements
from atlas_agents.storage.postgres.pipelined import Batch, NotPipelined
from atlas_agents.storage.postgres.store import tenant_lock_id
from atlas_agents.storage.sql.tables import WriteContext, pack_value, run_key
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


_WAITING = """SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"""


async def lock_session(connection: psycopg.AsyncConnection, schema: str, session: str) -> None:
    """Lock a session as a commit of a turn does, until the end of the transaction."""
    values = (tenant_lock_id(schema, TENANT) >> 32, session)
    await connection.execute("SELECT pg_advisory_xact_lock(CAST(%s AS INTEGER), hashtext(%s))", values)


async def lock_row(connection: psycopg.AsyncConnection, schema: str, table: str, key: str, value: str) -> None:
    statement = f"SELECT 1 FROM {schema}.{table} WHERE {key} = '{value}' FOR UPDATE"
    await connection.execute(statement.encode())


def commit_step_by_step(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a store write every commit in the way that gives reasons, like a process that knows no other."""

    async def refuse(*_: object) -> None:
        raise NotPipelined

    _, writer, _ = store._require_open()
    monkeypatch.setattr(writer, "_commit_pipelined", refuse)


@pytest.mark.parametrize("stepwise", [0, 1, 2])
async def test_turns_of_many_sessions_written_by_three_processes_lose_nothing(
    stores: list[PostgresStore], monkeypatch: pytest.MonkeyPatch, stepwise: int
) -> None:
    """Runs of a session start one after the other, numbers have no gaps, and chains are intact, also while some of the
    processes commit step by step."""
    for store in stores[:stepwise]:
        commit_step_by_step(store, monkeypatch)
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


async def test_commits_of_a_turn_never_need_the_exclusive_lock_of_their_tenant(
    stores: list[PostgresStore], postgres_server: PostgresServer, schema: str
) -> None:
    """Another transaction shares the lock all the time: a commit that wanted it alone would wait, and fail."""
    hasty = PostgresStore(postgres_server.url, schema=schema, busy_timeout=0.5, answer_timeout=TIMEOUT)
    await hasty.open()
    runs = [f"r{n}" for n in range(3)]
    usage = AddUsage(UsageRow(DAY, "s0", "a", "m", 1, 2, turns=1))

    async def end(n: int) -> list[Any]:
        last = [AddMessage(f"s{n}", "x", b"{}", runs[n]), AddMessage(f"s{n}", "y", b"{}", runs[n]), usage]
        step = AddJournal(runs[n], 1, "ended", "", b"{}")
        return await hasty.commit(TENANT, [*last, step, SetRun(runs[n], 1, "done"), AddAudit(b"out")])

    async with await psycopg.AsyncConnection.connect(postgres_server.url) as other:
        await other.execute("SELECT pg_advisory_lock_shared(%s)", (tenant_lock_id(schema, TENANT),))
        await asyncio.gather(*(with_run(hasty, run, f"s{n}") for n, run in enumerate(runs)), with_run(hasty, "q", "s0"))
        for run in runs:
            claim = [ClaimRun(run), SetRun(run, 1, "running"), ReleaseBudgets(run)]
            assert (await hasty.commit(TENANT, [*claim, AddJournal(run, 1, "accepted", "", b"{}"), usage]))[0] == 1
        events: list[Write] = []
        for number in (1, 2):  # as the writer of events does it: several runs in one commit
            for run in runs:
                events += [ReserveEvents(run, 1, 1), AddEvents(run, ((number, b"{}"),), 1)]
        results = await hasty.commit(TENANT, events)
        assert results[::2] == [1, 1, 1, 2, 2, 2]
        started = [results[-2] for results in await asyncio.gather(*(end(n) for n in range(3)))]
    assert started == ["q", None, None]
    assert [row.seq for row in await hasty.events(TENANT, "r2")] == [1, 2]
    assert [message.seq for message in await hasty.messages(TENANT, "s1")] == [1, 2]
    (sums,) = await hasty.usage(TENANT)
    assert (sums.input_tokens, sums.output_tokens, sums.turns) == (6, 12, 6)
    assert find_audit_break(await hasty.audit(TENANT)) is None
    await hasty.close()


async def test_event_is_rejected_if_only_a_later_commit_of_its_group_reserves_its_number(
    stores: list[PostgresStore],
) -> None:
    store = stores[0]
    await with_run(store)
    (epoch,) = await store.commit(TENANT, [ClaimRun("r1")])
    commits = [AddEvents("r1", ((1, b"early"),), epoch)], [ReserveEvents("r1", 1, epoch)]
    good, refused = await outcomes(store.commit(TENANT, each) for each in commits)
    assert good == [[1]] and [type(error) for error in refused] == [Conflict]


async def test_message_is_rejected_if_only_a_later_commit_of_its_group_creates_its_session(
    stores: list[PostgresStore],
) -> None:
    store = stores[0]
    commits = [AddMessage("new", "m", b"{}")], [PutSession("new")], [AddMessage("new", "n", b"{}")]
    good, refused = await outcomes(store.commit(TENANT, each) for each in commits)
    assert len(good) == 2 and [type(error) for error in refused] == [NotFound]


async def test_messages_of_a_turn_leave_the_row_of_their_session_in_its_page(
    stores: list[PostgresStore], postgres_server: PostgresServer, schema: str
) -> None:
    """Postgres then writes no index entries. The order of sessions still follows accepted runs and other messages."""
    store = stores[0]
    await with_run(store, "r1", "one")
    await with_run(store, "r2", "two")
    for n in range(5):
        await store.commit(TENANT, [AddMessage("one", f"m{n}", b"{}", "r1")])
    assert [session.key for session in await store.sessions(TENANT)] == ["two", "one"]
    await store.commit(TENANT, [AddMessage("one", "free", b"{}")])
    assert [session.key for session in await store.sessions(TENANT)] == ["one", "two"]
    count = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = %s AND relname = 'sessions'"
    async with (
        asyncio.timeout(TIMEOUT),
        await psycopg.AsyncConnection.connect(postgres_server.url, autocommit=True) as other,
    ):
        while (row := await (await other.execute(count, (schema,))).fetchone()) is None or row[0] < 8:
            await store.close()  # a session reports its counts when it ends
            await store.open()
        assert row[1] >= 5


async def test_transaction_whose_token_was_fenced_is_refused(
    stores: list[PostgresStore], postgres_server: PostgresServer, schema: str
) -> None:
    """A server that was stopped may execute a transaction after its writer has decided that it was not committed."""
    store = stores[0]
    _, writer, _ = store._require_open()
    await store.commit(TENANT, [PutSession("s")])
    token = 1000
    batch = Batch(WriteContext(TENANT, 1, statements), [[AddMessage("s", "late", b"{}")]], ChainEnds(), 1)
    (query,) = batch.queries(writer._token_values(TENANT, token))
    assert not await writer._was_committed(TENANT, token, 0.0)
    with pytest.raises(StoreError, match="null value"):
        await store.search(query)
    assert not await store.messages(TENANT, "s")


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
    commits = [AddMessage("held", "m", b"{}")], [AddEvents("r1", ((1, b"{}"),), epoch)]
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as other:
        await lock_session(other, schema, "held")
        async with asyncio.timeout(TIMEOUT):
            await stores[1].commit(TENANT, [AddMessage("free", "m", b"{}"), ClaimRun("r2"), AddAudit(b"")])
            waiting = [asyncio.create_task(stores[n].commit(TENANT, each)) for n, each in enumerate(commits)]
            while await (await other.execute(_WAITING)).fetchone() != (len(commits),):
                pass
        assert not await stores[2].messages(TENANT, "held") and not await stores[2].events(TENANT, "r1")
    await asyncio.gather(*waiting)
    assert [message.id for message in await store.messages(TENANT, "held")] == ["m"]
    assert [event.seq for event in await store.events(TENANT, "r1")] == [1]


async def test_claim_waits_for_a_commit_of_the_owner_before(
    stores: list[PostgresStore], postgres_server: PostgresServer, schema: str
) -> None:
    """The lock of a session is all that fences a run: the row of the run is not locked by those who only read it."""
    store = stores[0]
    await with_run(store, "r", "s")
    (epoch,) = await store.commit(TENANT, [ClaimRun("r")])
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as other:
        await lock_session(other, schema, "s")  # as a commit of the owner does
        claim = asyncio.create_task(stores[1].commit(TENANT, [ClaimRun("r")]))
        async with asyncio.timeout(TIMEOUT):
            while await (await other.execute(_WAITING)).fetchone() != (1,):
                pass
        row = await stores[2].run(TENANT, "r")
        assert row is not None and row.epoch == epoch
    assert await claim == [epoch + 1]
    with pytest.raises(StaleOwner):
        await store.commit(TENANT, [AddJournal("r", epoch, "reply", "1", b"{}")])


async def test_commit_locks_no_row_that_it_does_not_change(
    stores: list[PostgresStore], postgres_server: PostgresServer, schema: str
) -> None:
    """A lock of a row is written to the WAL, and its number to the row."""
    store = stores[0]
    await with_run(store, "r", "s")
    (epoch,) = await store.commit(TENANT, [ClaimRun("r")])
    await store.commit(TENANT, [ReserveEvents("r", 1, epoch)])
    writes = [AddJournal("r", epoch, "accepted", "", b"{}"), AddEvents("r", ((1, b"{}"),), epoch), AddAudit(b"")]
    await store.commit(TENANT, writes)
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as other:
        for table in ("sessions", "runs"):
            query = f"SELECT CAST(CAST(xmax AS TEXT) AS INTEGER) FROM {schema}.{table}"
            assert await (await other.execute(query.encode())).fetchall() == [(0,)]


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


async def test_commit_larger_than_the_buffers_of_its_connection_is_written(stores: list[PostgresStore]) -> None:
    store = stores[0]
    body = b"x" * (5 << 20)
    writes = [AddMessage("s", f"m{n}", body) for n in range(8)]
    results = await store.commit(TENANT, [PutSession("s"), *writes, *[AddAudit(body)] * 4])
    assert [message.seq for message in results[1:-4]] == list(range(1, 9))
    assert [row.seq for row in results[-4:]] == [1, 2, 3, 4]
    assert [message.body == body for message in await store.messages(TENANT, "s")] == [True] * 8
    assert find_audit_break(await store.audit(TENANT)) is None


async def test_large_commits_share_no_transaction(stores: list[PostgresStore]) -> None:
    """Together they would take longer than a server that does not answer may take."""
    store = stores[0]
    await store.commit(TENANT, [PutSession("s")])
    before = store.transactions
    body = b"x" * (3 << 20)
    await asyncio.gather(*(store.commit(TENANT, [AddMessage("s", f"m{n}", body)]) for n in range(6)))
    assert store.transactions - before == 3
    assert [message.id for message in await store.messages(TENANT, "s")] == [f"m{n}" for n in range(6)]


@pytest.mark.parametrize(
    "early", [ReserveEvents("r1", 1, 2), AddEvents("r1", ((1, b"{}"),), 2), SetRun("r1", 2, "waiting")]
)
async def test_epoch_is_unknown_until_a_later_commit_of_its_group_claims_the_run(
    stores: list[PostgresStore], early: Write
) -> None:
    store = stores[0]
    await with_run(store)
    await store.commit(TENANT, [ClaimRun("r1"), ReserveEvents("r1", 1)])
    good, refused = await outcomes(store.commit(TENANT, each) for each in ([early], [ClaimRun("r1")]))
    assert good == [[2]] and [type(error) for error in refused] == [StaleOwner]


async def test_sessions_are_indexed_while_commits_of_turns_are_written(
    stores: list[PostgresStore], postgres_server: PostgresServer, schema: str
) -> None:
    await stores[0].commit(TENANT, [PutSession("s", label="zymurgy")])
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as turn:
        await turn.execute("SELECT pg_advisory_xact_lock_shared(%s)", (tenant_lock_id(schema, TENANT),))
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*[store.commit(TENANT, [RefreshIndexes()]) for store in stores])
            found = await stores[0].search_sessions(TENANT, "zymurgy")
    assert [each.session for each in found.matches] == ["s"]


async def test_day_is_summed_only_when_no_usage_of_it_can_be_missing(
    stores: list[PostgresStore], postgres_server: PostgresServer, schema: str
) -> None:
    """A commit of a turn that is not finished yet may contain some."""
    await stores[0].commit(TENANT, [AddUsage(UsageRow("2026-01-01", "s", "a", "m", 1, 1))])
    lock = tenant_lock_id(schema, TENANT)
    waits = """SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'ExclusiveLock'
        AND (classid::bigint << 32 | objid::bigint) = %s"""
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as turn:
        await turn.execute("SELECT pg_advisory_xact_lock_shared(%s)", (lock,))
        summing = asyncio.create_task(stores[1].commit(TENANT, [RefreshIndexes()]))
        async with asyncio.timeout(TIMEOUT):
            while not await (await turn.execute(waits, (lock,))).fetchone():
                assert not summing.done()
    await summing
    while (await stores[1].commit(TENANT, [RefreshIndexes()]))[0]:
        pass
    assert [each.input_tokens for each in await stores[0].sum_usage(TENANT, "agent_id")] == [1]


async def test_events_of_a_commit_are_one_row_and_are_read_one_by_one(
    stores: list[PostgresStore], postgres_server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after events that are stored one by one. The first event of a number stays."""
    stepwise, store, _ = stores
    commit_step_by_step(stepwise, monkeypatch)
    await with_run(store)
    (epoch,) = await store.commit(TENANT, [ClaimRun("r1")])
    await store.commit(TENANT, [ReserveEvents("r1", 9, epoch)])
    await stepwise.commit(TENANT, [AddEvents("r1", ((1, b"one"), (2, b"")), epoch)])
    long = b'{"event": 4}\n' * 9
    await store.commit(TENANT, [AddEvents("r1", ((4, long), (3, b"\x00three"), (7, b"seven")), epoch)])
    for other in (stepwise, store):
        await other.commit(TENANT, [AddEvents("r1", ((3, b"again"), (4, b"again"), (5, b"five")), epoch)])
    bodies = {1: b"one", 2: b"", 3: b"\x00three", 4: long, 5: b"five", 7: b"seven"}
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as other:
        rows = await (await other.execute(f"SELECT seq, first FROM {schema}.events ORDER BY seq".encode())).fetchall()
        assert rows == [(1, None), (2, None), (4, 3), (5, None), (7, None)]
        for after in range(9):
            for limit in (None, 0, 1, 2, 9):
                found = await store.events(TENANT, "r1", after=after, limit=limit)
                wanted = [(seq, body) for seq, body in bodies.items() if seq > after][:limit]
                assert [(event.seq, event.body) for event in found] == wanted
        await other.execute(f"UPDATE {schema}.events SET body = 'x' WHERE seq = 4".encode())
    assert [event.seq for event in await store.events(TENANT, "r1")] == [1, 2, 5, 7]


async def test_step_of_a_journal_is_written_once_in_a_group_of_commits(
    stores: list[PostgresStore], postgres_server: PostgresServer, schema: str
) -> None:
    store = stores[0]
    await with_run(store)
    (epoch,) = await store.commit(TENANT, [ClaimRun("r1")])
    step = AddJournal("r1", epoch, "intent", "c", b"{}")
    writes = (AddUsage(UsageRow(DAY, "s", "a", "m")), step, step, AddJournal("r1", epoch, "outcome", "c", b"{}"))
    _, refused = await outcomes(store.commit(TENANT, [each]) for each in writes)
    assert list(map(type, refused)) == [Conflict]
    with pytest.raises(Conflict, match="already has intent"):
        await store.commit(TENANT, [step])
    await store.commit(TENANT, [AddJournal("r1", epoch, "reply", "1", b"{}")])
    assert find_journal_break(await store.journal(TENANT, "r1")) is None
    async with await psycopg.AsyncConnection.connect(postgres_server.url) as other:
        await other.execute(f"DELETE FROM {schema}.journal WHERE seq = 2".encode())
    assert find_journal_break(await store.journal(TENANT, "r1")) == 2


async def test_last_steps_of_a_run_are_one_row_and_are_read_one_by_one(
    stores: list[PostgresStore], postgres_server: PostgresServer, schema: str
) -> None:
    store, other, _ = stores
    for run, length in ("r1", 9), ("r2", 20_000):
        await with_run(store, run, f"s {run}")
        (epoch, *_) = await store.commit(TENANT, [ClaimRun(run), AddJournal(run, 1, "accepted", "", b"[]")])
        reply = AddJournal(run, epoch, "reply", "1", b'"%b"' % (b"x" * length))
        ended = AddJournal(run, epoch, "ended", "", b"{}")
        written = await store.commit(TENANT, [reply, ended, SetRun(run, epoch, "done")])
        for each in (store, other):
            steps = await each.journal(TENANT, run)
            assert steps[1:] == written[:2] and [step.seq for step in steps] == [1, 2, 3]
            assert find_journal_break(steps) is None
    async with connected(postgres_server.url, schema) as connection:
        rows = await read(connection, "SELECT run_id, seq, kind FROM journal ORDER BY run_id, seq")
        assert rows[:2] == [("r1", 1, "accepted"), ("r1", 3, "ended")] and [seq for _, seq, _ in rows[2:]] == [1, 2, 3]
        assert (await store.prunable(TENANT, "journal", 1 << 50)).rows == 6
        payload = b"\x02" + pack_value(b'["reply","1",1,1]\n1{}')
        await connection.execute("UPDATE journal SET payload = %s WHERE run_id = 'r1' AND seq = 3", (payload,))
        assert find_journal_break(await store.journal(TENANT, "r1")) == 3
        await connection.execute("UPDATE journal SET payload = '\\x02ff' WHERE run_id = 'r1' AND seq = 3")
        assert find_journal_break(await store.journal(TENANT, "r1")) == 2
    assert [pruned.rows for pruned in await store.commit(TENANT, [Prune("journal", 1 << 50)])] == [6]


async def test_repeated_last_steps_of_a_run_are_rejected(stores: list[PostgresStore]) -> None:
    store = stores[0]
    await with_run(store)
    await store.commit(TENANT, [ClaimRun("r1"), AddJournal("r1", 1, "reply", "1", b"{}")])
    ended = [AddJournal("r1", 1, "ended", "", b"{}"), SetRun("r1", 1, "done")]
    with pytest.raises(Conflict, match="already has reply"):
        await store.commit(TENANT, [AddJournal("r1", 1, "reply", "1", b"{}"), *ended])
    await store.commit(TENANT, [AddJournal("r1", 1, "reply", "2", b"{}"), *ended])
    assert [step.seq for step in await store.journal(TENANT, "r1")] == [1, 2, 3]


AUDIT_ENTRY = b'{"tenantId":"acme","actorExternalId":"a","entityId":"look","level":"info","message":"Agent a looked"}'


async def test_turns_that_continue_after_a_group_share_the_next_transaction(stores: list[PostgresStore]) -> None:
    store, turns, steps = stores[0], 8, 6

    async def take_turn(number: int) -> None:
        for step in range(steps):
            for _ in range(5 * number):  # some turns are ready before others
                await asyncio.sleep(0)
            await store.commit(TENANT, [PutSession(f"s{number}", label=f"step {step}")])

    before = store.transactions
    await asyncio.gather(*[take_turn(number) for number in range(turns)])
    assert store.transactions - before <= steps + 2  # twice as many if half of the turns wait for the other half
    assert {session.label for session in await store.sessions(TENANT)} == {f"step {steps - 1}"}


@asynccontextmanager
async def connected(url: str, schema: str) -> AsyncGenerator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(
        url, autocommit=True, options=f"-c search_path={schema}"
    ) as opened:
        yield opened


async def read(connection: psycopg.AsyncConnection[Any], query: str) -> list[Any]:
    return await (await connection.execute(query.encode())).fetchall()


@pytest.mark.usefixtures("stores")
async def test_key_of_a_run_is_the_same_in_python_and_in_postgres(postgres_server: PostgresServer, schema: str) -> None:
    timed = [f"0{n:07x}-0000-7000-8000-{n:012x}" for n in range(0, 1 << 26, (1 << 26) // 200 - 7)]
    others = ["r1", "é", timed[9].upper(), timed[9] + "0", timed[9].replace("-7", "-4"), "x" * 36, new_ordered_id()]
    query = "SELECT run_key(id) FROM unnest(%s::text[]) AS id"
    async with connected(postgres_server.url, schema) as connection:
        found = await (await connection.execute(query.encode(), ([*timed, *others],))).fetchall()
    keys = [run_key(id) for id in timed]
    assert [key for (key,) in found] == [*keys, *map(run_key, others)]
    assert keys == sorted(set(keys)) and {len(key) for key in keys} == {15}
    assert [*map(run_key, others[:6])] == others[:6]
