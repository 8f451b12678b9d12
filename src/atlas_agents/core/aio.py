"""Time as a port, so that a test can drive it: the wall, the stop-watch and the alarm."""

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
    """Whether calling it gives a coroutine, as far as can be seen from outside."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with `async def __call__`
    )


async def invoke(function: Callable[..., Any], *arguments: Any) -> Any:
    """Await an async function; run a sync one in a thread of its own, and await what it gives back if it must be."""
    if is_async(function):
        return await function(*arguments)
    result = await in_thread(function, *arguments)
    return await result if inspect.isawaitable(result) else result


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a sync function in a daemon thread: one that hangs holds up neither the loop, nor others, nor the exit.

    Not the loop's default pool: name look-ups need that, and a few stuck functions would fill it.
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
        except StopIteration as stop:  # a future cannot carry it
            error = RuntimeError(f"{function!r} raised StopIteration({stop.value!r})")
        except BaseException as caught:  # noqa: BLE001 - it is raised again where it is awaited
            error = caught
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=f"atlas-{getattr(function, '__name__', 'call')}", daemon=True).start()
    return await done


T = TypeVar("T")
_PATIENCE = 2.0


async def finish_despite_cancel(work: Coroutine[Any, Any, T]) -> T:
    """What comes of it. Cancelled meanwhile, it is waited for all the same, for a while; the cancellation strikes at
    the next wait of whoever called."""
    task = asyncio.create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await _last_words(task)
        if not task.done() or task.cancelled():
            task.cancel()
            raise
    me = asyncio.current_task()
    if me is not None:  # the same cancellation, later; not a second one
        me.uncancel()
        me.cancel()
    return task.result()


async def _last_words(task: "asyncio.Task[Any]") -> None:
    """Being cancelled once more changes nothing."""
    loop = asyncio.get_running_loop()
    end = loop.time() + _PATIENCE
    while not task.done() and (left := end - loop.time()) > 0:
        try:
            await asyncio.wait([task], timeout=left)
        except asyncio.CancelledError:
            continue


class Alarm(Protocol):
    """Something that will ring; it can be told not to."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """All waiting and all deadlines go through one of these."""

    def time(self) -> float:
        """Seconds since 1970, for people to read; it may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds for measuring; it never goes back."""
        ...

    def call_later(self, seconds: float, ring: Callable[[], object]) -> Alarm: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's own clock and the running loop's alarms."""

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
    """The day of a time since 1970, as `2026-11-15`, in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


def days_ahead(day: str) -> tuple[str, str]:
    """The two days after it: a clock that was put back may have been there before. What is no day stays as it is."""
    try:
        today = date.fromisoformat(day)
        return str(today + timedelta(days=1)), str(today + timedelta(days=2))
    except (ValueError, OverflowError):
        return day, day
