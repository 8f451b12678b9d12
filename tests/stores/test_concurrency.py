"""Concurrent callers: counters stay exact, and a failed or cancelled call does not affect others."""

import asyncio

import pytest
from store_helpers import DAY, TENANT, Make, approval, outcomes, with_run

from atlas_agents.core.errors import Conflict, DailyLimitExceeded, NotFound, StaleOwner
from atlas_agents.core.messages import user
from atlas_agents.core.store import (
    AcceptRun,
    AddAudit,
    AddJournal,
    AddMessage,
    AddMessages,
    AnswerApproval,
    ClaimRun,
    PutApproval,
    PutSession,
    Reserve,
    SetRun,
    Store,
)
from atlas_agents.storage.hash_chain import find_audit_break, find_journal_break
from atlas_agents.storage.postgres import PostgresStore
from atlas_agents.storage.sqlite import SqliteStore
from checks import TIMEOUT, cpu_factor, measure_longest_block, repeat_for_block


@pytest.fixture
async def two(make_store: Make, kind: str) -> list[Store]:
    """Two stores on one database, as in two processes. The in-memory store is used twice."""
    first = await make_store()
    return [first, first if kind == "memory" else await make_store()]


async def test_counter_is_exact_under_200_callers(two: list[Store]) -> None:
    good, bad = await outcomes(two[n % 2].commit(TENANT, [Reserve("a", DAY, 120)]) for n in range(200))
    assert sorted(result[0] for result in good) == list(range(1, 121))
    assert [type(error) for error in bad] == [DailyLimitExceeded] * 80
    assert await two[0].call_count(TENANT, "a", DAY) == 120


async def test_only_the_last_of_many_claims_of_a_run_can_write(two: list[Store]) -> None:
    await with_run(two[0])

    async def claim_and_write(n: int) -> int:
        (epoch,) = await two[n % 2].commit(TENANT, [ClaimRun("r1")])
        await two[n % 2].commit(TENANT, [AddJournal("r1", epoch, "intent", f"{n}", b"")])
        return epoch

    good, bad = await outcomes(claim_and_write(n) for n in range(30))
    assert {type(error) for error in bad} <= {StaleOwner}
    run = await two[0].run(TENANT, "r1")
    assert run is not None and run.epoch == 30 and 30 in good
    rows = await two[0].journal(TENANT, "r1")
    assert len(rows) == len(good) and find_journal_break(rows) is None


async def test_one_of_many_answers_to_an_approval_counts(two: list[Store]) -> None:
    await two[0].commit(TENANT, [PutApproval(approval())])
    good, bad = await outcomes(two[n % 2].commit(TENANT, [AnswerApproval("p1", b"%d" % n)]) for n in range(40))
    assert len(good) == 1 and [type(error) for error in bad] == [Conflict] * 39
    row = await two[1].approval(TENANT, "p1")
    assert row == good[0][0]


async def test_repeated_accept_under_a_race_gives_one_run(two: list[Store]) -> None:
    await two[0].commit(TENANT, [PutSession("s")])
    good, bad = await outcomes(
        two[n % 2].commit(TENANT, [AcceptRun(f"r{n}", "s", "a", idempotency_key="k")]) for n in range(20)
    )
    assert not bad and len({result[0].id for result in good}) == 1
    assert len(await two[0].runs(TENANT, "s")) == 1


async def test_session_never_has_two_active_runs(two: list[Store]) -> None:
    await two[0].commit(TENANT, [PutSession("s")])
    await outcomes(two[n % 2].commit(TENANT, [AcceptRun(f"r{n}", "s", "a")]) for n in range(12))
    order = [run.id for run in await two[0].runs(TENANT, "s")]
    ended: list[str] = []
    while active := [run for run in await two[0].runs(TENANT, "s") if run.status == "running"]:
        assert len(active) == 1
        ended.append(active[0].id)
        await outcomes(store.commit(TENANT, [SetRun(active[0].id, 0, "done")]) for store in two)
    assert ended == order and len(order) == 12


async def test_chains_and_messages_have_no_gaps(two: list[Store]) -> None:
    await with_run(two[0])

    async def one(n: int) -> None:
        writes = [AddJournal("r1", 0, "intent", f"{n}", b"{}"), AddAudit(b"%d" % n), AddMessage("s", f"{n}", b"")]
        await two[n % 2].commit(TENANT, writes)
        if n % 5 == 0:
            with pytest.raises(Conflict):
                await two[n % 2].commit(TENANT, [AddAudit(b"lost"), *writes])

    await asyncio.gather(*(one(n) for n in range(100)))
    rows, entries = await two[0].journal(TENANT, "r1"), await two[0].audit(TENANT)
    assert (len(rows), len(entries)) == (100, 100)
    assert find_journal_break(rows) is None and find_audit_break(entries) is None
    assert [message.seq for message in await two[0].messages(TENANT, "s")] == list(range(1, 101))


async def test_a_thousand_commits_share_transactions(store: Store) -> None:
    good, bad = await outcomes(
        store.commit(TENANT, [AddAudit(b"%d" % n)] if n % 10 else [AddAudit(b"no"), ClaimRun("none")])
        for n in range(1000)
    )
    assert len(good) == 900 and [type(error) for error in bad] == [NotFound] * 100
    entries = await store.audit(TENANT)
    assert [entry.entry for entry in entries] == [b"%d" % n for n in range(1000) if n % 10]
    assert find_audit_break(entries) is None
    if isinstance(store, SqliteStore | PostgresStore):
        assert store.transactions < 100


async def test_cancelled_caller_leaves_the_store_usable(store: Store) -> None:
    tasks = [asyncio.create_task(store.commit(TENANT, [AddAudit(b"%d" % n)])) for n in range(50)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    async with asyncio.timeout(TIMEOUT):
        good, _ = await outcomes(tasks)
        assert len(good) >= 25
        await store.commit(TENANT, [AddAudit(b"last")])
    entries = await store.audit(TENANT)
    assert {b"%d" % n for n in range(1, 50, 2)} | {b"last"} <= {entry.entry for entry in entries}
    assert find_audit_break(entries) is None


@pytest.mark.durable
async def test_500_commits_never_block_the_event_loop(store: Store) -> None:
    """The store in memory commits on the calling thread."""
    await with_run(store)
    limit = asyncio.Semaphore(50)

    async def one(n: int) -> None:
        async with limit:
            await store.commit(TENANT, [AddMessage("s", f"{n}", b"x" * 2000), AddAudit(b"{}")])

    async with measure_longest_block() as longest:
        await asyncio.gather(*(one(n) for n in range(500)))
    assert longest.seconds < 0.1 * cpu_factor()


@pytest.mark.durable
@pytest.mark.parametrize("after", [0, 1])
async def test_reading_a_long_conversation_does_not_block_the_event_loop(
    store: Store, make_store: Make, after: int
) -> None:
    """On Postgres, a cache of each store reads the messages from the first one on."""
    await store.commit(TENANT, [PutSession("s")])
    for first in range(0, 10_000, 1000):
        batch = [(f"m{n}", user(f"Question {n} " * 5).to_json()) for n in range(first, first + 1000)]
        await store.commit(TENANT, [AddMessages("s", tuple(batch))])
    stores = [await make_store() for _ in range(3)]
    rows, longest = await repeat_for_block(lambda: stores.pop().messages(TENANT, "s", after=after))
    assert len(rows) >= 9_999 and rows[-1].message.text.startswith("Question 9999")
    assert longest < 0.02 * cpu_factor()
