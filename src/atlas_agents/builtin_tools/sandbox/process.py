"""A sandboxed process: the command, its limits and its output; it is killed with all its descendants at a limit."""

import asyncio
import os
import secrets
import signal
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from atlas_agents.builtin_tools.sandbox import inside
from atlas_agents.core.errors import SandboxUnavailable

Stream: TypeAlias = Literal["stdout", "stderr"]
LimitName: TypeAlias = Literal["time", "output", "memory", "processes", "disk"]
OnOutput: TypeAlias = Callable[[Stream, bytes], None]
_MB = 1024 * 1024
PATH = "/usr/local/bin:/usr/bin:/bin"
ETC = (
    *(
        "alternatives",
        "debian_version",
        "fonts",
        "ld.so.cache",
        "ld.so.conf",
        "ld.so.conf.d",
        "localtime",
        "mime.types",
    ),
    *("os-release", "ssl/certs", "ssl/openssl.cnf"),
)
"""Paths below /etc that a sandboxed command can read."""
_RUN_ID_VARIABLE = "ATLAS_RUN"
_TERM_TIMEOUT = 1.0
_KILL_TIMEOUT = 2.0
_MAX_ANCESTORS = 1 << 16
_HAS_PROC = os.path.exists("/proc/self")
"""macOS has no /proc: there, only the process group of an unconfined command is ended."""
_WATCH_INTERVAL = 0.02
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAX_NEW_FILES = 10_000
_RESERVED_SPACE = 1 << 30
_RESERVED_FILES = 100_000
_CHUNK_SIZE = 1 << 16
_DRAIN_TIMEOUT = 0.5
_EXIT_TIMEOUT = 2.0


class SandboxLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Resource limits of one run.

    `memory` applies to each process and to all of them together. `disk` limits the growth of the writable folder, and
    `written` the bytes that all processes write to disk in total, including files that they delete; None disables the
    check. A run is also killed before the disk of the writable folder is full. A run that writes more than `output`
    bytes to its streams is killed; `capture` bytes per stream are kept.
    """

    seconds: float = 60.0
    cpu: int = 60
    memory: int = 256 * _MB
    processes: int = 64
    file_size: int = 64 * _MB
    disk: int | None = 256 * _MB
    written: int | None = None
    output: int = 16 * _MB
    capture: int = 20_000
    open_files: int = 256


class SandboxCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A command and everything it can access.

    `programs` are folders it can read besides the system folders. Below `writable`, `read_only` paths cannot be changed
    and `masked` paths cannot be seen; both apply only to paths that exist when the run starts.
    """

    argv: tuple[str, ...]
    cwd: Path
    writable: Path | None = None
    read_only: tuple[Path, ...] = ()
    masked: tuple[Path, ...] = ()
    programs: tuple[Path, ...] = ()
    env: Mapping[str, str] = {}
    limits: SandboxLimits = SandboxLimits()
    network: bool = False


class ProcessIO(msgspec.Struct, frozen=True, kw_only=True):
    """Standard input and output of a run. `merge` redirects stderr to stdout."""

    stdin: bytes | socket.socket | None = None
    on_output: OnOutput | None = None
    merge: bool = False


_NO_IO = ProcessIO()


class CapturedOutput(msgspec.Struct, frozen=True):
    """The beginning and the end of a stream, and how many bytes between them were dropped."""

    head: str = ""
    tail: str = ""
    dropped: int = 0

    @property
    def text(self) -> str:
        return (
            f"{self.head}\n… {self.dropped:,} bytes left out …\n{self.tail}" if self.dropped else self.head + self.tail
        )


class ProcessResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run. `stopped_by` names the limit that the run exceeded, if it was killed for that."""

    exit_code: int | None
    signal: int | None = None
    stdout: CapturedOutput = CapturedOutput()
    stderr: CapturedOutput = CapturedOutput()
    stopped_by: LimitName | None = None
    duration: float = 0.0

    @property
    def timed_out(self) -> bool:
        return self.stopped_by == "time"


class HeadTailBuffer:
    """Keeps the first and the last bytes of a stream, and counts those between."""

    def __init__(self, capacity: int) -> None:
        self._half = max(1, capacity // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, chunk: bytes) -> None:
        self._total += len(chunk)
        if (free := self._half - len(self._head)) > 0:
            self._head += chunk[:free]
            chunk = chunk[free:]
        if chunk:
            self._tail += chunk[-self._half :]
            if len(self._tail) > 2 * self._half:
                del self._tail[: -self._half]

    def captured(self) -> CapturedOutput:
        tail = bytes(self._tail[-self._half :])
        dropped = self._total - len(self._head) - len(tail)
        if not dropped:  # the boundary between head and tail may split a character
            return CapturedOutput((bytes(self._head) + tail).decode(errors="replace"))
        return CapturedOutput(self._head.decode(errors="replace"), tail.decode(errors="replace"), dropped)


class ProcessOutput:
    """Both output streams of a run. `on_full` is called once, when `limit` bytes were written; the rest is dropped."""

    def __init__(self, capture: int, limit: int, on_output: OnOutput | None, on_full: Callable[[], None]) -> None:
        self._buffers: dict[Stream, HeadTailBuffer] = {
            "stdout": HeadTailBuffer(capture),
            "stderr": HeadTailBuffer(capture),
        }
        self._limit = limit
        self._on_output = on_output
        self._on_full = on_full
        self._total = 0

    def add(self, stream: Stream, chunk: bytes) -> None:
        if self._total >= self._limit:
            return
        chunk = chunk[: self._limit - self._total]
        self._total += len(chunk)
        self._buffers[stream].add(chunk)
        if self._on_output is not None:
            self._on_output(stream, chunk)
        if self._total >= self._limit:
            self._on_full()

    def reset_limit(self) -> None:
        self._total = 0

    def captured(self, stream: Stream) -> CapturedOutput:
        return self._buffers[stream].captured()


def _kill_tree(pid: int, run_id: str, *, terminate: bool) -> None:
    """Kill a process and everything it started, in a thread, because it takes several scans of /proc.

    With `terminate`, send SIGTERM first: a process that reaps its descendants finds them more reliably.
    """
    threading.Thread(target=_kill_all, args=(pid, run_id, terminate), name="atlas-sandbox-kill", daemon=True).start()


def _kill_all(pid: int, run_id: str, terminate: bool) -> None:
    if terminate:
        _send_signal(pid, signal.SIGTERM)
        deadline = time.monotonic() + _TERM_TIMEOUT
        while time.monotonic() < deadline and _is_alive(pid):
            time.sleep(0.01)
    deadline = time.monotonic() + _KILL_TIMEOUT
    killed: set[int] = set()
    while time.monotonic() < deadline and (found := {*_related_processes(pid, run_id)}):
        for each in found:
            _send_signal(each, signal.SIGKILL)
        if found <= killed:  # no new ones: the kernel is ending them
            time.sleep(0.005)
        killed |= found
    with suppress(OSError):
        if not _HAS_PROC or _is_alive(pid):
            os.killpg(pid, signal.SIGKILL)


def _related_processes(pid: int, run_id: str = "", *, zombies: bool = False) -> Iterator[int]:
    """Yield live processes that descend from a process, are in its session, or have its run ID; not the process."""
    table: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc") if _HAS_PROC else ():
        if name.isdecimal() and (fields := _read_stat(int(name))) and (zombies or fields[0] != b"Z"):
            table[int(name)] = (int(fields[1]), int(fields[3]))
    for each, (parent, session) in table.items():
        related = session == pid or _descends(each, parent, pid, table) or (run_id and _has_run_id(each, run_id))
        if related and each not in (pid, os.getpid()):
            yield each


def _is_alive(pid: int) -> bool:
    fields = _read_stat(pid)
    return bool(fields) and fields[0] != b"Z"


def _read_stat(pid: int, proc: str = "/proc") -> list[bytes]:
    """Return the fields of /proc/PID/stat after the name (state, parent, group, session…); empty if it has ended."""
    try:
        descriptor = os.open(f"{proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)  # half the time of a file object
    except OSError:
        return []
    try:
        return os.read(descriptor, 4096).rpartition(b")")[2].split()
    except OSError:
        return []
    finally:
        os.close(descriptor)


def _descends(pid: int, parent: int, ancestor: int, table: dict[int, tuple[int, int]]) -> bool:
    for _ in range(_MAX_ANCESTORS):
        if parent == ancestor:
            return True
        if parent not in table or parent == pid:
            return False
        parent = table[parent][0]
    return False


def _has_run_id(pid: int, run_id: str) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return f"{_RUN_ID_VARIABLE}={run_id}".encode() in file.read()
    return False


def _send_signal(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)


class ResourceWatch:
    """Thread that polls the resource usage of a run and calls `on_exceeded` once if it exceeds a limit.

    In a PID namespace it counts the processes of the namespace's /proc, found through `find_init`; otherwise those
    that descend from the process or are in its session.
    """

    def __init__(
        self,
        command: SandboxCommand,
        pid: int,
        *,
        find_init: Callable[[], int | None] | None,
        on_exceeded: Callable[[LimitName], None],
    ) -> None:
        self._command = command
        self._pid = pid
        self._find_init = find_init
        self._on_exceeded = on_exceeded
        self._done = threading.Event()
        self._written = self._last_written = 0
        self._renewed = False
        threading.Thread(target=self._watch, name="atlas-sandbox-watch", daemon=True).start()

    def stop(self) -> None:
        self._done.set()

    def renew(self) -> None:
        """Restart the count of written bytes after the next measurement, which may still include older writes."""
        self._renewed = True

    def _watch(self) -> None:
        free = _FreeSpace(self._command.writable)
        disk = _DiskUsage(self._command)
        elapsed = 0.0
        while not self._done.wait(max(_WATCH_INTERVAL, 5 * elapsed)):
            started = time.monotonic()
            try:
                exceeded = self._exceeded_limit() or free.exceeded_limit() or disk.exceeded_limit()
            except OSError:
                continue
            elapsed = time.monotonic() - started
            if exceeded is not None and not self._done.is_set():
                self._on_exceeded(exceeded)
                return

    def _exceeded_limit(self) -> LimitName | None:
        limits = self._command.limits
        proc, pids, others = self._processes()
        if len(pids) > limits.processes:
            return "processes"
        usage = [_read_usage(proc, pid) for pid in pids]
        if sum(threads for threads, _ in usage) > limits.processes:
            return "processes"
        if sum(resident for _, resident in usage) > limits.memory and _unique_memory(proc, pids) > limits.memory:
            return "memory"
        if limits.written is not None:
            written = sum(_read_written(proc, pid) for pid in (*pids, *others))
            self._written += max(0, written - self._last_written)  # less if a child ended and was not waited for
            self._last_written = written
            if self._renewed:
                self._renewed = False
                self._written = 0
            if self._written > limits.written:
                return "disk"
        return None

    def _processes(self) -> tuple[str, list[int], list[int]]:
        """Return the path of /proc, the processes of the run, and others that only count as writers.

        The others are zombies, and the process that reaps orphans: it inherits their written bytes.
        """
        if self._find_init is None:
            found = list(_related_processes(self._pid, zombies=True))
            alive = [pid for pid in found if _is_alive(pid)]
            return "/proc", alive, [self._pid, *(pid for pid in found if pid not in alive)]
        init = self._find_init()
        proc = f"/proc/{init}/root/proc"
        if init is None or os.stat(proc).st_dev == os.stat("/proc").st_dev:  # its own /proc is not mounted yet
            return "/proc", [], []
        return proc, [int(name) for name in os.listdir(proc) if name.isdecimal() and name != "1"], [1]


def _read_usage(proc: str, pid: int) -> tuple[int, int]:
    """Return (threads, resident bytes) of a process; zeros if it has just ended."""
    try:
        threads = int(_read_stat(pid, proc)[17])
        with open(f"{proc}/{pid}/statm", "rb") as file:
            return threads, int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0, 0


def _read_written(proc: str, pid: int) -> int:
    """Return the number of bytes that a process and its reaped children have written to disk."""
    with suppress(OSError, ValueError), open(f"{proc}/{pid}/io", "rb") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(b"write_bytes:"))
    return 0


def _unique_memory(proc: str, pids: list[int]) -> int:
    """Sum the proportional set size of all processes. Slow, so only called if the resident sizes exceed the limit."""
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError), open(f"{proc}/{pid}/smaps_rollup", "rb") as file:
            total += sum(int(line.split()[1]) * 1024 for line in file if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")))
    return total


class _FreeSpace:
    """Free space on the disk of the writable folder. A run must leave a reserve, or half of the free space if less.

    Other programs that fill the disk meanwhile end the run as well.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        space = files = 0
        with suppress(OSError):
            space, files = self._measure()
        self._reserved = (min(_RESERVED_SPACE, space // 2), min(_RESERVED_FILES, files // 2))

    def exceeded_limit(self) -> LimitName | None:
        space, files = self._measure()
        return "disk" if space < self._reserved[0] or files < self._reserved[1] else None

    def _measure(self) -> tuple[int, int]:
        """Return free bytes and files. Some file systems have no fixed number of files and report zero."""
        if self._folder is None:
            return 0, 0
        info = os.statvfs(self._folder)
        return info.f_bavail * info.f_frsize, info.f_favail


class _DiskUsage:
    """Growth of the writable folder. The larger the folder, the less often it is measured."""

    def __init__(self, command: SandboxCommand) -> None:
        self._folder = command.writable
        self._limit = command.limits.disk
        self._next = 0.0
        self._before = self._measure(self._folder) if self._folder is not None and self._limit is not None else (0, 0)

    def exceeded_limit(self) -> LimitName | None:
        if self._folder is None or self._limit is None or time.monotonic() < self._next:
            return None
        size, files = self._measure(self._folder)
        exceeded = size - self._before[0] > self._limit or files - self._before[1] > _MAX_NEW_FILES
        return "disk" if exceeded else None

    def _measure(self, folder: Path) -> tuple[int, int]:
        started = time.monotonic()
        size = files = 0
        for entry in _entries(folder):
            files += 1
            with suppress(OSError):
                size += entry.stat(follow_symlinks=False).st_blocks * 512
        now = time.monotonic()
        self._next = now + max(0.1, 4 * (now - started))
        return size, files


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    pending = [os.fspath(folder)]
    while pending:
        with suppress(OSError), os.scandir(pending.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


class SandboxProcess:
    """A process in its own session, killed with its descendants if it exceeds a limit or the wait is cancelled."""

    find_init: Callable[[], int | None] | None = None
    """Return the PID of the init process of its PID namespace; killing the process ends the namespace."""
    reaps_children = False
    """Whether the process is a subreaper that kills its descendants on SIGTERM."""
    _process: asyncio.subprocess.Process

    def __init__(self, command: SandboxCommand, io: ProcessIO) -> None:
        limits = command.limits
        self._command = command
        self._io = io
        self._output = ProcessOutput(limits.capture, limits.output, io.on_output, lambda: self._stop("output"))
        self._run_id = secrets.token_hex(16)
        self._started_at = time.monotonic()
        self._stopped_by: LimitName | None = None
        self._streams: dict[Stream, int] = {}
        self._output_closed = asyncio.Event()
        self._kill_started = False
        self._watch: ResourceWatch | None = None
        self._stdin_task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def open(
        self, argv: Sequence[str], *, env: dict[str, str], pass_fds: Sequence[int] = (), cwd: str | None = None
    ) -> None:
        """Start the process."""
        loop = asyncio.get_running_loop()
        stdin = self._io.stdin
        stdout_read, stdout_write = os.pipe()
        stderr_read, stderr_write = (-1, stdout_write) if self._io.merge else os.pipe()
        source = stdin.fileno() if isinstance(stdin, socket.socket) else asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL if stdin is None else source,
                stdout=stdout_write,
                stderr=stderr_write,
                env=env if self.find_init else {**env, _RUN_ID_VARIABLE: self._run_id},
                cwd=cwd,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )
        except OSError as error:
            for fd in {stdout_read, stderr_read} - {-1}:
                os.close(fd)
            remedy = "check that the program and its working directory exist"
            raise SandboxUnavailable(f"cannot start {argv[0]}: {error.strerror}", remedy) from None
        finally:
            for fd in {stdout_write, stderr_write}:
                os.close(fd)
        self._add_reader(loop, "stdout", stdout_read)
        if stderr_read >= 0:
            self._add_reader(loop, "stderr", stderr_read)
        self._timer = loop.call_later(self._command.limits.seconds, self._stop, "time")
        if isinstance(stdin, bytes):
            self._stdin_task = asyncio.create_task(self._write_stdin(stdin))

        def stop_from_thread(limit: LimitName) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._stop, limit)

        self._watch = ResourceWatch(
            self._command, self._process.pid, find_init=self.find_init, on_exceeded=stop_from_thread
        )

    async def wait(self) -> ProcessResult:
        """Wait until the process has ended and its output was read. Cancelling the wait kills the process."""
        try:
            code = await self._process.wait()
            self._stop_watching()
            self._kill()  # descendants that are still running
            with suppress(TimeoutError):
                async with asyncio.timeout(_DRAIN_TIMEOUT):
                    await self._output_closed.wait()
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.create_task(self.kill()))
            raise
        self._close()
        number = _signal_number(code)
        return ProcessResult(
            exit_code=None if number or self._stopped_by else code,
            signal=number,
            stdout=self._output.captured("stdout"),
            stderr=self._output.captured("stderr"),
            stopped_by=self._stopped_by,
            duration=round(time.monotonic() - self._started_at, 3),
        )

    async def kill(self) -> None:
        """Kill the process and everything it started."""
        self._kill()
        with suppress(TimeoutError):
            async with asyncio.timeout(_EXIT_TIMEOUT):
                await self._process.wait()
        self._stop_watching()
        self._close()

    def drain(self) -> None:
        """Forward the output so far, without waiting."""
        for stream in tuple(self._streams):
            while self._read(stream):
                pass

    def renew(self, seconds: float) -> None:
        """Restart the time limit with this many seconds, and reset the limits on written bytes."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._stop, "time")
        self._output.reset_limit()
        if self._watch is not None:
            self._watch.renew()

    def _stop(self, limit: LimitName) -> None:
        if self._stopped_by is None and self._process.returncode is None:
            self._stopped_by = limit
        self._kill()

    def _kill(self) -> None:
        process = self._process
        if self.find_init:
            if process.returncode is None:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
        elif not self._kill_started:
            self._kill_started = True
            _kill_tree(process.pid, self._run_id, terminate=self.reaps_children and process.returncode is None)

    def _add_reader(self, loop: asyncio.AbstractEventLoop, stream: Stream, fd: int) -> None:
        os.set_blocking(fd, False)
        self._streams[stream] = fd
        loop.add_reader(fd, self._read, stream)

    def _read(self, stream: Stream) -> bool:
        """Read a chunk; return whether there may be more right now."""
        fd = self._streams.get(stream)
        if fd is None:
            return False
        try:
            chunk = os.read(fd, _CHUNK_SIZE)
        except BlockingIOError:
            return False
        except OSError:
            chunk = b""
        if not chunk:
            self._close_stream(stream)
            return False
        self._output.add(stream, chunk)
        return True

    def _close_stream(self, stream: Stream) -> None:
        fd = self._streams.pop(stream, None)
        if fd is not None:
            with suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        if not self._streams:
            self._output_closed.set()

    async def _write_stdin(self, content: bytes) -> None:
        if (stdin := self._process.stdin) is not None:
            with suppress(ConnectionError):
                stdin.write(content)
                await stdin.drain()
            stdin.close()

    def _stop_watching(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._stdin_task is not None:
            self._stdin_task.cancel()
        if self._watch is not None:
            self._watch.stop()

    def _close(self) -> None:
        self.drain()
        for stream in tuple(self._streams):
            self._close_stream(stream)


def _signal_number(code: int) -> int | None:
    """Return the signal that ended a process; a sandbox reports it like a shell, as 128 plus the signal."""
    number = -code if code < 0 else code - 128
    return number if 0 < number < signal.NSIG and (code < 0 or code > 128) else None


_INSIDE_SOURCE = Path(inside.__file__).read_text(encoding="utf-8")


def inside_source(
    filter_program: bytes,
    rlimits: Mapping[str, int],
    env: Mapping[str, str],
    *,
    read_only: Sequence[str] = (),
    user: int = 0,
) -> str:
    """Return Python source that confines its process and then executes the command in its arguments.

    Use it for limits and a filter that must not apply to the supervisor outside, and for mounts that can be made
    `read_only` only from inside; root then becomes `user`. The sandbox must contain the folders of this Python.
    """
    arguments = f"{filter_program!r}, {dict(rlimits)!r}, {dict(env)!r}, read_only={list(read_only)!r}, user={user!r}"
    return f"{_INSIDE_SOURCE}\nmain({arguments})\n"


PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
"""The Python that runs `inside_source`: not that of a virtual environment, which may be in a writable folder."""


def python_folders() -> list[Path]:
    """Return the folders that PYTHON needs."""
    return sorted({Path(sys.base_prefix), Path(PYTHON).parent})


def check_confined(result: ProcessResult, name: str, remedy: str) -> None:
    """Raise SandboxUnavailable if the command could not be confined, so that this is not mistaken for its failure."""
    output = result.stderr.text + result.stdout.text
    if result.exit_code == inside.FAILED and inside.ERROR_PREFIX in output:
        reason = output.partition(inside.ERROR_PREFIX)[2].strip()[:300]
        raise SandboxUnavailable(f"{name} could not confine the command: {reason}", remedy)


class Sandbox(ABC):
    """A way to confine commands. `name` is recorded in the audit log; `confines` is False for no sandbox at all.

    `not_hidden` lists the facts about the machine that commands can still see, for approval requests.
    """

    name: str
    confines: bool
    not_hidden = ""

    @abstractmethod
    async def start(self, command: SandboxCommand, io: ProcessIO) -> SandboxProcess: ...

    async def run(self, command: SandboxCommand, io: ProcessIO = _NO_IO) -> ProcessResult:
        """Run a command to its end."""
        return await (await self.start(command, io)).wait()
