"""Worker thread that takes all waiting jobs at once and reports the results to the callers' event loops."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from atlas_agents.core.errors import StoreError

J = TypeVar("J")


class Job(Generic[J]):
    """A request, and the future of its caller."""

    __slots__ = ("error", "future", "loop", "request", "result")

    def __init__(self, request: J, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        """Resolve the future with the result or the error, unless the caller was cancelled. Runs on the job's loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class BatchThread(Generic[J]):
    """`work` is called on the thread with all waiting jobs. It sets the result or error of each, and must not raise."""

    def __init__(self, name: str, work: Callable[[Sequence[Job[J]]], None], *, max_batch: int = 256) -> None:
        self._work = work
        self._max_batch = max_batch
        self._waiting: deque[Job[J]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    async def run(self, request: J) -> Any:
        """Submit a request and wait for its result. After a cancellation the work may still be done."""
        return await self._submit(request, last=False)

    async def close(self, last: J) -> None:
        """Accept no more requests, finish those that wait, then `last`, and end the thread."""
        await asyncio.shield(self._submit(last, last=True))

    def _submit(self, request: J, *, last: bool) -> asyncio.Future[Any]:
        job = Job(request, asyncio.get_running_loop())
        with self._wake:
            if self._closing:
                raise StoreError("the store is closed")
            self._closing = last
            self._waiting.append(job)
            self._wake.notify()
        return job.future

    def _loop(self) -> None:
        while jobs := self._take():
            try:
                self._work(jobs)
            except BaseException as error:  # noqa: BLE001  the callers must get it, and the thread must go on
                for job in jobs:
                    job.error = job.error or error
            _report(jobs)
            del jobs

    def _take(self) -> list[Job[J]]:
        """Wait for jobs; an empty list means closed and finished."""
        with self._wake:
            while not self._waiting and not self._closing:
                self._wake.wait()
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_batch))]


def _report(jobs: Sequence[Job[Any]]) -> None:
    for loop in {job.loop for job in jobs}:
        mine = [job for job in jobs if job.loop is loop]
        try:
            loop.call_soon_threadsafe(_settle, mine)
        except RuntimeError:  # the loop was closed, and its callers are gone
            continue


def _settle(jobs: Sequence[Job[Any]]) -> None:
    for job in jobs:
        job.settle()
