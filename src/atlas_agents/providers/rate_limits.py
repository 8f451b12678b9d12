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


class RateLimit(msgspec.Struct, frozen=True):
    """Rate limit of a key: requests and tokens per minute, concurrent requests. None means unlimited."""

    requests: int | None = None
    tokens: int | None = None
    at_once: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ConfigError(f"invalid RateLimit({name}={limit}): must be at least 1")


NO_LIMIT = RateLimit()


class Due(msgspec.Struct, frozen=True):
    """Token bucket state of a key: the Unix time at which its requests and tokens so far are paid off at the limit's
    rate.

    `rest` is the end of its cool-down.
    """

    requests: float = 0.0
    tokens: float = 0.0
    rest: float = 0.0

    def wait(self, now: float) -> float:
        """Return the seconds until the key may be used; 0 means now."""
        return max(self.rest - now, self.requests - now - BURST, self.tokens - now - BURST, 0.0)

    def charged(self, pace: RateLimit, now: float, requests: int, tokens: int) -> "Due":
        return Due(
            _later(self.requests, now, requests, pace.requests),
            _later(self.tokens, now, tokens, pace.tokens),
            self.rest,
        )

    def rested(self, until: float) -> "Due":
        return msgspec.structs.replace(self, rest=max(self.rest, until))


def _later(due: float, now: float, count: int, a_minute: int | None) -> float:
    return due if a_minute is None else max(due, now) + count * 60 / a_minute


class RateLimiter(Protocol):
    """Rate limiter port. Keys are identified by a hash, never by the secret itself."""

    async def take(self, key: str, pace: RateLimit, tokens: int) -> float:
        """Reserve capacity and return 0, or return the seconds to wait and reserve nothing."""
        ...

    def spent(self, key: str, pace: RateLimit, tokens: int) -> None:
        """Correct the reservation by the difference between real and estimated tokens."""
        ...

    async def rest(self, key: str, seconds: float) -> None:
        """Put a key into cool-down."""
        ...


class LocalRateLimiter:
    """Rate limiter of one process."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._due: dict[str, Due] = {}

    async def take(self, key: str, pace: RateLimit, tokens: int) -> float:
        due, now = self._due.get(key, Due()), self._clock.time()
        wait = due.wait(now)
        if not wait:
            self._due[key] = due.charged(pace, now, 1, tokens)
        return wait

    def spent(self, key: str, pace: RateLimit, tokens: int) -> None:
        self._due[key] = self._due.get(key, Due()).charged(pace, self._clock.time(), 0, tokens)

    async def rest(self, key: str, seconds: float) -> None:
        self._due[key] = self._due.get(key, Due()).rested(self._clock.time() + seconds)


def read_paces(lines: tuple[str, ...]) -> dict[str, RateLimit]:
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


logger = logging.getLogger(__name__)
_LASTS = 2.0
"""Seconds after which reserved capacity expires and a cool-down is checked again."""
_TRIES = 20
Change: TypeAlias = Callable[[Due], Due | None]


class _Share:
    """Capacity that a process has reserved and not spent; tokens may be negative."""

    __slots__ = ("requests", "tokens", "until")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self.until = 0.0


class SharedLedger:
    """Rate limiter shared through a store; keys belong to the deployment, whichever tenant uses them."""

    def __init__(self, store: Store, *, tenant: str = "default", clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._tenant = tenant
        self._clock = clock
        self._shares: dict[str, _Share] = {}
        self._alone = LocalRateLimiter(clock)

    async def take(self, key: str, pace: RateLimit, tokens: int) -> float:
        share, now = self._shares.setdefault(key, _Share()), self._clock.time()
        if now >= share.until:
            share.requests, share.tokens = 0, min(share.tokens, 0)
        if now >= share.until or share.requests < 1 or (pace.tokens is not None and share.tokens < tokens):
            try:
                if wait := await self._fetch(key, pace, share, tokens):
                    return wait
            except StoreError as error:
                logger.warning("rate limit not shared: error=%s", error)
                return await self._alone.take(key, pace, tokens)
        share.requests -= 1
        share.tokens -= tokens
        return 0.0

    def spent(self, key: str, pace: RateLimit, tokens: int) -> None:
        self._shares.setdefault(key, _Share()).tokens -= tokens

    async def rest(self, key: str, seconds: float) -> None:
        await self._alone.rest(key, seconds)
        self._shares.setdefault(key, _Share()).until = 0.0
        until = self._clock.time() + seconds
        try:
            await self._change(key, lambda due: due.rested(until))
        except StoreError as error:
            logger.warning("cool-down not shared: error=%s", error)

    async def _fetch(self, key: str, pace: RateLimit, share: _Share, tokens: int) -> float:
        """Reserve capacity for one second, or more if needed, and settle what was overspent before."""
        requests = math.ceil((pace.requests or 3600) / 60)
        wanted = max(tokens - share.tokens, math.ceil((pace.tokens or 0) / 60))
        now = self._clock.time()

        def charged(due: Due) -> Due | None:
            return None if due.wait(now) else due.charged(pace, now, requests, wanted)

        due = await self._change(key, charged)
        if due is not None:
            return due.wait(now)
        share.requests += requests
        share.tokens += wanted
        share.until = now + _LASTS
        return 0.0

    async def _change(self, key: str, change: Change) -> Due | None:
        """Apply a change with optimistic locking; return the current state if it cannot be applied."""
        for _ in range(_TRIES):
            record = await self._store.record(self._tenant, "pace", key)
            due = msgspec.json.decode(record.body, type=Due) if record else Due()
            changed = change(due)
            if changed is None:
                return due
            if changed == due:
                return None
            try:
                version = record.version if record else 0
                await self._store.commit(self._tenant, [PutRecord("pace", key, encode(changed), version)])
            except Conflict:
                continue
            return None
        raise StoreError(f"too many concurrent updates of the rate limit of {key}")
