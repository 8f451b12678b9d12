"""Rate limiters: requests and tokens per minute and key, for one process or shared by many through a store.

A process reserves capacity for one second at a time and spends it locally, so that a request rarely waits for the
store; unspent capacity expires. If the store is down, each process limits itself.
"""

import logging
import math
import re
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import ConfigError, Conflict, StoreError
from atlas_agents.core.json import encode
from atlas_agents.core.store import PutRecord, Store

BURST = 10.0
"""Burst capacity of the token bucket, in seconds of the rate."""
_PART = re.compile(r"(requests|tokens|at_once)=([0-9][0-9_]*)")
logger = logging.getLogger(__name__)
_LEASE_SECONDS = 2.0
"""Seconds after which reserved capacity expires and a cool-down is checked again."""
_MAX_ATTEMPTS = 20


class RateLimit(msgspec.Struct, frozen=True):
    """Rate limit of a key; None means unlimited.

    Args:
        requests: Requests per minute.
        tokens: Tokens per minute.
        at_once: Concurrent requests.
    """

    requests: int | None = None
    tokens: int | None = None
    at_once: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ConfigError(f"invalid RateLimit({name}={limit}): must be at least 1")


NO_LIMIT = RateLimit()


class BucketState(msgspec.Struct, frozen=True):
    """Token bucket state of a key: the Unix times at which its past requests and tokens are paid off at the limit's
    rate.

    `cooldown_end` is the end of its cool-down.
    """

    requests: float = 0.0
    tokens: float = 0.0
    cooldown_end: float = 0.0

    def wait(self, now: float) -> float:
        """Return the seconds until the key may be used; 0 means now."""
        return max(self.cooldown_end - now, self.requests - now - BURST, self.tokens - now - BURST, 0.0)

    def charge(self, limit: RateLimit, now: float, requests: int, tokens: int) -> "BucketState":
        return BucketState(
            _advance(self.requests, now, requests, limit.requests),
            _advance(self.tokens, now, tokens, limit.tokens),
            self.cooldown_end,
        )

    def with_cooldown(self, until: float) -> "BucketState":
        return msgspec.structs.replace(self, cooldown_end=max(self.cooldown_end, until))


def _advance(due: float, now: float, count: int, per_minute: int | None) -> float:
    return due if per_minute is None else max(due, now) + count * 60 / per_minute


class RateLimiter(Protocol):
    """Rate limiter port. Keys are identified by a hash, never by the secret itself."""

    async def acquire(self, key: str, limit: RateLimit, tokens: int) -> float:
        """Reserve capacity and return 0, or return the seconds to wait and reserve nothing."""
        ...

    def settle(self, key: str, limit: RateLimit, tokens: int) -> None:
        """Correct the reservation by the difference between real and estimated tokens."""
        ...

    async def cool_down(self, key: str, seconds: float) -> None:
        """Put a key into cool-down."""
        ...


class LocalRateLimiter:
    """Rate limiter of one process."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._states: dict[str, BucketState] = {}

    async def acquire(self, key: str, limit: RateLimit, tokens: int) -> float:
        state, now = self._states.get(key, BucketState()), self._clock.time()
        wait = state.wait(now)
        if not wait:
            self._states[key] = state.charge(limit, now, 1, tokens)
        return wait

    def settle(self, key: str, limit: RateLimit, tokens: int) -> None:
        self._states[key] = self._states.get(key, BucketState()).charge(limit, self._clock.time(), 0, tokens)

    async def cool_down(self, key: str, seconds: float) -> None:
        self._states[key] = self._states.get(key, BucketState()).with_cooldown(self._clock.time() + seconds)


def parse_rate_limits(lines: tuple[str, ...]) -> dict[str, RateLimit]:
    """Parse `openai requests=500 tokens=200000 at_once=8`, one line per provider; ConfigError names an invalid line."""
    found: dict[str, RateLimit] = {}
    for line in lines:
        provider, *parts = line.split()
        matches = [_PART.fullmatch(part) for part in parts]
        limits = {match[1]: int(match[2]) for match in matches if match}
        if not parts or None in matches or len(limits) < len(parts) or provider in found:
            raise ConfigError(
                f"invalid rate limit {line!r}: expected one line per provider, for example "
                "'openai requests=500 tokens=200000 at_once=8'; requests and tokens are per minute"
            )
        found[provider] = RateLimit(**limits)
    return found


Update: TypeAlias = Callable[[BucketState], BucketState | None]


class _Lease:
    """Capacity that a process has reserved and not spent; tokens may be negative."""

    __slots__ = ("requests", "tokens", "until")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self.until = 0.0


class SharedRateLimiter:
    """Rate limiter shared through a store; keys belong to the deployment, whichever tenant uses them."""

    def __init__(self, store: Store, *, tenant: str = "default", clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._tenant = tenant
        self._clock = clock
        self._leases: dict[str, _Lease] = {}
        self._local = LocalRateLimiter(clock)

    async def acquire(self, key: str, limit: RateLimit, tokens: int) -> float:
        lease, now = self._leases.setdefault(key, _Lease()), self._clock.time()
        if now >= lease.until:
            lease.requests, lease.tokens = 0, min(lease.tokens, 0)
        if now >= lease.until or lease.requests < 1 or (limit.tokens is not None and lease.tokens < tokens):
            try:
                if wait := await self._renew_lease(key, limit, lease, tokens):
                    return wait
            except StoreError as error:
                logger.warning("rate limit not shared: error=%s", error)
                return await self._local.acquire(key, limit, tokens)
        lease.requests -= 1
        lease.tokens -= tokens
        return 0.0

    def settle(self, key: str, limit: RateLimit, tokens: int) -> None:
        self._leases.setdefault(key, _Lease()).tokens -= tokens

    async def cool_down(self, key: str, seconds: float) -> None:
        await self._local.cool_down(key, seconds)
        self._leases.setdefault(key, _Lease()).until = 0.0
        until = self._clock.time() + seconds
        try:
            await self._update(key, lambda state: state.with_cooldown(until))
        except StoreError as error:
            logger.warning("cool-down not shared: error=%s", error)

    async def _renew_lease(self, key: str, limit: RateLimit, lease: _Lease, tokens: int) -> float:
        """Reserve capacity for one second, or more if needed, and settle earlier overspending."""
        requests = math.ceil((limit.requests or 3600) / 60)
        tokens_wanted = max(tokens - lease.tokens, math.ceil((limit.tokens or 0) / 60))
        now = self._clock.time()

        def charge(state: BucketState) -> BucketState | None:
            return None if state.wait(now) else state.charge(limit, now, requests, tokens_wanted)

        state = await self._update(key, charge)
        if state is not None:
            return state.wait(now)
        lease.requests += requests
        lease.tokens += tokens_wanted
        lease.until = now + _LEASE_SECONDS
        return 0.0

    async def _update(self, key: str, change: Update) -> BucketState | None:
        """Apply a change with optimistic locking; return the current state if it cannot be applied."""
        for _ in range(_MAX_ATTEMPTS):
            record = await self._store.record(self._tenant, "pace", key)
            state = msgspec.json.decode(record.body, type=BucketState) if record else BucketState()
            updated = change(state)
            if updated is None:
                return state
            if updated == state:
                return None
            try:
                version = record.version if record else 0
                await self._store.commit(self._tenant, [PutRecord("pace", key, encode(updated), version)])
            except Conflict:
                continue
            return None
        raise StoreError(f"too many concurrent updates of the rate limit of {key}")
