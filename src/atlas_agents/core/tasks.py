"""Background tasks: asyncio tasks that run beside the object that started them, until it is closed."""

import asyncio
import logging
from collections.abc import Coroutine, Iterator
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)


class BackgroundTasks:
    """The background tasks of one owner: keeps a reference to each, logs what it raises and cancels it on close.

    An exception of an `expected` type is logged as a warning in one line, any other as an error with its traceback.
    `name` tells in the log whose task it was. Waiting and closing concern only tasks of the running event loop.
    """

    __slots__ = ("_expected", "_name", "_tasks")

    def __init__(self, name: str, *, expected: type[Exception] | tuple[type[Exception], ...] = ()) -> None:
        self._name = name
        self._expected = expected
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(tuple(self._tasks))

    def spawn(self, work: Coroutine[Any, Any, T], context: Context | None = None) -> asyncio.Task[T]:
        """Start a coroutine as a task of its own, in a copy of the current context unless one is given."""
        task = asyncio.create_task(work, context=context)
        self.adopt(task)
        return task

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Treat a task that was started elsewhere as one of these."""
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until no task is left, or for at most `seconds`; nothing is cancelled."""
        end = None if seconds is None else asyncio.get_running_loop().time() + seconds
        while tasks := self._of_this_loop():
            left = None if end is None else end - asyncio.get_running_loop().time()
            if left is not None and left <= 0:
                return
            await asyncio.wait(tasks, timeout=left)

    def cancel(self) -> None:
        """Cancel all tasks without waiting for them."""
        for task in self:
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended; more tasks may be started afterwards."""
        while tasks := self._of_this_loop():
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _of_this_loop(self) -> list[asyncio.Task[Any]]:
        """All but the one that asks: a task may close its own owner."""
        loop, current = asyncio.get_running_loop(), asyncio.current_task()
        return [task for task in self._tasks if task is not current and task.get_loop() is loop]

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, self._expected):
            logger.warning("background task failed: owner=%s error=%s", self._name, error)
        else:
            logger.error("background task failed: owner=%s error=%r", self._name, error, exc_info=error)
