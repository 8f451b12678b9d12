"""Worker process: executes calls and reports their progress until its parent exits.

`worker_pool` loads this file without the package, whose import would take longer than most calls.
"""

import fcntl
import io
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from importlib import invalidate_caches
from queue import SimpleQueue
from types import GeneratorType
from typing import Any, cast

from atlas_agents.tools import worker_codec


class _ParentSocket:
    """The worker's end of the socket to its parent."""

    def __init__(self, fd: int) -> None:
        os.set_inheritable(fd, False)
        self._socket = socket.socket(fileno=fd)
        self._lock = threading.Lock()
        self._requests: SimpleQueue[bytes] = SimpleQueue()
        self._busy = False
        threading.Thread(target=self._read_requests, daemon=True).start()

    def send(self, kind: bytes, body: Sequence[bytes] = ()) -> None:
        with self._lock:
            self._busy = False
            self._socket.sendall(b"".join(worker_codec.frame(kind, body)))

    def send_progress(self, message: str) -> None:
        """Send the progress of the running call; ignored for a thread that outlives its call."""
        message_frame = b"".join(worker_codec.frame(worker_codec.PROGRESS, [message.encode(errors="replace")]))
        with self._lock:
            if self._busy:
                self._socket.sendall(message_frame)

    def next_request(self) -> bytes:
        request = self._requests.get()
        self._busy = True
        return request

    def close(self) -> None:
        os.close(self._socket.detach())  # `close` would block while `_read_requests` reads

    def _read_requests(self) -> None:
        """Read requests, also while a function runs: when the parent closes the socket, kill the process group."""
        with suppress(OSError), self._socket.makefile("rb") as stream:
            while len(head := stream.read(worker_codec.HEADER.size)) == worker_codec.HEADER.size:
                self._requests.put(stream.read(worker_codec.HEADER.unpack(head)[1]))
        os.killpg(os.getpgrp(), signal.SIGKILL)


_parent: _ParentSocket | None = None  # set only in a worker


def report(message: str) -> None:
    """Report progress to the caller; does nothing outside a worker."""
    if _parent is not None:
        _parent.send_progress(str(message)[: worker_codec.MAX_TEXT])


def run_generator(generator: Generator[Any, Any, Any], report: Callable[[str], object]) -> Any:
    """Run a generator to its end and report what it yields; return its return value, or else the last yield.

    It is closed if `report` raises.
    """
    last = None
    with closing(generator):
        while True:
            try:
                last = next(generator)
            except StopIteration as end:
                return last if end.value is None else end.value
            report(progress_text(last))


def progress_text(value: Any) -> str:
    """Return the text of a yielded value: JSON unless it is a text."""
    if isinstance(value, str):
        return value
    import json

    return json.dumps(value, default=str, ensure_ascii=False)


def serve(fd: int, watch: int, max_result: int) -> None:
    """Execute calls until the parent exits."""
    global _parent
    _die_with_parent(watch)
    os.register_at_fork(after_in_child=_close_in_fork)
    parent = _parent = _ParentSocket(fd)
    parent.send(worker_codec.READY)
    while True:
        parent.send(*_handle(parent.next_request(), max_result))


def _close_in_fork() -> None:
    """Close the socket in a forked child, which must neither answer nor keep the connection open."""
    global _parent
    if _parent is not None:
        _parent.close()
    _parent = None


def _die_with_parent(watch: int) -> None:
    """Have the kernel kill this group when the parent exits: C code that holds the GIL blocks the reading thread."""
    os.set_inheritable(watch, False)
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl.fcntl(watch, fcntl.F_SETOWN, -os.getpgrp())
            fcntl.fcntl(watch, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(watch, fcntl.F_SETFL, os.O_ASYNC)


def _handle(request: bytes, max_result: int) -> worker_codec.Frame:
    """Execute a call and return its result or its error."""
    stream = io.BytesIO(request)
    try:
        _apply_environment(*pickle.load(stream))  # noqa: S301
        function, (positional, named) = worker_codec.unpack_call(stream)
    except ModuleNotFoundError as error:
        return worker_codec.MISSING_MODULE, [(error.name or "?").encode()]
    except BaseException as error:  # noqa: BLE001 - a value's own code may raise anything
        return worker_codec.pack_fault(
            worker_codec.NotSendable(f"cannot unpickle the call in a worker: {worker_codec.error_text(error, repr)}")
        )
    try:
        result = function(*positional, **named)
        if isinstance(result, GeneratorType):
            result = run_generator(cast(Any, result), report)
    except BaseException as error:  # noqa: BLE001 - a tool may raise anything
        return worker_codec.pack_fault(error)
    return worker_codec.pack_result(result, function, max_result)


def _apply_environment(directory: str | None, path: list[str] | None) -> None:
    """Use the parent's working directory and import path; raises if the directory is gone."""
    if directory is not None and worker_codec.working_directory() != directory:
        os.chdir(directory)
    if path is not None:
        sys.path[:] = path
        invalidate_caches()
