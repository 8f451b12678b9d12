"""Asyncio utilities: call sync or async functions, shield work from cancellation, and a clock that tests can drive."""

import asyncio
import contextvars
import inspect
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import date, timedelta
from typing import Any, Protocol, TypeVar


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether calling the function returns a coroutine, as far as inspection can tell."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with `async def __call__`
    )


async def invoke(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a sync or async function: await an async one, run a sync one in its own thread."""
    if is_async(function):
        return await function(*arguments)
    result = await in_thread(function, *arguments)
    return await result if inspect.isawaitable(result) else result


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
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


T = TypeVar("T")
_PATIENCE = 2.0


async def finish_despite_cancel(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to completion even if the caller is cancelled meanwhile, up to a grace period.

    The cancellation is delivered at the caller's next await.
    """
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _last_words(task)
        if not task.done() or task.cancelled():
            task.cancel()
            raise
    me = asyncio.current_task()
    if me is not None:  # re-raise the same cancellation later; it is not a second one
        me.uncancel()
        me.cancel()
    return task.result()


async def _last_words(task: "asyncio.Task[Any]") -> None:
    """Wait for the task; a second cancellation changes nothing."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _PATIENCE
    while not task.done() and (left := end - loop.time()) > 0:
        try:
            await asyncio.wait([task], timeout=left)
        except asyncio.CancelledError:
            continue


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

    def call_later(self, seconds: float, ring: Callable[[], object]) -> Alarm: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The system clock and the running loop's timers."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def call_later(self, seconds: float, ring: Callable[[], object]) -> Alarm:
        return asyncio.get_running_loop().call_later(seconds, ring)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


SYSTEM_CLOCK = SystemClock()


def day_of(seconds: float) -> str:
    """Return the UTC day of a Unix timestamp, for example `2026-11-15`."""
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def days_ahead(day: str) -> tuple[str, str]:
    """Return the two days after `day`, in case the clock was set back; text that is not a day is returned unchanged."""
    try:
        today = date.fromisoformat(day)
        return str(today + timedelta(days=1)), str(today + timedelta(days=2))
    except (ValueError, OverflowError):
        return day, day
