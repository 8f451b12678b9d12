"""One turn at a time: whoever starts a turn of a conversation waits for the one under way."""

import asyncio
import weakref

_locks: weakref.WeakKeyDictionary[object, tuple[asyncio.AbstractEventLoop, asyncio.Lock]] = weakref.WeakKeyDictionary()


def lock_of(owner: object) -> asyncio.Lock:
    """The lock of whatever holds the messages. A new loop gets a new one: an asyncio lock belongs to its first loop."""
    loop = asyncio.get_running_loop()
    found = _locks.get(owner)
    if found is None or found[0] is not loop:
        found = _locks[owner] = (loop, asyncio.Lock())
    return found[1]
