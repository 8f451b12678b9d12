"""What runs in a worker: it answers calls until its parent ends, and reports on the one under way.

`worker_link` has the process load this file without the package, whose import would cost more than most calls.
"""

import fcntl
import io
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import invalidate_caches
from queue import SimpleQueue

from atlas_agents.tools.worker_codec import (
    HEAD,
    MAX_WORDS,
    MISSING,
    NEWS,
    READY,
    Frame,
    framed,
    here,
    pack_fault,
    pack_result,
    unpack_call,
    words_of,
)


class _Line:
    """A worker's end of the socket."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._lock = threading.Lock()
        self._calls: SimpleQueue[bytes] = SimpleQueue()
        self._busy = False
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, kind: bytes, body: Sequence[bytes] = ()) -> None:
        with self._lock:
            self._busy = False
            self._socket.sendall(b"".join(framed(kind, body)))

    def tell(self, message: str) -> None:
        """Send news of the call under way; a thread that outlives its call has nobody to tell."""
        news = b"".join(framed(NEWS, [message.encode(errors="replace")]))
        with self._lock:
            if self._busy:
                self._socket.sendall(news)

    def next_call(self) -> bytes:
        call = self._calls.get()
        self._busy = True
        return call

    def close(self) -> None:
        os.close(self._socket.detach())  # `close` would wait for the stream that is listened to

    def _listen(self) -> None:
        """Listen also while a function runs: the end of the line is the end of the parent, and of all that is here."""
        with suppress(OSError), self._socket.makefile("rb") as stream:
            while len(head := stream.read(HEAD.size)) == HEAD.size:
                self._calls.put(stream.read(HEAD.unpack(head)[1]))
        os.killpg(os.getpgrp(), signal.SIGKILL)


_line: _Line | None = None  # set in a worker alone


def report(message: str) -> None:
    """Tell who called how far the function is; outside a worker nothing happens."""
    if _line is not None:
        _line.tell(str(message)[:MAX_WORDS])


def serve(fd: int, pulse: int, max_result: int) -> None:
    """Be a worker: answer calls until the parent ends."""
    global _line
    _die_with_parent(pulse)
    os.register_at_fork(after_in_child=_leave_line)
    line = _line = _Line(fd)
    line.send(READY)
    while True:
        line.send(*_answer(line.next_call(), max_result))


def _leave_line() -> None:
    """A fork of the worker is not the worker: it neither answers nor keeps the line open."""
    global _line
    if _line is not None:
        _line.close()
    _line = None


def _die_with_parent(pulse: int) -> None:
    """Let the kernel kill this group when the parent's end closes: C code may keep the listening thread from it."""
    os.set_inheritable(pulse, False)
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl.fcntl(pulse, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(pulse, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(pulse, fcntl.F_SETFL, os.O_ASYNC)


def _answer(call: bytes, max_result: int) -> Frame:
    """Do a call, whatever comes of it."""
    stream = io.BytesIO(call)
    try:
        _follow(*pickle.load(stream))  # noqa: S301
        function, (positional, named) = unpack_call(stream)
    except ModuleNotFoundError as error:
        return MISSING, [(error.name or "?").encode()]
    except BaseException as error:  # noqa: BLE001 - a value's own code may raise anything
        return pack_fault(TypeError(f"the call cannot be rebuilt in a worker: {words_of(error, repr)}"))
    try:
        result = function(*positional, **named)
    except BaseException as error:  # noqa: BLE001 - this is the border around a tool's body
        return pack_fault(error)
    return pack_result(result, function, max_result)


def _follow(directory: str | None, path: list[str] | None) -> None:
    """Be where the parent is, or fail rather than run elsewhere, and import from where it does."""
    if directory is not None and here() != directory:
        os.chdir(directory)
    if path is not None:
        sys.path[:] = path
        invalidate_caches()
