"""The account of keys that many processes share, in their store.

A process takes a second's worth of a pace at a time and spends it by itself, so that a request rarely waits for the
store; what it does not spend in time is lost. A store that is away stops nobody: each process then keeps an account.
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
"""Seconds' worth of a pace that may be used in one go."""
_PART = re.compile(r"(requests|tokens|at_once)=([0-9][0-9_]*)")


class RateLimit(msgspec.Struct, frozen=True):
    """Requests and tokens in a minute, requests at a time; None is as many as one likes."""

    requests: int | None = None
    tokens: int | None = None
    at_once: int | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            limit = getattr(self, name)
            if limit is not None and limit < 1:
                raise ConfigError(f"Pace({name}=…) must be at least 1, not {limit}")


NO_LIMIT = RateLimit()


class Due(msgspec.Struct, frozen=True):
    """Till when what was asked so far would have taken at the pace: seconds since 1970, for requests and for tokens.
    `rest` is how long the key is to be left alone."""

    requests: float = 0.0
    tokens: float = 0.0
    rest: float = 0.0

    def wait(self, now: float) -> float:
        """Seconds until the key may be used; 0 is now."""
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
    """Keeps account of keys, each named by what does not give it away."""

    async def take(self, key: str, pace: RateLimit, tokens: int) -> float:
        """0 if the key may be used now, and the use is counted; else the seconds to wait, and nothing is counted."""
        ...

    def spent(self, key: str, pace: RateLimit, tokens: int) -> None:
        """So many tokens more than was thought, or fewer."""
        ...

    async def rest(self, key: str, seconds: float) -> None:
        """Leave a key alone for so long."""
        ...


class LocalRateLimiter:
    """The account of one process."""

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
    """`openai requests=500 tokens=200000 at_once=8`, one for each provider; ConfigError says what is wrong with one."""
    found: dict[str, RateLimit] = {}
    for line in lines:
        provider, *parts = line.split()
        matches = [_PART.fullmatch(part) for part in parts]
        limits = {match[1]: int(match[2]) for match in matches if match}
        if not parts or None in matches or len(limits) < len(parts) or provider in found:
            raise ConfigError(
                f"{line!r} is no limit of a provider: write each provider once, like "
                "'openai requests=500 tokens=200000 at_once=8'; requests and tokens are those of a minute"
            )
        found[provider] = RateLimit(**limits)
    return found


logger = logging.getLogger(__name__)
_LASTS = 2.0
"""Seconds in which a process must spend what it took, or look again whether a key rests."""
_TRIES = 20
Change: TypeAlias = Callable[[Due], Due | None]


class _Share:
    """What a process has taken and not spent; tokens may be less than none."""

    __slots__ = ("requests", "tokens", "until")

    def __init__(self) -> None:
        self.requests = 0
        self.tokens = 0
        self.until = 0.0


class SharedLedger:
    """Keys by their accounts in a store; they are the house's own, whichever tenant uses them."""

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
                logger.warning("a key is used at the pace of this process alone: %s", error)
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
            logger.warning("only this process knows that a key rests: %s", error)

    async def _fetch(self, key: str, pace: RateLimit, share: _Share, tokens: int) -> float:
        """Take a second's worth, or what is needed if that is more, and pay what was spent beyond the last."""
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
        """Make a change that nobody else makes at the same time. What stands in its way, if it makes none."""
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
        raise StoreError(f"too many change the account of {key} at once")
