"""Writes what runs say: often enough that little is lost, seldom enough that it costs little."""

import asyncio
import logging
from collections.abc import Callable

from atlas_agents.core.clock import SYSTEM_CLOCK, Clock
from atlas_agents.core.errors import StoreBusy, StoreError, StoreFull, StoreLost
from atlas_agents.core.store import ReserveEvents, Store, Write
from atlas_agents.gateway.runlog import RunLog

logger = logging.getLogger(__name__)
PAUSE = 0.075
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
_LONGEST = 2.0


class LogWriter:
    """One for all runs: what they said since the last time goes into one commit."""

    def __init__(
        self,
        store: Store,
        tenant: str,
        wrote: Callable[[RunLog], None],
        clock: Clock = SYSTEM_CLOCK,
        pause: float = PAUSE,
    ) -> None:
        self._store = store
        self._tenant = tenant
        self._wrote = wrote
        self._clock = clock
        self._between = pause
        self._dirty: dict[str, RunLog] = {}
        self._some = asyncio.Event()
        self._soon = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, log: RunLog, *, at_once: bool) -> None:
        """Have a run's new events written, at once or with the next ones."""
        self._dirty[log.run_id] = log
        self._idle.clear()
        self._some.set()
        if at_once:
            self._soon.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._some.wait()
            if not self._soon.is_set():
                await self._pause()
            self._some.clear()
            self._soon.clear()
            logs, self._dirty = list(self._dirty.values()), {}
            await self._write(logs)
            if not self._dirty:
                self._idle.set()

    async def flush(self, limit: float) -> None:
        """Have everything written, if that can be done in so many seconds."""
        self._soon.set()
        try:
            async with asyncio.timeout(limit):
                await self._idle.wait()
        except TimeoutError:
            logger.error("what %d runs said last could not be written", len(self._dirty))

    async def _pause(self) -> None:
        """Wait for more to write, unless something must not wait."""
        alarm = self._clock.call_later(self._between, self._soon.set)
        await self._soon.wait()
        alarm.cancel()

    async def _write(self, logs: list[RunLog]) -> None:
        """All in one commit; where one of them cannot be written, each in its own."""
        tries = 0
        while logs:
            try:
                await self._commit(logs)
                return
            except (StoreBusy, StoreFull, StoreLost) as trouble:
                if tries % 15 == 0:
                    logger.warning("what runs say waits until it can be written: %s", trouble)
                await self._clock.sleep(_PAUSES[tries] if tries < len(_PAUSES) else _LONGEST)
                tries += 1
            except StoreError as refusal:
                if len(logs) == 1:
                    logger.warning("what run %s says is not kept any more: %s", logs[0].run_id, refusal)
                    logs[0].give_up()
                    self._wrote(logs[0])
                    return
                for log in logs:
                    await self._write([log])
                return

    async def _commit(self, logs: list[RunLog]) -> None:
        parts = [(log, log.writes()) for log in logs]
        writes: list[Write] = [write for _, part in parts for write in part]
        if not writes:
            return
        results = await self._store.commit(self._tenant, writes)
        place = 0
        for log, part in parts:
            log.wrote(results[place] if part and isinstance(part[0], ReserveEvents) else None)
            place += len(part)
            self._wrote(log)
