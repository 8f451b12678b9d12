"""Work that a cancellation does not cut in half: what is on its way to the disk is there, or not, when it strikes."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_PATIENCE = 2.0


async def whole(work: Coroutine[Any, Any, T]) -> T:
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
