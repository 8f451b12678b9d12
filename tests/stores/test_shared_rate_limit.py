"""Rate limits shared by many processes."""

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from atlas_agents.core.errors import StoreLost
from atlas_agents.core.store import Store, StoredRecord
from atlas_agents.providers.rate_limits import BURST, RateLimit, SharedRateLimiter
from atlas_agents.storage.sqlite import MemoryStore
from atlas_agents.testing import VirtualClock

Make: TypeAlias = Callable[[], Awaitable[Store]]


@pytest.mark.durable
async def test_rate_limit_holds_for_all_processes_together(make_store: Make) -> None:
    clock, limit = VirtualClock(), RateLimit(requests=60)
    limiters = [SharedRateLimiter(await make_store(), clock=clock) for _ in range(3)]
    acquired = 0
    for _ in range(30):
        for limiter in limiters:
            while not await limiter.acquire("k", limit, 0):
                acquired += 1
        await clock.advance(1)
    assert 28 <= acquired - BURST <= 33


@pytest.mark.durable
async def test_process_reserves_one_second_of_capacity_at_a_time(make_store: Make) -> None:
    store, clock = await make_store(), VirtualClock()
    limiter = SharedRateLimiter(store, clock=clock)
    for _ in range(100):
        assert await limiter.acquire("k", RateLimit(requests=6000, tokens=600_000), 50) == 0
    record = await store.record("default", "pace", "k")
    assert record is not None and record.version == 1


@pytest.mark.durable
async def test_rate_limited_key_is_paused_in_all_processes(make_store: Make) -> None:
    clock = VirtualClock()
    first, second = (
        SharedRateLimiter(await make_store(), clock=clock),
        SharedRateLimiter(await make_store(), clock=clock),
    )
    assert await second.acquire("k", RateLimit(), 0) == 0
    await first.cool_down("k", 30)
    assert await first.acquire("k", RateLimit(), 0) == 30
    await clock.advance(2)
    assert await second.acquire("k", RateLimit(), 0) == 28
    await clock.advance(28)
    assert await second.acquire("k", RateLimit(), 0) == 0


async def test_tokens_used_beyond_the_share_are_charged_to_the_next_one() -> None:
    clock, store, limit = VirtualClock(), MemoryStore(), RateLimit(tokens=6000)
    limiter = SharedRateLimiter(store, clock=clock)
    assert await limiter.acquire("k", limit, 100) == 0
    limiter.settle("k", limit, 2900)
    assert await limiter.acquire("k", limit, 0) == 0  # the debt is recorded with it
    assert await SharedRateLimiter(store, clock=clock).acquire("k", limit, 0) == pytest.approx(20, abs=1.1)


async def test_without_the_store_each_process_limits_itself() -> None:
    class UnreachableStore(MemoryStore):
        async def record(self, tenant: str, kind: str, key: str) -> StoredRecord | None:
            raise StoreLost("cannot reach the database")

    clock = VirtualClock()
    limiter = SharedRateLimiter(UnreachableStore(), clock=clock)
    assert await limiter.acquire("k", RateLimit(requests=6), 0) == 0
    assert await limiter.acquire("k", RateLimit(requests=6), 0) == 0
    assert await limiter.acquire("k", RateLimit(requests=6), 0) == pytest.approx(10)
    await limiter.cool_down("k", 60)
    assert await limiter.acquire("k", RateLimit(requests=6), 0) == pytest.approx(60)
