"""Fetches runs out of the queue and has them run, so many at once, until it is told to stop."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from atlas_agents.dispatch.queue import ConnectorException, Job, Queue

logger = logging.getLogger(__name__)
T = TypeVar("T")
_BEATS = 4
"""So many heartbeats are missed before a worker is taken for lost."""
_LOOK = 5.0
_PAUSE = 0.5
_RECHECK = 30.0
"""Seconds after a failed fetch during which this worker looks for jobs it was given without learning of it."""


class Worker:
    """`perform` runs a run to its end; False if it is not over, and somebody else is to go on with it. A lost database
    ends neither the worker nor its runs: both go on when it is back."""

    def __init__(self, queue: Queue, perform: Callable[[str], Awaitable[bool]], at_once: int) -> None:
        self._queue = queue
        self._perform = perform
        self._room = asyncio.Semaphore(at_once)
        self.id: int | None = None
        """Its number in the queue."""
        self.on_registered: Callable[[], None] = lambda: None
        self.on_left: Callable[[str], Awaitable[None]] = _nobody
        """Called with a run that others may have now."""
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._held: set[int | None] = set()
        self._recheck_until = 0.0
        self._beating: asyncio.Task[None] | None = None
        self._beaten = time.monotonic()
        self.taken = 0
        """Runs that were fetched, ever; so are the next two."""
        self.finished = 0
        self.given_back = 0

    @property
    def at_hand(self) -> int:
        """Runs that are under way here."""
        return len(self._tasks)

    @property
    def silent(self) -> float:
        """Seconds since this worker could last say that it is well."""
        return time.monotonic() - self._beaten

    def wake(self) -> None:
        """There may be something to do."""
        self._news.set()

    async def run(self) -> None:
        """Until cancelled; runs that are under way are not touched by that."""
        self.id = id = await _patiently(self._queue.register)
        self._beaten = time.monotonic()
        self._beating = asyncio.create_task(self._beat(id))  # until `finish`: as long as runs are under way
        self.on_registered()
        while True:
            await self._room.acquire()
            job = await self._next(id)
            self.taken += 1
            self._held.add(job.id)
            task = asyncio.create_task(self._do(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: self._room.release())

    async def finish(self, limit: float) -> None:
        """After the end: what was not over is given to others, and the worker signs off."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=limit)
        if self._beating is None or self.id is None:
            return
        self._beating.cancel()
        try:
            async with asyncio.timeout(limit):
                await self._queue.unregister(self.id)
        except (ConnectorException, TimeoutError) as trouble:
            logger.warning("the worker could not sign off: %s", trouble)

    async def _next(self, id: int) -> Job:
        while True:
            self._news.clear()
            job = await _patiently(lambda: self._fetch(id))
            if job is not None:
                return job
            try:
                async with asyncio.timeout(_LOOK):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _fetch(self, id: int) -> Job | None:
        """Fetch the next job. If the answer to a fetch was lost, the server may have assigned a job to this worker that
        no one else would ever run: for a while, look for such jobs first."""
        if time.monotonic() < self._recheck_until:
            held = set(self._held)
            for job in await self._queue.held_by(id):
                if job.id not in held:
                    return job
        try:
            return await self._queue.fetch(id)
        except ConnectorException:
            self._recheck_until = time.monotonic() + _RECHECK
            raise

    async def _do(self, job: Job) -> None:
        run_id, over, broken = str(job.task_kwargs["run_id"]), False, False
        try:
            over = await self._perform(run_id)
        except Exception:
            broken = True
            logger.exception("the run %s could not be run here", run_id)
            await asyncio.sleep(_PAUSE)
        await _patiently(lambda: self._queue.finish(job) if over else self._queue.put_back(job))
        self._held.discard(job.id)
        self.finished += over
        self.given_back += not over
        if not over and not broken:
            await self.on_left(run_id)

    async def _beat(self, id: int) -> None:
        while True:
            await asyncio.sleep(self._queue.lost_after / _BEATS)
            try:
                await self._queue.beat(id)
                self._beaten = time.monotonic()
            except ConnectorException as trouble:
                logger.warning("this worker cannot say that it is well: %s", trouble.__cause__ or trouble)


async def _nobody(run_id: str) -> None:
    """Nobody is told."""


async def _patiently(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Until the database is there."""
    while True:
        try:
            return await work()
        except ConnectorException as trouble:
            logger.warning("the queue cannot be reached at the moment: %s", trouble.__cause__ or trouble)
            await asyncio.sleep(_PAUSE)
