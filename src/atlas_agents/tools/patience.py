"""Writing and reading that outlast a store which is full, locked or gone: what has happened is kept until it can be
written."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, repeat
from typing import Any, TypeVar

from atlas_agents.core.clock import Clock
from atlas_agents.core.errors import Conflict, Fenced, StoreBusy, StoreError, StoreFull, StoreLost
from atlas_agents.core.store import AddJournal, Store, Write

logger = logging.getLogger(__name__)
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
_LONGEST = 2.0
T = TypeVar("T")


class Left(StoreError):
    """The program ends: nothing more is written, and the run goes on in its next life."""


class Patience:
    """Commits until it is done. Only `end`, or giving up the wait, ends it before."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.ended = False

    def end(self) -> None:
        self.ended = True

    async def commit(self, tenant: str, writes: Sequence[Write], step: AddJournal | None = None) -> list[Any]:
        """What the writes came to. After a connection that broke in mid-commit the step tells whether it was written;
        then nothing is known of what else came of it."""
        unclear = False
        for tries, pause in enumerate(chain(_PAUSES, repeat(_LONGEST))):
            if self.ended:
                raise Left("the program is closing; the turn goes on when it is back")
            try:
                return await self._store.commit(tenant, writes)
            except (StoreBusy, StoreFull, StoreLost) as trouble:
                unclear = unclear or (isinstance(trouble, StoreLost) and trouble.unclear)
                if tries % 15 == 0:
                    logger.warning("a step waits until it can be written: %s", trouble)
            except (Conflict, Fenced) as refused:
                if unclear and step is not None and await self._written(tenant, step):
                    return [None] * len(writes)
                self.ended = self.ended or isinstance(refused, Fenced)  # it is another's now
                raise
            await self._clock.sleep(pause)
        raise AssertionError("unreachable")

    async def read(self, rows: Callable[[], Awaitable[T]]) -> T:
        """What is there, as soon as it can be read."""
        for pause in chain(_PAUSES, repeat(_LONGEST)):
            if self.ended:
                raise Left("the program is closing; the turn goes on when it is back")
            try:
                return await rows()
            except (StoreBusy, StoreLost) as trouble:
                logger.warning("a turn waits until it can be read: %s", trouble)
            await self._clock.sleep(pause)
        raise AssertionError("unreachable")

    async def _written(self, tenant: str, step: AddJournal) -> bool:
        rows = await self.read(lambda: self._store.journal(tenant, step.run_id))
        return any((row.kind, row.key, row.payload) == (step.kind, step.key, step.payload) for row in rows)
