"""Rate limits shared by many processes."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from atlas_agents.core.errors import StoreLost
from atlas_agents.core.store import Store, StoredRecord
from atlas_agents.providers.rate_limits import BURST, RateLimit, SharedLedger
from atlas_agents.storage.memory import MemoryStore
from atlas_agents.testing import VirtualClock

Make: TypeAlias = Callable[[], Awaitable[Store]]


@pytest.mark.durable
async def test_rate_limit_holds_for_all_processes_together(make_store: Make) -> None:
    clock, pace = VirtualClock(), RateLimit(requests=60)
    ledgers = [SharedLedger(await make_store(), clock=clock) for _ in range(3)]
    taken = 0
    for _ in range(30):
        for ledger in ledgers:
            while not await ledger.take("k", pace, 0):
                taken += 1
        await clock.advance(1)
    assert 28 <= taken - BURST <= 33


@pytest.mark.durable
async def test_processes_take_a_second_of_budget_at_a_time(make_store: Make) -> None:
    store, clock = await make_store(), VirtualClock()
    ledger = SharedLedger(store, clock=clock)
    for _ in range(100):
        assert await ledger.take("k", RateLimit(requests=6000, tokens=600_000), 50) == 0
    record = await store.record("default", "pace", "k")
    assert record is not None and record.version == 1


@pytest.mark.durable
async def test_rate_limited_key_is_paused_in_all_processes(make_store: Make) -> None:
    clock = VirtualClock()
    first, second = SharedLedger(await make_store(), clock=clock), SharedLedger(await make_store(), clock=clock)
    assert await second.take("k", RateLimit(), 0) == 0
    await first.rest("k", 30)
    assert await first.take("k", RateLimit(), 0) == 30
    await clock.advance(2)
    assert await second.take("k", RateLimit(), 0) == 28
    await clock.advance(28)
    assert await second.take("k", RateLimit(), 0) == 0


async def test_tokens_used_beyond_the_share_are_charged_to_the_next_one() -> None:
    clock, store, pace = VirtualClock(), MemoryStore(), RateLimit(tokens=6000)
    ledger = SharedLedger(store, clock=clock)
    assert await ledger.take("k", pace, 100) == 0
    ledger.spent("k", pace, 2900)
    assert await ledger.take("k", pace, 0) == 0  # the debt is recorded with it
    assert await SharedLedger(store, clock=clock).take("k", pace, 0) == pytest.approx(20, abs=1.1)


async def test_without_the_store_each_process_limits_itself() -> None:
    class Away(MemoryStore):
        async def record(self, tenant: str, kind: str, key: str) -> StoredRecord | None:
            raise StoreLost("cannot reach the database")

    clock = VirtualClock()
    ledger = SharedLedger(Away(), clock=clock)
    assert await ledger.take("k", RateLimit(requests=6), 0) == 0
    assert await ledger.take("k", RateLimit(requests=6), 0) == 0
    assert await ledger.take("k", RateLimit(requests=6), 0) == pytest.approx(10)
    await ledger.rest("k", 60)
    assert await ledger.take("k", RateLimit(requests=6), 0) == pytest.approx(60)
