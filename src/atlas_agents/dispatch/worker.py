"""Fetches runs out of the queue and has them run, so many at once, until it is told to stop."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from atlas_agents.dispatch.queue import ConnectorException, Job, Queue

logger = logging.getLogger(__name__)
T = TypeVar("T")
_BEAT = 2.0
_LOOK = 5.0
_PAUSE = 0.5


class Worker:
    """`perform` runs a run to its end; False if it is not over, and somebody else is to go on with it. A lost database
    ends neither the worker nor its runs: both go on when it is back."""

    def __init__(self, queue: Queue, perform: Callable[[str], Awaitable[bool]], at_once: int) -> None:
        self._queue = queue
        self._perform = perform
        self._room = asyncio.Semaphore(at_once)
        self._id = 0
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
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
        self._id = await _patiently(self._queue.register)
        self._beaten = time.monotonic()
        self._beating = asyncio.create_task(self._beat())  # until `finish`: as long as runs are under way
        while True:
            await self._room.acquire()
            job = await self._next()
            self.taken += 1
            task = asyncio.create_task(self._do(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(lambda _: self._room.release())

    async def finish(self, limit: float) -> None:
        """After the end: what was not over is given to others, and the worker signs off."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=limit)
        if self._beating is None:
            return
        self._beating.cancel()
        try:
            async with asyncio.timeout(limit):
                await self._queue.unregister(self._id)
        except (ConnectorException, TimeoutError) as trouble:
            logger.warning("the worker could not sign off: %s", trouble)

    async def _next(self) -> Job:
        while True:
            self._news.clear()
            job = await _patiently(lambda: self._queue.fetch(self._id))
            if job is not None:
                return job
            try:
                async with asyncio.timeout(_LOOK):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _do(self, job: Job) -> None:
        over = False
        try:
            over = await self._perform(str(job.task_kwargs["run_id"]))
        except Exception:
            logger.exception("the run %s could not be run here", job.task_kwargs.get("run_id"))
            await asyncio.sleep(_PAUSE)
        await _patiently(lambda: self._queue.finish(job) if over else self._queue.put_back(job))
        self.finished += over
        self.given_back += not over

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_BEAT)
            try:
                await self._queue.beat(self._id)
                self._beaten = time.monotonic()
            except ConnectorException as trouble:
                logger.warning("this worker cannot say that it is well: %s", trouble.__cause__ or trouble)


async def _patiently(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Until the database is there."""
    while True:
        try:
            return await work()
        except ConnectorException as trouble:
            logger.warning("the queue cannot be reached at the moment: %s", trouble.__cause__ or trouble)
            await asyncio.sleep(_PAUSE)
