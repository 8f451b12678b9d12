"""Retention job: deletes expired events, journals and counters in small batches.

In a cluster one process at a time runs it.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import get_args

import msgspec

from atlas_agents.core.aio import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import Conflict, StoreError
from atlas_agents.core.store import Prunable, Prune, Pruned, PutRecord, Store

logger = logging.getLogger(__name__)
KINDS: tuple[Prunable, ...] = get_args(Prunable)
INTERVAL = 3600.0
"""Seconds between two rounds."""
FIRST_DELAY = 60.0
"""Seconds from the start of the process to the first round."""
_BATCH_DELAY = 0.05
_DAY = 86_400_000
_CLAIM = ("chore", "forget")
"""Kind and key of the record, as released."""


class RetentionPolicy(msgspec.Struct, frozen=True):
    """Days to keep the events and the journal of a run after its end, and the counters of a day; 0 means forever."""

    events: int = 30
    journal: int = 0
    counters: int = 62
    """Longer than a month: those of the current month are always kept."""

    def cutoff(self, what: Prunable, now: float) -> int | None:
        """Return the time (milliseconds) before which a run, or a day, must have ended; None to keep all."""
        days: int = getattr(self, what)
        return int(now * 1000) - days * _DAY if days else None


class _Claim(msgspec.Struct, frozen=True):
    """The record of the latest round in the cluster: its start time."""

    at: int


class RetentionJob:
    """Deletes expired events, journals and counters; never audit rows, messages, approvals or usage."""

    def __init__(self, store: Store, tenant: str, policy: RetentionPolicy, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._tenant = tenant
        self._policy = policy
        self._clock = clock

    async def run(self) -> None:
        """Run a round every hour until cancelled."""
        wait = FIRST_DELAY
        while any(self._policy.cutoff(what, 0) is not None for what in KINDS):
            await self._clock.sleep(wait)
            wait = INTERVAL
            try:
                await self.run_round()
            except StoreError as error:
                logger.warning("retention round failed, the next one continues: %s", error)

    async def run_round(self) -> bool:
        """Delete what has expired, unless another process started a round within the hour. Returns whether it ran.

        A round that takes longer than an hour may overlap with the next; each deletes what the other has left.
        """
        if not await self._claim_round():
            return False
        for what in KINDS:
            pruned = await self.prune(what, delay=_BATCH_DELAY)
            if pruned:
                fields = {"runs": pruned.runs, "rows": pruned.rows, "bytes": pruned.size}
                logger.info("expired %s deleted", what, extra={"fields": fields})
        return True

    async def prune(
        self, what: Prunable, *, delay: float = 0.0, on_progress: Callable[[Pruned], object] | None = None
    ) -> Pruned:
        """Delete now, in small commits with a pause between them. `on_progress` receives the running total."""
        total = Pruned()
        cutoff = self._policy.cutoff(what, self._clock.time())
        while cutoff is not None:
            (pruned,) = await self._store.commit(self._tenant, [Prune(what, cutoff)])
            if not pruned:
                break
            total += pruned
            if on_progress is not None:
                on_progress(total)
            await self._clock.sleep(delay)
        return total

    async def due(self, what: Prunable) -> Pruned:
        """Return how much `prune` would delete now."""
        cutoff = self._policy.cutoff(what, self._clock.time())
        return Pruned() if cutoff is None else await self._store.prunable(self._tenant, what, cutoff)

    async def _claim_round(self) -> bool:
        """Claim the round by compare-and-set on a record. A clock that was set back does not block it forever."""
        now = int(self._clock.time() * 1000)
        found = await self._store.record(self._tenant, *_CLAIM)
        if found is not None and abs(now - msgspec.json.decode(found.body, type=_Claim).at) < INTERVAL * 1000:
            return False
        claim = PutRecord(*_CLAIM, msgspec.json.encode(_Claim(now)), found.version if found else 0)
        with suppress(Conflict):
            await self._store.commit(self._tenant, [claim])
            return True
        return False
