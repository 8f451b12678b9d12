"""Fork server: runs Python programs in processes that are forked from one which has their imports loaded.

A new interpreter that imports the gateway takes half a second of CPU before it does anything, and the tests start
hundreds of them. `start` and `run` take a script instead, and behave like `asyncio.create_subprocess_exec` and
`subprocess.run`. Each program has its own process, environment and exit code; it can be killed like any other. The
server ends with the process that started it, and takes its children with it.
"""

import ast
import asyncio
import atexit
import contextlib
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TextIO

TESTS = Path(__file__).parent
_LARGEST = 1 << 18
"""Bytes of one request: a command, an environment and a folder."""


# The side of the tests


async def start(
    *command: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stderr: BinaryIO | TextIO | None = None,
) -> "ForkedProcess":
    """Run a script: its path, then its arguments. Its output can be read from `stdout`."""
    reading, writing = os.pipe()
    try:
        pid, status = _server().fork(command, env, cwd, (writing, _descriptor(stderr)))
    finally:
        os.close(writing)
    return ForkedProcess(pid, await _Pipe.opened(reading), await _Pipe.opened(status))


def run(
    *command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float = 60
) -> "subprocess.CompletedProcess[str]":
    """Run a script to its end: its path, or `-m` and a module, then its arguments."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid, status = _server().fork(command, env, cwd, (out.fileno(), err.fileno()))
        with open(status, "rb") as ended:
            if not select.select([ended], [], [], timeout)[0]:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(command, timeout)
            code = int(ended.read())
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read().decode(), err.read().decode())


class ForkedProcess:
    """A program that was started here, with the part of `asyncio.subprocess.Process` that tests use."""

    def __init__(self, pid: int, output: "_Pipe", status: "_Pipe") -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = output.reader
        self._ended = asyncio.create_task(self._end(output, status))

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    async def _end(self, output: "_Pipe", status: "_Pipe") -> int:
        self.returncode = int(await status.reader.read())
        with contextlib.suppress(TimeoutError):  # what it has started may still hold its output
            await asyncio.wait_for(output.closed.wait(), 1)
        output.transport.close()
        return self.returncode


class _Pipe(asyncio.StreamReaderProtocol):
    """The end of a pipe from which this process reads."""

    transport: asyncio.BaseTransport

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader()
        self.closed = asyncio.Event()
        super().__init__(self.reader)

    @classmethod
    async def opened(cls, descriptor: int) -> "_Pipe":
        file = open(descriptor, "rb", buffering=0)  # noqa: ASYNC230, SIM115 - nothing blocks; the transport closes it
        return (await asyncio.get_running_loop().connect_read_pipe(cls, file))[1]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.closed.set()


class _Server:
    """The connection to the server that this process has started."""

    def __init__(self) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(there.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[there.fileno()], stdin=subprocess.DEVNULL)
        there.close()
        self._connection = here
        self._one_at_a_time = threading.Lock()
        atexit.register(self.close)

    def fork(
        self, command: Sequence[str], env: Mapping[str, str] | None, cwd: Path | None, output: tuple[int, int]
    ) -> tuple[int, int]:
        """(process id, a pipe from which its exit code can be read once it has ended)."""
        reading, writing = os.pipe()
        request = {"command": command, "env": dict(os.environ if env is None else env), "cwd": str(cwd or Path.cwd())}
        with self._one_at_a_time, open(writing, "wb"):
            socket.send_fds(self._connection, [json.dumps(request).encode()], [*output, writing])
            return int(self._connection.recv(64)), reading

    def close(self) -> None:
        """End the server, and with it all that still runs."""
        self._connection.close()
        self._process.wait()


@cache
def _server() -> _Server:
    return _Server()


def _descriptor(file: BinaryIO | TextIO | None) -> int:
    return 2 if file is None else file.fileno()


# The side of the server


class _Program(Exception):
    """Raised in a child, to leave the server's frames before its program runs."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request


def _serve(connection: socket.socket) -> None:
    """Fork a child for each request, and write its exit code into its pipe when it has ended; until nobody asks."""
    children: dict[int, int] = {}
    waking, wake = os.pipe()
    os.set_blocking(waking, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, _ignore)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready = select.select([connection, waking], [], [])[0]
        if waking in ready:
            os.read(waking, 1024)
            _reap(children)
        if connection not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(connection, _LARGEST, 3)
        if not message:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            return
        request = json.loads(message)
        _load(_script(request), _folders(request))
        pid = os.fork()
        if pid == 0:
            for descriptor in (waking, wake, *children.values()):
                os.close(descriptor)
            connection.close()
            _become(descriptors)
            raise _Program(request)
        os.close(descriptors[0])
        os.close(descriptors[1])
        children[pid] = descriptors[2]
        connection.send(str(pid).encode())


def _ignore(number: int, frame: object) -> None:
    """A handler, so that SIGCHLD writes to the wakeup descriptor."""


def _reap(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        ended = children.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # who asked no longer listens
            os.write(ended, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(ended)


_loaded: set[Path] = set()


def _load(script: Path, folders: Sequence[Path]) -> None:
    """Import what a script imports, directly or through modules of the tests.

    Those modules themselves are not imported: they may hold state, which every program must have for itself.
    """
    if script in _loaded:
        return
    _loaded.add(script)
    for node in ast.parse(script.read_bytes()).body:
        match node:
            case ast.Import(names):
                wanted = [(alias.name, "") for alias in names]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                wanted = [(module, alias.name) for alias in names]
            case _:
                continue
        for module, name in wanted:
            if own := _own(module, folders) or _own(f"{module}.{name}", folders):
                _load(own, folders)
            else:
                with contextlib.suppress(ImportError):
                    getattr(importlib.import_module(module), name, None)  # it may be loaded when it is asked for
    gc.collect()
    gc.freeze()


def _own(module: str, folders: Sequence[Path]) -> Path | None:
    """The file of a module of the tests."""
    files = (folder / f"{module.replace('.', '/')}.py" for folder in folders)
    return next((file for file in files if file.is_file()), None)


def _folders(request: dict[str, Any]) -> list[Path]:
    """Where a program finds its own modules."""
    first = Path(request["cwd"]) if request["command"][0] == "-m" else Path(request["command"][0]).parent
    named = [Path(path) for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    return [first, *(path for path in named if path.is_relative_to(TESTS))]


def _script(request: dict[str, Any]) -> Path:
    command: list[str] = request["command"]
    return Path(request["cwd"], command[1], "__main__.py") if command[0] == "-m" else Path(command[0])


def _become(descriptors: list[int]) -> None:
    """In a child: take over the output, and have signals mean what they mean in a new process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, descriptor in enumerate(descriptors[:2], 1):
        os.dup2(descriptor, target)
    for descriptor in descriptors:
        os.close(descriptor)
    random.seed()


def _run_program(request: dict[str, Any]) -> None:
    command: list[str] = request["command"]
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[:0] = [str(folder) for folder in _folders(request)]
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


def _main(descriptor: int) -> None:
    sys.path.pop(0)  # the tests' own folder: a program says for itself where its modules are
    try:
        _serve(socket.socket(fileno=descriptor))
    except _Program as program:
        request = program.request
    else:
        return
    _run_program(request)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
