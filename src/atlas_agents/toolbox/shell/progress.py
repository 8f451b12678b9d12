"""What a command writes, told while it writes: in pieces of a reasonable size, a few times a second."""

import asyncio
import codecs
from collections.abc import Callable

_PAUSE = 0.25
_MOST = 4000
_PLENTY = 200_000
_PAUSE_THEN, _MOST_THEN = 2.0, 200
"""Beyond so many characters of one command it is told seldom, and a line or two: all that is told is kept."""


class Telling:
    """Gathers output and passes it on; of a flood only the end of each piece."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._gathered = ""
        self._timer: asyncio.TimerHandle | None = None
        self._told = 0

    def add(self, stream: str, piece: bytes) -> None:
        self._gathered = (self._gathered + self._decoder.decode(piece))[-2 * _MOST :]
        if self._timer is None:
            pause = _PAUSE if self._told < _PLENTY else _PAUSE_THEN
            self._timer = asyncio.get_running_loop().call_later(pause, self.flush)

    def flush(self) -> None:
        """Tell what is there now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        words, self._gathered = self._gathered, ""
        most = _MOST if self._told < _PLENTY else _MOST_THEN
        if words:
            self._told += min(len(words), most)
            self._tell(words if len(words) <= most else f"…{words[-most:]}")
