"""The account of keys that many processes share, in their store.

A process takes a second's worth of a pace at a time and spends it by itself, so that a request rarely waits for the
store; what it does not spend in time is lost. A store that is away stops nobody: each process then keeps an account.
"""

import logging
import math
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import Conflict, StoreError
from atlas_agents.core.json import encode
from atlas_agents.core.records import PutRecord
from atlas_agents.core.store import Store
from atlas_agents.providers.pace import Due, LocalLedger, Pace

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
        self._alone = LocalLedger(clock)

    async def take(self, key: str, pace: Pace, tokens: int) -> float:
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

    def spent(self, key: str, pace: Pace, tokens: int) -> None:
        self._shares.setdefault(key, _Share()).tokens -= tokens

    async def rest(self, key: str, seconds: float) -> None:
        await self._alone.rest(key, seconds)
        self._shares.setdefault(key, _Share()).until = 0.0
        until = self._clock.time() + seconds
        try:
            await self._change(key, lambda due: due.rested(until))
        except StoreError as error:
            logger.warning("only this process knows that a key rests: %s", error)

    async def _fetch(self, key: str, pace: Pace, share: _Share, tokens: int) -> float:
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
