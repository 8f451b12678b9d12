"""Ending in peace: what a process hears that is to stop, and how long its turns may go on."""

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

from atlas_agents.engine.atlas import Atlas

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def told_to_stop(stop: Callable[[], None]) -> Generator[None, None, None]:
    """`stop` is called with every SIGTERM and SIGINT as long as the block lasts."""
    loop = asyncio.get_running_loop()
    for each in _SIGNALS:
        loop.add_signal_handler(each, stop)
    try:
        yield
    finally:
        for each in _SIGNALS:
            loop.remove_signal_handler(each)


async def close_within(atlas: Atlas, grace: float, hurry: asyncio.Event) -> None:
    """Turns have so many seconds to end, or until somebody is in a `hurry`; those that have not are left to others."""
    closing, hurried = asyncio.create_task(atlas.close(grace)), asyncio.create_task(hurry.wait())
    try:
        await asyncio.wait((closing, hurried), return_when=asyncio.FIRST_COMPLETED)
        if not closing.done():
            await atlas.close()
        await closing
    finally:
        hurried.cancel()
        closing.cancel()
