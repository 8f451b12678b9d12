"""Fork server: runs Python programs in processes forked from one that has loaded their imports.

A new interpreter that imports the gateway takes half a second of CPU before it does anything, and the tests start
hundreds of them. `start`, `run` and `Program` take a script instead, and behave like `asyncio.create_subprocess_exec`,
`subprocess.run` and `subprocess.Popen`. Each program has its own process, environment and exit code; it can be killed
like any other. The server ends with the process that started it, and takes its children with it.
"""

import ast
import asyncio
import atexit
import contextlib
import fcntl
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
import termios
import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TextIO

TESTS = Path(__file__).parent
_MAX_REQUEST = 1 << 18
"""Bytes of one request: a command, an environment and a folder."""


# Client


async def start(
    *command: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int | None = None,
    stderr: BinaryIO | TextIO | None = None,
) -> "ForkedProcess":
    """Run a script: its path, then its arguments. Its output can be read from `stdout`."""
    read_end, write_end = os.pipe()
    streams = [*([] if stdin is None else [stdin]), write_end, _descriptor(stderr)]
    try:
        pid, status = _server().fork(command, env, cwd, streams)
    finally:
        os.close(write_end)
    return ForkedProcess(pid, await _Pipe.opened(read_end), await _Pipe.opened(status))


def run(
    *command: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout: float | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run a script to its end: its path, or `-m` and a module, then its arguments."""
    from checks import scaled  # not at the top: the server does not need it

    timeout = scaled(240) if timeout is None else timeout
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid, status = _server().fork(command, env, cwd, [out.fileno(), err.fileno()])
        with open(status, "rb") as status_pipe:
            if not select.select([status_pipe], [], [], timeout)[0]:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(command, timeout)
            code = int(status_pipe.read())
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, code, out.read().decode(), err.read().decode())


def cpu_seconds() -> float:
    """Return the CPU time of all programs that have ended."""
    if not _server.cache_info().currsize:
        return 0.0
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{_server().pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return 0.0


class Program:
    """A running script, with the part of `subprocess.Popen` that tests use; its output is text.

    `terminal` is the descriptor of a terminal that becomes the program's input, output and controlling terminal.
    """

    def __init__(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        terminal: int | None = None,
        stderr: BinaryIO | TextIO | None = None,
    ) -> None:
        self.returncode: int | None = None
        self.stdout = self.stderr = None
        if terminal is not None:
            self.pid, self._status = _server().fork(command, env, cwd, [terminal] * 3, terminal=True)
            return
        read_end, write_end = os.pipe()
        read_errors, write_errors = os.pipe() if stderr is None else (-1, stderr.fileno())
        try:
            self.pid, self._status = _server().fork(command, env, cwd, [write_end, write_errors])
        finally:
            for descriptor in (write_end, *([write_errors] if stderr is None else [])):
                os.close(descriptor)
        self.stdout = open(read_end, encoding="utf-8")  # noqa: SIM115 - closed by `close`
        self.stderr = open(read_errors, encoding="utf-8") if stderr is None else None  # noqa: SIM115

    def poll(self) -> int | None:
        """Return the exit code; None while the program runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("program", timeout or 0)
            with open(self._status, "rb") as status:
                self.returncode = int(status.read())
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Close the pipes of a program that has ended."""
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()


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
        with contextlib.suppress(TimeoutError):  # its child processes may still hold its output
            await asyncio.wait_for(output.closed.wait(), 1)
        output.transport.close()
        return self.returncode


class _Pipe(asyncio.StreamReaderProtocol):
    """The read end of a pipe."""

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
    """Connection to the server, which this process starts."""

    def __init__(self) -> None:
        parent_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(child_end.fileno())]
        self._process = subprocess.Popen(command, pass_fds=[child_end.fileno()], stdin=subprocess.DEVNULL)
        child_end.close()
        self.pid = self._process.pid
        self._connection = parent_end
        self._lock = threading.Lock()
        atexit.register(self.close)

    def fork(
        self,
        command: Sequence[str],
        env: Mapping[str, str] | None,
        cwd: Path | None,
        streams: list[int],
        *,
        terminal: bool = False,
    ) -> tuple[int, int]:
        """Return the process id and a pipe that delivers the exit code.

        `streams` are the output and the error output, with or without the input before them.
        """
        read_end, write_end = os.pipe()
        request: dict[str, Any] = {"command": command, "cwd": str(cwd or Path.cwd()), "terminal": terminal}
        request["env"] = dict(os.environ if env is None else env)
        with self._lock, open(write_end, "wb"):
            socket.send_fds(self._connection, [json.dumps(request).encode()], [write_end, *streams])
            return int(self._connection.recv(64)), read_end

    def close(self) -> None:
        """Stop the server and the programs that still run."""
        self._connection.close()
        self._process.wait()


@cache
def _server() -> _Server:
    return _Server()


def _descriptor(file: BinaryIO | TextIO | None) -> int:
    return 2 if file is None else file.fileno()


# Server


class _Program(Exception):
    """Raised in a child, to leave the server's frames before its program runs."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request


def _serve(connection: socket.socket) -> None:
    """Fork a child per request and write its exit code to its pipe, until the client disconnects."""
    children: dict[int, int] = {}
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_reader, False)
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer)
    signal.signal(signal.SIGCHLD, _ignore)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        ready = select.select([connection, wake_reader], [], [])[0]
        if wake_reader in ready:
            os.read(wake_reader, 1024)
            _reap(children)
        if connection not in ready:
            continue
        message, received, _, _ = socket.recv_fds(connection, _MAX_REQUEST, 4)
        if not message:
            for pid in children:
                os.kill(pid, signal.SIGKILL)
            return
        status, *descriptors = received
        request = json.loads(message)
        _load(_script_path(request), _module_folders(request))
        pid = os.fork()
        if pid == 0:
            for descriptor in (connection.detach(), status, wake_reader, wake_writer, *children.values()):
                os.close(descriptor)
            _set_up_child(descriptors, terminal=request["terminal"])
            raise _Program(request)
        children[pid] = status
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(str(pid).encode())


def _ignore(number: int, frame: object) -> None:
    """A handler, so that SIGCHLD writes to the wakeup descriptor."""


def _reap(children: dict[int, int]) -> None:
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        status_pipe = children.pop(pid)
        with contextlib.suppress(BrokenPipeError):  # the client no longer reads it
            os.write(status_pipe, str(os.waitstatus_to_exitcode(status)).encode())
        os.close(status_pipe)


_loaded: set[Path] = set()


def _load(script: Path, folders: Sequence[Path]) -> None:
    """Import what a script imports, directly or through test modules.

    The test modules themselves are not imported: they may hold state, which must not be shared between programs.
    """
    if script in _loaded:
        return
    _loaded.add(script)
    for node in ast.parse(script.read_bytes()).body:
        match node:
            case ast.Import(names):
                imports = [(alias.name, "") for alias in names]
            case ast.ImportFrom(module=str(module), names=names, level=0):
                imports = [(module, alias.name) for alias in names]
            case _:
                continue
        for module, name in imports:
            if test_module := _find_test_module(module, folders) or _find_test_module(f"{module}.{name}", folders):
                _load(test_module, folders)
            else:
                with contextlib.suppress(ImportError):
                    getattr(importlib.import_module(module), name, None)  # it may be imported lazily
    if "atlas_agents" in sys.modules:  # pydantic imports its modules when a program first describes a tool
        importlib.import_module("pydantic").create_model("Loaded", text=(str, "")).model_json_schema()
    if (stores := sys.modules.get("atlas_agents.storage.sqlite.files")) is not None:
        stores._empty_file()  # the content of a new database, which each program would build
    if (app := sys.modules.get("atlas_agents.app.app")) is not None:
        _build_tools(app)
        assert threading.active_count() == 1, "a forked program would not have the other threads"
    gc.collect()
    gc.freeze()


@cache
def _build_tools(app: Any) -> None:
    """Build the built-in tools in an empty workspace: the models of their arguments are kept for all programs."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ.clear()  # no settings of the host
        os.environ.update(HOME=folder, ATLAS_HOME=folder)
        try:
            app.load_workspace_agents(folder)
        finally:
            os.environ.clear()
            os.environ.update(before)


def _find_test_module(module: str, folders: Sequence[Path]) -> Path | None:
    """Return the file of a test module; None for other modules."""
    files = (folder / f"{module.replace('.', '/')}.py" for folder in folders)
    return next((file for file in files if file.is_file()), None)


def _module_folders(request: dict[str, Any]) -> list[Path]:
    """Return the folders in which a program finds its own modules."""
    first = Path(request["cwd"]) if request["command"][0] == "-m" else Path(request["command"][0]).parent
    named = [Path(path) for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    return [first, *(path for path in named if path.is_relative_to(TESTS))]


def _script_path(request: dict[str, Any]) -> Path:
    command: list[str] = request["command"]
    return Path(request["cwd"], command[1], "__main__.py") if command[0] == "-m" else Path(command[0])


def _set_up_child(descriptors: list[int], *, terminal: bool) -> None:
    """Redirect the streams and reset the signal handlers in a child process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for target, descriptor in enumerate(descriptors, 3 - len(descriptors)):
        os.dup2(descriptor, target)
    for descriptor in set(descriptors):
        os.close(descriptor)
    if terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    random.seed()


def _open_streams(encoding: str) -> None:
    """Open the standard streams as a new interpreter would: a terminal is written line by line."""
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115 - open until the program ends
    sys.stdout = open(1, "w", encoding=encoding, buffering=1 if os.isatty(1) else -1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=encoding, buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _run_program(request: dict[str, Any]) -> None:
    command: list[str] = request["command"]
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    added = [path for path in request["env"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [str(folder) for folder in _module_folders(request)] + added
    _open_streams(request["env"].get("PYTHONIOENCODING", "utf-8"))
    if request["env"].get("PYTHONWARNINGS") == "error":
        warnings.simplefilter("error")
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        runpy.run_path(command[0], run_name="__main__")


def _run_and_exit(request: dict[str, Any]) -> None:
    """Run a program and exit without freeing its memory, which would first copy all that it shares with the server."""
    code = 0
    try:
        _run_program(request)
    except SystemExit as exit:
        if not isinstance(exit.code, int | None):
            raise
        code = exit.code or 0
    getattr(threading, "_shutdown")()  # noqa: B009 - not in the types
    atexit._run_exitfuncs()
    gc.collect()  # what is left open is reported
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _main(descriptor: int) -> None:
    sys.path.pop(0)  # the tests' own folder, which programs do not import from
    try:
        _serve(socket.socket(fileno=descriptor))
    except _Program as program:
        request = program.request
    else:
        return
    _run_and_exit(request)


if __name__ == "__main__":
    _main(int(sys.argv[1]))
