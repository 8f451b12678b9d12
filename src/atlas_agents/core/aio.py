"""Asyncio utilities: background tasks, threads, sync or async calls, shielding from cancellation, a clock for tests."""

import asyncio
import atexit
import contextvars
import functools
import inspect
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from datetime import date, timedelta
from queue import SimpleQueue
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from atlas_agents.core.errors import ConfigError, StoreError, StoreLost

logger = logging.getLogger(__name__)
T = TypeVar("T")
P = ParamSpec("P")
Owner = TypeVar("Owner", bound="Closable")
_CANCEL_GRACE = 2.0
_CANCEL_AGAIN = 10.0
"""Seconds after which a task is cancelled again: before Python 3.12, `wait_for` may lose a cancellation."""
_MAX_PAUSE = 0.02
_OUTAGE_LIMIT = 60.0
_OUTAGE_RETRY_DELAY = 0.5


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling the function returns a coroutine, as far as inspection can tell."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with `async def __call__`
    )


async def invoke(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a sync or async function: await an async one, run a sync one in its own thread."""
    if is_async(function):
        return await function(*arguments)
    result = await run_in_thread(function, *arguments)
    return await result if inspect.isawaitable(result) else result


def notify(callback: Callable[..., object], *arguments: Any) -> None:
    """Call a user's callback. An exception that it raises is logged, and does not affect the caller."""
    try:
        callback(*arguments)
    except Exception as error:
        logger.error("callback failed: callback=%r", callback, exc_info=error)


class Closable(Protocol):
    """An object with connections or processes that belong to an event loop."""

    async def close(self) -> None: ...


class _SyncLoop:
    """The event loop of the sync entry points in one thread. It stays open, because connections belong to it."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._owners: weakref.WeakSet[Closable] = weakref.WeakSet()

    def run(self, owner: Closable, work: Coroutine[Any, Any, T]) -> T:
        self._owners.add(owner)
        runner = self._runner
        del self  # an error refers to this frame, and may outlive the thread in which the loop must be closed
        return runner.run(work)

    def close(self) -> None:
        for owner in list(self._owners):
            with suppress(Exception):
                self._runner.run(owner.close())
        self._runner.close()

    def __del__(self) -> None:  # at the end of its thread
        self._runner.close()


class _SyncLoops(threading.local):
    """The loop of each thread. A forked process gets its own: the parent's still belongs to the parent."""

    def __init__(self) -> None:
        self._by_process = {os.getpid(): _SyncLoop()}

    @property
    def own(self) -> _SyncLoop:
        process = os.getpid()
        if process not in self._by_process:
            self._by_process[process] = _SyncLoop()
        return self._by_process[process]


_sync_loops = _SyncLoops()
atexit.register(lambda: _sync_loops.own.close())


def run_sync(owner: Closable, work: Callable[[], Coroutine[Any, Any, T]], name: str, instead: str) -> T:
    """Run a coroutine to completion in this thread's own event loop; raises ConfigError inside a running one."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise ConfigError(f"{name} cannot be used inside a running event loop, such as that of a notebook: {instead}")
    return _sync_loops.own.run(owner, work())


def sync_method(
    method: Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]],
) -> Callable[[Callable[[], None]], Callable[Concatenate[Owner, P], T]]:
    """Make a method the sync version of an async method, for code without an event loop.

    Use it as a decorator of a named function: some type checkers do not bind functions that are assigned in a class
    body.
    """
    name = method.__name__

    def decorate(named: Callable[[], None]) -> Callable[Concatenate[Owner, P], T]:
        @functools.wraps(method)
        def call(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> T:
            instead = f"use `await {type(self).__name__.lower()}.{name}(…)`"
            return run_sync(self, lambda: method(self, *args, **kwargs), call.__name__, instead)

        call.__name__, call.__qualname__, call.__doc__ = named.__name__, named.__qualname__, named.__doc__
        return call

    return decorate


class TimeSlices:
    """Divides long work in the event loop into short slices. After each, other tasks run for about as long.

    A slice is CPU time: short work never waits, even if other programs interrupt it.
    """

    def __init__(self, seconds: float = 0.004) -> None:
        self._seconds = seconds
        self._begin()

    def _begin(self) -> None:
        self._started = time.perf_counter()
        self._cpu = time.thread_time()

    async def pause(self) -> None:
        """Let other tasks run if the current slice has ended. Call it between small pieces of the work."""
        if time.perf_counter() - self._started < self._seconds:  # much cheaper to read than CPU time
            return
        worked = time.thread_time() - self._cpu
        if worked < self._seconds:
            self._started = time.perf_counter()
            return
        await asyncio.sleep(min(worked, _MAX_PAUSE))
        self._begin()


async def run_in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a sync function in a daemon thread, so that one that hangs blocks neither the loop nor the exit.

    The loop's default pool is not used: DNS lookups need it, and a few stuck functions would exhaust it.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def work() -> None:
        result, error = None, None
        try:
            result = context.run(function, *arguments)
        except StopIteration as stop:  # a future cannot hold StopIteration
            error = RuntimeError(f"{function!r} raised StopIteration({stop.value!r})")
        except BaseException as caught:  # noqa: BLE001 - it is raised again where it is awaited
            error = caught
        with suppress(RuntimeError):  # the loop is closed, so there is no caller left
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=f"atlas-{getattr(function, '__name__', 'call')}", daemon=True).start()
    return await done


async def finish_despite_cancel(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to completion even if the caller is cancelled meanwhile, up to a grace period.

    The cancellation is delivered at the caller's next await.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _wait_despite_cancel(task)
        if not task.done() or task.cancelled():
            task.cancel()
            raise
    caller = asyncio.current_task()
    if caller is not None:  # re-raise the same cancellation later; it is not a second one
        caller.uncancel()
        caller.cancel()
    return task.result()


async def _wait_despite_cancel(task: "asyncio.Task[Any]") -> None:
    """Wait for the task; a second cancellation changes nothing."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _CANCEL_GRACE
    while not task.done() and (remaining := end - loop.time()) > 0:
        try:
            await asyncio.wait([task], timeout=remaining)
        except asyncio.CancelledError:
            continue


class BackgroundTasks:
    """The background tasks of one owner: keeps a reference to each, logs its exceptions and cancels it on close.

    An exception of an `expected` type is logged as a warning in one line, any other as an error with its traceback.
    `name` identifies the owner in the log. `wait` and `close` affect only tasks of the running event loop.
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

    def spawn(self, work: Coroutine[Any, Any, T], context: contextvars.Context | None = None) -> asyncio.Task[T]:
        """Start a coroutine as a task of its own, in a copy of the current context unless one is given."""
        task = asyncio.create_task(work, context=context)
        self.adopt(task)
        return task

    def adopt(self, task: asyncio.Task[Any], then: Callable[[], object] | None = None) -> None:
        """Adopt a task that was started elsewhere, and call `then` once it has ended."""
        self._tasks.add(task)
        task.add_done_callback(self._on_done if then is None else functools.partial(self._on_done, then=then))

    async def wait(self, seconds: float | None = None) -> None:
        """Wait until all tasks have ended, for at most `seconds`; nothing is cancelled."""
        end = None if seconds is None else asyncio.get_running_loop().time() + seconds
        while tasks := self._tasks_of_loop():
            remaining = None if end is None else end - asyncio.get_running_loop().time()
            if remaining is not None and remaining <= 0:
                return
            await asyncio.wait(tasks, timeout=remaining)

    def cancel(self) -> None:
        """Cancel all tasks without waiting for them."""
        for task in self:
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended; more tasks may be started afterwards."""
        while tasks := self._tasks_of_loop():
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=_CANCEL_AGAIN)

    def _tasks_of_loop(self) -> list[asyncio.Task[Any]]:
        """Return all tasks of this loop except the current one, because a task may close its own owner."""
        loop, current = asyncio.get_running_loop(), asyncio.current_task()
        return [task for task in self._tasks if task is not current and task.get_loop() is loop]

    def _on_done(self, task: asyncio.Task[Any], then: Callable[[], object] | None = None) -> None:
        self._tasks.discard(task)
        if then is not None:
            then()
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, self._expected):
            logger.warning("background task failed: owner=%s error=%s", self._name, error)
        else:
            logger.error("background task failed: owner=%s error=%r", self._name, error, exc_info=error)


class Alarm(Protocol):
    """A scheduled callback that can be cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Time source for every wait and deadline; tests substitute a virtual one."""

    def time(self) -> float:
        """Return wall-clock seconds since the Unix epoch; may jump."""
        ...

    def monotonic(self) -> float:
        """Return seconds from a monotonic clock, for measuring durations."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Alarm: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The system clock and the running loop's timers."""

    monotonic = staticmethod(time.monotonic)
    time = staticmethod(time.time)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Alarm:
        return asyncio.get_running_loop().call_later(seconds, callback)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


async def retry_while_lost(read: Callable[[], Awaitable[T]], clock: Clock = SYSTEM_CLOCK) -> T:
    """Return the result of a read that the sender of an accepted turn waits for. While the database is unreachable, it
    is retried for up to a minute: the outage does not end the turn. Then it raises StoreLost."""
    deadline: float | None = None
    while True:
        try:
            return await read()
        except StoreLost as error:
            now = clock.monotonic()
            deadline = deadline or now + _OUTAGE_LIMIT
            if now >= deadline:
                raise StoreLost(
                    f"the database was unreachable for {_OUTAGE_LIMIT:g} seconds ({error}); the turn was accepted and "
                    "continues when the database is back"
                ) from error
            logger.warning("waiting for the database to follow a turn: error=%s", error)
        await clock.sleep(_OUTAGE_RETRY_DELAY)


def utc_day(seconds: float) -> str:
    """Return the UTC day of a Unix timestamp, for example `2026-11-15`."""
    return _day(int(seconds // 86_400))


@functools.lru_cache(maxsize=16)
def _day(number: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(number * 86_400))


def days_ahead(day: str) -> tuple[str, str]:
    """Return the two days after `day`, in case the clock was set back; text that is not a day is returned unchanged."""
    try:
        today = date.fromisoformat(day)
        return str(today + timedelta(days=1)), str(today + timedelta(days=2))
    except (ValueError, OverflowError):
        return day, day


def read_stdin_lines(loop: asyncio.AbstractEventLoop, lines: "asyncio.Queue[bytes]") -> None:
    """Read standard input in a thread: it may be a file, a pipe or a terminal, and reading may never return.

    An empty line ends the queue.
    """
    while True:
        line = sys.stdin.buffer.readline()
        try:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        except RuntimeError:  # the loop is closed
            return
        if not line:
            return


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
    """Batching thread: `work` gets all waiting requests, sets the result or error of each, and must not raise."""

    def __init__(self, name: str, work: Callable[[Sequence[QueuedRequest[T]]], None], *, max_batch: int = 256) -> None:
        self._work = work
        self._max_batch = max_batch
        self._waiting: SimpleQueue[QueuedRequest[T] | None] = SimpleQueue()
        self._submitting = threading.Lock()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    async def run(self, request: T) -> Any:
        """Submit a request and wait for its result. After a cancellation the work may still be done."""
        return await self._submit(request, last=False)

    async def close(self, last: T) -> None:
        """Accept no more requests, finish the waiting ones, then run `last`, and end the thread."""
        await asyncio.shield(self._submit(last, last=True))

    def _submit(self, request: T, *, last: bool) -> asyncio.Future[Any]:
        queued = QueuedRequest(request, asyncio.get_running_loop())
        with self._submitting:
            if self._closing:
                raise StoreError("the store is closed: call open() first")
            self._closing = last
            self._waiting.put(queued)
            if last:
                self._waiting.put(None)
        return queued.future

    def _loop(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._take()
            try:
                self._work(batch)
            except BaseException as error:  # noqa: BLE001  the callers must get it, and the thread must go on
                for queued in batch:
                    queued.error = queued.error or error
            _report(batch)
            del batch

    def _take(self) -> tuple[list[QueuedRequest[T]], bool]:
        """Wait for requests; return all waiting ones, and whether more may follow. Called on the thread only."""
        batch: list[QueuedRequest[T]] = []
        while (queued := self._waiting.get()) is not None:
            batch.append(queued)
            if len(batch) == self._max_batch or self._waiting.empty():
                return batch, True
        return batch, False


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
