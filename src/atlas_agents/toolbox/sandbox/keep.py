"""What a process writes: passed on in pieces, its head and tail kept, the whole of it in a file if one is named."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from atlas_agents.toolbox.sandbox.ports import Kept, OnOutput, Stream


class Keeper:
    """Keeps the first and the last bytes of a stream, and counts those between."""

    def __init__(self, keep: int) -> None:
        self._room = max(1, keep // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.seen = 0

    def add(self, piece: bytes) -> None:
        self.seen += len(piece)
        if (free := self._room - len(self._head)) > 0:
            self._head += piece[:free]
            piece = piece[free:]
        if piece:
            self._tail += piece[-self._room :]
            if len(self._tail) > 2 * self._room:
                del self._tail[: -self._room]

    def kept(self) -> Kept:
        tail = bytes(self._tail[-self._room :])
        dropped = self.seen - len(self._head) - len(tail)
        if not dropped:  # a letter may have been cut in two where head and tail meet
            return Kept((bytes(self._head) + tail).decode(errors="replace"))
        return Kept(self._head.decode(errors="replace"), tail.decode(errors="replace"), dropped)


class Output:
    """Both streams of a run. `full` is called once, when more was written than may be."""

    def __init__(
        self, keep: int, cap: int, on_output: OnOutput | None, spill: Path | None, full: Callable[[], None]
    ) -> None:
        self._kept: dict[Stream, Keeper] = {"stdout": Keeper(keep), "stderr": Keeper(keep)}
        self._cap = cap
        self._on_output = on_output
        self._full = full
        self._seen = 0
        self.spilled = spill
        self._file: IO[bytes] | None = _private(spill) if spill else None

    def add(self, stream: Stream, piece: bytes) -> None:
        """What comes after the cap is not looked at any more."""
        if self._seen >= self._cap:
            return
        piece = piece[: self._cap - self._seen]
        self._seen += len(piece)
        self._kept[stream].add(piece)
        if self._file is not None:
            self._file.write(piece)
        if self._on_output is not None:
            self._on_output(stream, piece)
        if self._seen >= self._cap:
            self._full()

    def renew(self) -> None:
        """Count from the beginning."""
        self._seen = 0

    def kept(self, stream: Stream) -> Kept:
        return self._kept[stream].kept()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _private(path: Path) -> IO[bytes]:
    """For the owner alone, and never through what somebody else has put there."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb")
