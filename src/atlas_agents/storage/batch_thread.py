"""Worker thread that takes all waiting requests at once and reports the results to the callers' event loops."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from atlas_agents.core.errors import StoreError

T = TypeVar("T")


class QueuedRequest(Generic[T]):
    """A request, and the future of its caller."""

    __slots__ = ("error", "future", "loop", "request", "result")

    def __init__(self, request: T, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        """Resolve the future with the result or the error, unless the caller was cancelled. Runs on its loop."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class BatchThread(Generic[T]):
    """Thread that calls `work` with all waiting requests; it sets the result or error of each, and must not raise."""

    def __init__(self, name: str, work: Callable[[Sequence[QueuedRequest[T]]], None], *, max_batch: int = 256) -> None:
        self._work = work
        self._max_batch = max_batch
        self._waiting: deque[QueuedRequest[T]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    async def run(self, request: T) -> Any:
        """Submit a request and wait for its result. After a cancellation the work may still be done."""
        return await self._submit(request, last=False)

    async def close(self, last: T) -> None:
        """Accept no more requests, finish those that wait, then `last`, and end the thread."""
        await asyncio.shield(self._submit(last, last=True))

    def _submit(self, request: T, *, last: bool) -> asyncio.Future[Any]:
        queued = QueuedRequest(request, asyncio.get_running_loop())
        with self._wake:
            if self._closing:
                raise StoreError("the store is closed: call open() first")
            self._closing = last
            self._waiting.append(queued)
            self._wake.notify()
        return queued.future

    def _loop(self) -> None:
        while batch := self._take():
            try:
                self._work(batch)
            except BaseException as error:  # noqa: BLE001  the callers must get it, and the thread must go on
                for queued in batch:
                    queued.error = queued.error or error
            _report(batch)
            del batch

    def _take(self) -> list[QueuedRequest[T]]:
        """Wait for requests; an empty list means that the thread is closed and has finished."""
        with self._wake:
            while not self._waiting and not self._closing:
                self._wake.wait()
            return [self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_batch))]


def _report(batch: Sequence[QueuedRequest[Any]]) -> None:
    for loop in {queued.loop for queued in batch}:
        mine = [queued for queued in batch if queued.loop is loop]
        try:
            loop.call_soon_threadsafe(_settle, mine)
        except RuntimeError:  # the loop was closed, and its callers are gone
            continue


def _settle(batch: Sequence[QueuedRequest[Any]]) -> None:
    for queued in batch:
        queued.settle()
