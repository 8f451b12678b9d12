"""Runs that other processes run, heard of through the store: read on whenever there is news of them."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

from atlas_agents.core.errors import StoreError
from atlas_agents.core.store import OPEN, RunRow, Store
from atlas_agents.dispatch.notices import Notice
from atlas_agents.dispatch.port import Hear
from atlas_agents.gateway.protocol.events import LAST_WORDS, RunEvent, event_of, name_of
from atlas_agents.gateway.retell import Retelling
from atlas_agents.gateway.runlog import RunLog
from atlas_agents.gateway.runs import Runs

logger = logging.getLogger(__name__)
_PAGE = 256
_PAUSE = 0.5
_LOOK = 0.05
_GRACE = 3.0
"""Seconds that the owner of a run has for its last word after its end is written; then it is said in its place."""


class FarRuns:
    """Follows those runs that somebody here listens to, or waits for; of the others it knows that they are open."""

    def __init__(self, runs: Runs, store: Store, tenant: str) -> None:
        self._runs = runs
        self._store = store
        self._tenant = tenant
        self._open: dict[str, str] = {}
        """The sessions of open runs, as far as they are known."""
        self._busy: Counter[str] = Counter()
        self._reading: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._heard: dict[str, list[tuple[int, Retelling]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def attend(self, run_id: str, session: str) -> RunLog:
        """Follow a run from its first word on."""
        log = self._runs.get(run_id)
        if log is None:
            self._know(run_id, session)
            log = self._runs.open(RunLog(run_id, session))
            self._runs.on_change(session)
            self._look(log)
        return log

    async def attend_open(self, rows: Sequence[RunRow]) -> None:
        """Follow these, and wait until all that they have said so far is heard."""
        reading = [self._reading.get(self.attend(row.id, row.session).run_id) for row in rows]
        if waiting := [task for task in reading if task is not None]:
            await asyncio.wait(waiting)

    def runs_in(self, session: str) -> bool:
        return self._busy[session] > 0

    async def feed(self, row: RunRow, hear: Hear) -> None:
        """Tell a listener all that a run says, from the first word to the last."""
        retelling, seq = Retelling(row.session, hear), 0
        while True:
            log = self._runs.get(row.id)
            rows = await self._store.events(self._tenant, row.id, after=seq, limit=_PAGE)
            for event in rows:
                if (said := event_of(event.body)) is not None:
                    retelling.tell(said)
                seq = event.seq
            if rows and name_of(rows[-1].body) in LAST_WORDS:
                return
            if rows:
                continue
            log = log or self.attend(row.id, row.session)
            if self._runs.get(row.id) is log and log.told <= seq:
                break
        self._heard.setdefault(row.id, []).append((seq, retelling))
        await self._runs.ended(row.id)

    async def last_words(self, row: RunRow) -> None:
        """Leave the owner of a run that has just ended the time to say its last word itself."""
        began, ended = time.monotonic(), (row.ended_at or 0) / 1000
        while row.epoch and time.monotonic() - began < _GRACE and abs(time.time() - ended) < 20 * _GRACE:
            rows = await self._store.events(self._tenant, row.id, after=max(0, row.events - 1024))
            if rows and name_of(rows[-1].body) in LAST_WORDS:
                return
            await asyncio.sleep(_LOOK)

    def notice(self, notice: Notice) -> None:
        """Another process, or this one, has committed something."""
        log = self._runs.get(notice.id)
        match notice.kind:
            case "begun" | "stop":
                if notice.session:
                    self._know(notice.id, notice.session)
                self._wanted(notice.id)
            case "events" if log is not None:
                self._look(log)
            case "events":
                self._wanted(notice.id)
            case "ended":
                session = self._forget(notice.id) or notice.session
                if log is not None:
                    self._spawn(self._heal(log))
                elif session:
                    self._runs.on_change(session)
            case _:
                pass

    def renewed(self) -> None:
        """News may have been missed: look at everything."""
        self._spawn(self._look_round())

    async def _look_round(self) -> None:
        rows = [row for row in await self._store.open_runs() if row.tenant == self._tenant]
        self._open.clear()
        self._busy.clear()
        for row in rows:
            self._know(row.id, row.session)
            if self._runs.listened(row.session):
                self.attend(row.id, row.session)
        for log in self._runs.all:
            self._look(log)
            if log.run_id not in self._open:
                self._spawn(self._heal(log))

    def _wanted(self, run_id: str) -> None:
        """Follow a run if somebody hears its session."""
        session = self._open.get(run_id)
        if session is None:
            self._spawn(self._find(run_id))
        elif self._runs.listened(session):
            self.attend(run_id, session)

    async def _find(self, run_id: str) -> None:
        row = await self._store.run(self._tenant, run_id)
        if row is not None and row.status in OPEN:
            self._know(run_id, row.session)
            self._wanted(run_id)

    def _know(self, run_id: str, session: str) -> None:
        if run_id not in self._open:
            self._open[run_id] = session
            self._busy[session] += 1

    def _forget(self, run_id: str) -> str:
        session = self._open.pop(run_id, "")
        if session:
            self._busy -= Counter([session])
        return session

    async def _heal(self, log: RunLog) -> None:
        """A run has ended: if its last word does not come, it is said here."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await self._runs.ended(log.run_id)
        if log.ended:
            return
        row = await self._store.run(self._tenant, log.run_id)
        if row is not None and row.status not in OPEN:
            await self._runs.last_number(row)
            self._look(log)

    def _look(self, log: RunLog) -> None:
        """Read on; what is written while that is done is read, too."""
        if log.run_id in self._reading:
            self._again.add(log.run_id)
            return
        self._reading[log.run_id] = asyncio.create_task(self._read(log))

    async def _read(self, log: RunLog) -> None:
        try:
            await self._read_on(log)
        finally:  # at once: what is told between the end of a task and its callbacks would be read by nobody
            self._reading.pop(log.run_id, None)

    async def _read_on(self, log: RunLog) -> None:
        while not log.ended:
            self._again.discard(log.run_id)
            try:
                rows = await self._store.events(self._tenant, log.run_id, after=log.seq, limit=_PAGE)
            except StoreError as trouble:
                logger.warning("what a run says elsewhere cannot be read at the moment: %s", trouble)
                await asyncio.sleep(_PAUSE)
                continue
            if rows:
                self._tell(log, self._runs.heard(log, rows))
            if len(rows) < _PAGE and log.run_id not in self._again:
                return  # of what is written later there is news

    def _tell(self, log: RunLog, events: Sequence[tuple[int, RunEvent]]) -> None:
        for after, retelling in self._heard.get(log.run_id, ()):
            for seq, event in events:
                if seq > after:
                    retelling.tell(event)
        if log.ended:
            self._heard.pop(log.run_id, None)
            self._forget(log.run_id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        async def done() -> None:
            try:
                await work
            except StoreError as trouble:
                logger.warning("news of runs elsewhere could not be looked at: %s", trouble)

        task = asyncio.create_task(done())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: work.close())  # of one that was ended before it began

    async def close(self) -> None:
        tasks = [*self._tasks, *self._reading.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
