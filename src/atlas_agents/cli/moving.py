"""A line that moves while something long is done; where nobody looks there is none."""

import shutil
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

_EVERY = 0.1


@contextmanager
def moving() -> Generator[Callable[[str], None], None, None]:
    """`with moving() as tell: tell("half of it")`; the line is gone with the block."""
    told = 0.0

    def tell(words: str) -> None:
        nonlocal told
        now = time.monotonic()
        if not sys.stderr.isatty() or now - told < _EVERY:
            return
        told = now
        sys.stderr.write(f"\r\x1b[K{words[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()

    try:
        yield tell
    finally:
        if told:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
