"""Calling a user's function, sync or async, without ever blocking the loop."""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine, as far as can be seen from outside."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with `async def __call__`
    )


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
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
