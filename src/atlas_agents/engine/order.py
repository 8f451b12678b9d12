"""One turn at a time: whoever starts a turn of a conversation waits for the one under way."""

import asyncio
import weakref


class Line:
    """Two doors that all turns of a conversation pass in the order in which they came: at the first they are accepted,
    at the second it is their turn."""

    __slots__ = ("door", "turn")

    def __init__(self) -> None:
        self.door = asyncio.Lock()
        self.turn = asyncio.Lock()

    @property
    def busy(self) -> bool:
        return self.turn.locked()


_lines: weakref.WeakKeyDictionary[object, tuple[asyncio.AbstractEventLoop, Line]] = weakref.WeakKeyDictionary()


def line_of(owner: object) -> Line:
    """The line before whatever holds the messages. A new loop gets a new one: a lock belongs to its first loop."""
    loop = asyncio.get_running_loop()
    found = _lines.get(owner)
    if found is None or found[0] is not loop:
        found = _lines[owner] = (loop, Line())
    return found[1]
