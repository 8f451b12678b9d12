"""Budgets in a store: reservations and their settlement, on every kind of store and with two processes."""

import asyncio

import pytest
from store_helpers import Make

from atlas_agents import Agent, Atlas, Budget, BudgetExceeded, tool
from atlas_agents.core.errors import BudgetUnavailable
from atlas_agents.core.store import (
    AcceptRun,
    AddJob,
    AddUsage,
    BudgetLimit,
    DropSession,
    JobRow,
    PutSession,
    RecountBudget,
    ReleaseBudgets,
    ReserveBudget,
    SetRun,
    SettleBudget,
    Store,
    UsageRow,
)
from atlas_agents.testing import Scripted, calls, says
from metered_models import Hanging, Metered

TENANT = "acme"
DAY = BudgetLimit("user/ann", "2026-11-16", (1000, None, None, None, None))
TOTAL = BudgetLimit("session/s", "", (None, 3, None, None, None))
TOKENS = (1, 0, 0, 0, 0)


def reserve(run_id: str, base: int = 0, most: int = 0, least: int = 0, enough: int = 0) -> ReserveBudget:
    return ReserveBudget(run_id, (DAY, TOTAL), (base, 1, 0, 0, 0), TOKENS, least, enough, most)


async def count(store: Store, budget: BudgetLimit = DAY) -> dict[str, int]:
    """Return the tokens of a budget by run; those that were used under an empty name."""
    rows = await store.budget_rows(TENANT, budget.key, budget.period)
    return {row.run_id: row.tokens for row in rows if row.tokens}


async def test_reservation_is_granted_as_far_as_it_fits_and_settled_with_what_was_used(store: Store) -> None:
    assert await store.commit(TENANT, [reserve("r1", 100, 300), reserve("r2", 100, 900, 16)]) == [300, 500]
    assert await count(store) == {"r1": 400, "r2": 600}
    with pytest.raises(BudgetUnavailable) as waits:
        await store.commit(TENANT, [reserve("r3", 1, 5, 1)])
    assert waits.value.pending, "the others may return something"
    await store.commit(TENANT, [SettleBudget("r1", (DAY, TOTAL), (400, 1, 0, 0, 0), (150, 1, 0, 0, 0))])
    assert await count(store) == {"": 150, "r2": 600}
    assert await store.commit(TENANT, [reserve("r3", 0, 900, 1)]) == [250]
    with pytest.raises(BudgetUnavailable) as refused:
        await store.commit(TENANT, [reserve("r4", 851, 900, 1)])
    assert (refused.value.key, refused.value.used, refused.value.pending) == ("user/ann", 150, False)


async def test_small_rest_is_granted_only_when_no_other_run_may_return_more(store: Store) -> None:
    await store.commit(TENANT, [reserve("r1", 0, 950)])
    with pytest.raises(BudgetUnavailable) as waits:
        await store.commit(TENANT, [reserve("r2", 0, 900, least=16, enough=200)])
    assert waits.value.pending
    await store.commit(TENANT, [SettleBudget("r1", (DAY, TOTAL), (950, 1, 0, 0, 0), (950, 1, 0, 0, 0))])
    assert await store.commit(TENANT, [reserve("r2", 0, 900, least=16, enough=200)]) == [50]


async def test_refused_reservation_writes_nothing_of_its_commit(store: Store) -> None:
    with pytest.raises(BudgetUnavailable):
        await store.commit(TENANT, [PutSession("s"), reserve("r1", 1001)])
    assert await store.session(TENANT, "s") is None and await count(store) == {}


async def test_run_returns_what_it_reserved_and_its_own_count_when_it_ends(store: Store) -> None:
    turn = BudgetLimit("turn/r1", "", (1000, None, None, None, None))
    both = ReserveBudget("r1", (DAY, turn), (10, 0, 0, 0, 0))
    used = SettleBudget("r1", (DAY, turn), (10, 0, 0, 0, 0), (7, 0, 0, 0, 0))
    await store.commit(TENANT, [both, both, used, ReleaseBudgets("r1")])
    assert (await count(store), await count(store, turn)) == ({"": 7}, {"": 7})
    job = JobRow("j", "delegation", "a", "task", "s", root="r1")
    await store.commit(TENANT, [AddJob(job), ReleaseBudgets("r1", ended=True)])
    assert await count(store, turn) == {"": 7}, "the jobs that it delegated count, too"
    other = BudgetLimit("turn/r2", "", (1000, None, None, None, None))
    await store.commit(TENANT, [ReserveBudget("r2", (other,), (10, 0, 0, 0, 0)), ReleaseBudgets("r2", ended=True)])
    assert await store.budget_rows(TENANT, "turn/r2", "") == []


async def test_reservation_that_no_run_would_return_expires(store: Store) -> None:
    lost, kept = [
        ReserveBudget(name, (DAY,), (450, 0, 0, 0, 0), lease=lease) for name, lease in (("a", -1), ("b", 9999))
    ]
    assert await store.commit(TENANT, [lost, kept, reserve("r1", 500)]) == [0, 0, 0]
    assert await count(store) == {"b": 450, "r1": 500}


async def test_budget_of_a_tenant_starts_with_what_it_has_used_before(store: Store) -> None:
    month = BudgetLimit("tenant", "2026-11", (1000, None, None, None, None))
    for day, tokens in (("2026-11-02", 300), ("2026-10-31", 5000)):
        await store.commit(TENANT, [AddUsage(UsageRow(day, "s", "a", "m", tokens, 50, 0, 7))])
    assert await store.commit(TENANT, [ReserveBudget("r1", (month,), (50, 0, 0, 0, 0), TOKENS, 1, 1, 9999)]) == [600]
    await store.commit(TENANT, [AddUsage(UsageRow("2026-11-03", "s", "a", "m", 450)), RecountBudget("2026-11")])
    assert await count(store, month) == {"": 800, "r1": 650}


async def test_budgets_belong_to_one_tenant_and_a_deleted_session_has_none(store: Store) -> None:
    await store.commit(TENANT, [PutSession("s"), AcceptRun("r1", "s", "a"), reserve("", 10)])
    assert await store.budget_rows("other", DAY.key, DAY.period) == []
    await store.commit(TENANT, [SetRun("r1", 0, "done"), DropSession("s")])
    assert await store.budget_rows(TENANT, TOTAL.key, TOTAL.period) == []
    assert await count(store) == {"": 10}, "what the user has used stays"


@pytest.mark.durable
async def test_two_stores_on_one_database_never_grant_more_than_the_limit(make_store: Make) -> None:
    two = [await make_store(), await make_store()]
    limit = BudgetLimit("user/ann", "", (1000, None, None, None, None))

    async def use(n: int) -> bool:
        try:
            await two[n % 2].commit(TENANT, [ReserveBudget(f"r{n}", (limit,), (15, 0, 0, 0, 0))])
        except BudgetUnavailable:
            return False
        settle = SettleBudget(f"r{n}", (limit,), (15, 0, 0, 0, 0), (10, 0, 0, 0, 0))
        await two[n % 2].commit(TENANT, [settle, ReleaseBudgets(f"r{n}")])
        return True

    done = sum(await asyncio.gather(*[use(n) for n in range(150)]))
    assert await count(two[0], limit) == {"": 10 * done}
    assert 60 <= done <= 99


@pytest.mark.durable
async def test_two_gateways_on_one_database_share_the_budgets(make_store: Make) -> None:
    budget = "user tokens=2000 requests=100 per=month"
    async with (
        Atlas([Agent("a", model=Metered(30, 70))], store=await make_store(), budgets=budget) as one,
        Atlas([Agent("a", model=Metered(30, 70))], store=await make_store(), budgets=budget) as other,
    ):
        turns = [(one, other)[n % 2].ask("hi", session=str(n), user="ann") for n in range(40)]
        results = await asyncio.gather(*turns, return_exceptions=True)
        failed = [each for each in results if isinstance(each, BaseException)]
        status = {each.measure: (each.used, each.reserved) for each in await one.budget_status(user="ann")}
    assert {type(each) for each in failed} == {BudgetExceeded}
    assert status == {"tokens": (2000, 0), "requests": (len(results) - len(failed), 0)}


@pytest.mark.durable
async def test_turn_of_a_stopped_process_returns_what_it_reserved(make_store: Make) -> None:
    hanging = Hanging("word " * 20)
    first = Atlas([Agent("a", model=hanging)], store=await make_store(), budgets="user tokens=1000")
    stream = first.send("hi", user="ann")
    async for event in stream:
        if event.type == "stream:chunk":
            break
    (reserved,) = await first.budget_status(user="ann")
    await first.close()  # the run stays open and is resumed
    async with Atlas([Agent("a", model=Metered(30, 70))], store=await make_store(), budgets="user tokens=1000") as then:
        await asyncio.gather(*[each.reply() for each in await then.recover()])
        (settled,) = await then.budget_status(user="ann")
    assert (reserved.used, reserved.reserved, reserved.left) == (0, 1000, 0)
    assert (settled.used, settled.reserved) == (100, 0)


@pytest.mark.durable
async def test_resumed_turn_goes_on_with_its_budget(make_store: Make) -> None:
    running = asyncio.Event()

    @tool(effect="pure")
    async def look() -> str:
        """Look around; the first time without an end."""
        if not running.is_set():
            running.set()
            await asyncio.Event().wait()
        return "nothing"

    model = Scripted(calls("look"), says("never"))
    first = Atlas([Agent("a", model=model, tools=[look])], store=await make_store())
    first.send("hi", budget=Budget(requests=1, tool_calls=1))
    await running.wait()
    await first.close()
    async with Atlas([Agent("a", model=model, tools=[look])], store=await make_store()) as then:
        (stream,) = await then.recover()
        with pytest.raises(BudgetExceeded, match="of the turn of 1 model requests is used up"):
            await stream.reply()
        (last,) = [part for part in (await then.sessions.history("default"))[-1].parts if part.type == "tool_result"]
    assert (last.status, len(model.requests)) == ("ok", 1), "the call was repeated and not counted again"
