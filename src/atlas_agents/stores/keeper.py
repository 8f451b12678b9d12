"""Who removes what is kept no longer: a little at a time, and in a cluster one of all at a time."""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import get_args

import msgspec

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import Conflict, StoreError
from atlas_agents.core.forgetting import Forget, Forgettable, Forgotten
from atlas_agents.core.records import PutRecord
from atlas_agents.core.store import Store

logger = logging.getLogger(__name__)
KINDS: tuple[Forgettable, ...] = get_args(Forgettable)
ROUND = 3600.0
"""Seconds from one round to the next."""
FIRST = 60.0
"""Seconds from the start to the first one."""
_PAUSE = 0.05
_DAY = 86_400_000


class Keep(msgspec.Struct, frozen=True):
    """For how many days after its end a run's events and its journal are kept; 0 is for ever."""

    events: int = 30
    journal: int = 0

    def before(self, what: Forgettable, now: float) -> int | None:
        """The moment before which a run must have ended, in milliseconds; None if nothing is to be removed."""
        days: int = getattr(self, what)
        return int(now * 1000) - days * _DAY if days else None


class _Claim(msgspec.Struct, frozen=True):
    """Who looks after it now; `at` is when that began."""

    at: int


class Keeper:
    """Audit rows, messages, approvals and usage are never among what it removes."""

    def __init__(self, store: Store, tenant: str, keep: Keep, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._tenant = tenant
        self._keep = keep
        self._clock = clock

    async def run(self) -> None:
        """Until cancelled: a round every hour, by whichever process of the cluster comes first."""
        wait = FIRST
        while any(self._keep.before(what, 0) is not None for what in KINDS):
            await self._clock.sleep(wait)
            wait = ROUND
            try:
                await self.round()
            except StoreError as trouble:
                logger.warning("what is kept no longer is removed another time: %s", trouble)

    async def round(self) -> bool:
        """Remove what is due, unless somebody has begun to within the hour; whether it was our turn.

        Should a round take longer than that, a second one begins beside it: each removes what the other has left.
        """
        if not await self._claimed():
            return False
        for what in KINDS:
            gone = await self.forget(what, pause=_PAUSE)
            if gone:
                fields = {"runs": gone.runs, "rows": gone.rows, "bytes": gone.size}
                logger.info("removed %s that are kept no longer", what, extra={"fields": fields})
        return True

    async def forget(
        self, what: Forgettable, *, pause: float = 0.0, told: Callable[[Forgotten], object] | None = None
    ) -> Forgotten:
        """Remove it now, in many small commits with a pause for others in between; `told` hears the sum so far."""
        total = Forgotten()
        before = self._keep.before(what, self._clock.time())
        while before is not None:
            (gone,) = await self._store.commit(self._tenant, [Forget(what, before)])
            if not gone:
                break
            total += gone
            if told is not None:
                told(total)
            await self._clock.sleep(pause)
        return total

    async def due(self, what: Forgettable) -> Forgotten:
        """How much there is to remove now."""
        before = self._keep.before(what, self._clock.time())
        return Forgotten() if before is None else await self._store.forgettable(self._tenant, what, before)

    async def _claimed(self) -> bool:
        """Only one can change a record of this version; a clock that was put back does not make it wait for ever."""
        now = int(self._clock.time() * 1000)
        found = await self._store.record(self._tenant, "chore", "forget")
        if found is not None and abs(now - msgspec.json.decode(found.body, type=_Claim).at) < ROUND * 1000:
            return False
        claim = PutRecord("chore", "forget", msgspec.json.encode(_Claim(now)), found.version if found else 0)
        with suppress(Conflict):
            await self._store.commit(self._tenant, [claim])
            return True
        return False
