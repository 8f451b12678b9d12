"""A process that was started, seen from outside: read without waiting, watched, and ended with all that it started."""

import asyncio
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from atlas_agents.builtin_tools.sandbox.base import (
    CapturedOutput,
    OnOutput,
    ProcessResult,
    SandboxCommand,
    Stopped,
    Stream,
)
from atlas_agents.core.errors import SandboxUnavailable


class HeadTailBuffer:
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

    def kept(self) -> CapturedOutput:
        tail = bytes(self._tail[-self._room :])
        dropped = self.seen - len(self._head) - len(tail)
        if not dropped:  # a letter may have been cut in two where head and tail meet
            return CapturedOutput((bytes(self._head) + tail).decode(errors="replace"))
        return CapturedOutput(self._head.decode(errors="replace"), tail.decode(errors="replace"), dropped)


class ProcessOutput:
    """Both streams of a run. `full` is called once, when more was written than may be."""

    def __init__(
        self, keep: int, cap: int, on_output: OnOutput | None, spill: Path | None, full: Callable[[], None]
    ) -> None:
        self._kept: dict[Stream, HeadTailBuffer] = {"stdout": HeadTailBuffer(keep), "stderr": HeadTailBuffer(keep)}
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

    def kept(self, stream: Stream) -> CapturedOutput:
        return self._kept[stream].kept()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _private(path: Path) -> IO[bytes]:
    """For the owner alone, and never through what somebody else has put there."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb")


MARK = "ATLAS_RUN"
_GENTLY = 1.0
_PATIENCE = 2.0
_MOST = 1 << 16


def new_mark() -> str:
    return secrets.token_hex(16)


def end_all(pid: int, mark: str, *, gently: bool) -> None:
    """End the process and all that it started, in a thread: it takes several looks to be sure.

    One that is asked `gently` ends its own first; it adopted them, and knows them better.
    """
    threading.Thread(target=_end_all, args=(pid, mark, gently), name="atlas-sandbox-end", daemon=True).start()


def _end_all(pid: int, mark: str, gently: bool) -> None:
    if gently:
        _send(pid, signal.SIGTERM)
        until = time.monotonic() + _GENTLY
        while time.monotonic() < until and alive(pid):
            time.sleep(0.01)
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until and (found := [*kin(pid, mark)]):
        for each in found:
            _send(each, signal.SIGKILL)
    with suppress(OSError):
        if alive(pid):
            os.killpg(pid, signal.SIGKILL)


def kin(pid: int, mark: str = "") -> Iterator[int]:
    """What descends from a process, is in its session, or carries its mark; not the process itself, nor the dead."""
    table: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdecimal() and (fields := stat_of(int(name))) and fields[0] != b"Z":
            table[int(name)] = (int(fields[1]), int(fields[3]))
    for each, (parent, session) in table.items():
        related = session == pid or _descends(each, parent, pid, table) or (mark and _marked(each, mark))
        if related and each not in (pid, os.getpid()):
            yield each


def alive(pid: int) -> bool:
    fields = stat_of(pid)
    return bool(fields) and fields[0] != b"Z"


def stat_of(pid: int, proc: str = "/proc") -> list[bytes]:
    """What /proc says of it after its name: state, parent, group, session…; nothing of one that is gone."""
    with suppress(OSError), open(f"{proc}/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()
    return []


def _descends(pid: int, parent: int, ancestor: int, table: dict[int, tuple[int, int]]) -> bool:
    for _ in range(_MOST):
        if parent == ancestor:
            return True
        if parent not in table or parent == pid:
            return False
        parent = table[parent][0]
    return False


def _marked(pid: int, mark: str) -> bool:
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return f"{MARK}={mark}".encode() in file.read()
    return False


def _send(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)


_EVERY = 0.02
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MOST_FILES = 10_000


class ResourceWatch:
    """A thread that looks at a run's processes again and again, and says so when they use too much.

    In a PID namespace they are those of its own /proc, and `first` tells which one is its first; else those that
    descend from the process that was started, or are in its session.
    """

    def __init__(
        self, job: SandboxCommand, pid: int, *, first: Callable[[], int | None] | None, over: Callable[[Stopped], None]
    ) -> None:
        self._job = job
        self._pid = pid
        self._first = first
        self._over = over
        self._done = threading.Event()
        threading.Thread(target=self._look_on, name="atlas-sandbox-watch", daemon=True).start()

    def end(self) -> None:
        self._done.set()

    def _look_on(self) -> None:
        disk = _Disk(self._job)
        took = 0.0
        while not self._done.wait(max(_EVERY, 5 * took)):
            began = time.monotonic()
            try:
                what = self._too_much() or disk.too_much()
            except OSError:
                continue
            took = time.monotonic() - began
            if what is not None and not self._done.is_set():
                self._over(what)
                return

    def _too_much(self) -> Stopped | None:
        limits = self._job.limits
        proc, pids = self._processes()
        if len(pids) > limits.processes:
            return "processes"
        uses = [_use(proc, pid) for pid in pids]
        if sum(threads for threads, _ in uses) > limits.processes:
            return "processes"
        if sum(resident for _, resident in uses) > limits.memory and _shared_out(proc, pids) > limits.memory:
            return "memory"
        return None

    def _processes(self) -> tuple[str, list[int]]:
        if self._first is None:
            return "/proc", list(kin(self._pid))
        first = self._first()
        proc = f"/proc/{first}/root/proc"
        if first is None or os.stat(proc).st_dev == os.stat("/proc").st_dev:  # it has not moved in yet
            return "/proc", []
        return proc, [int(name) for name in os.listdir(proc) if name.isdecimal() and name != "1"]


def _use(proc: str, pid: int) -> tuple[int, int]:
    """(threads, resident bytes) of a process; nothing of one that has just ended."""
    try:
        threads = int(stat_of(pid, proc)[17])
        with open(f"{proc}/{pid}/statm", "rb") as file:
            return threads, int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0, 0


def _shared_out(proc: str, pids: list[int]) -> int:
    """What they use together, each page counted once: slower to learn, so asked only when it matters."""
    total = 0
    for pid in pids:
        with suppress(OSError, ValueError, IndexError), open(f"{proc}/{pid}/smaps_rollup", "rb") as file:
            total += sum(int(line.split()[1]) * 1024 for line in file if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")))
    return total


class _Disk:
    """What was added to the writable folder. A big folder is looked at less often."""

    def __init__(self, job: SandboxCommand) -> None:
        self._folder = job.writable
        self._most = job.limits.disk
        self._next = 0.0
        self._before = self._measure(self._folder) if self._folder is not None and self._most is not None else (0, 0)

    def too_much(self) -> Stopped | None:
        if self._folder is None or self._most is None or time.monotonic() < self._next:
            return None
        size, files = self._measure(self._folder)
        over = size - self._before[0] > self._most or files - self._before[1] > _MOST_FILES
        return "disk" if over else None

    def _measure(self, folder: Path) -> tuple[int, int]:
        began = time.monotonic()
        size = files = 0
        for entry in _entries(folder):
            files += 1
            with suppress(OSError):
                size += entry.stat(follow_symlinks=False).st_blocks * 512
        now = time.monotonic()
        self._next = now + max(0.1, 4 * (now - began))
        return size, files


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    waiting = [os.fspath(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)


_PIECE = 1 << 16
_LAST_WORDS = 0.5  # seconds for what is still in the pipes of a process that has ended
_END = 2.0


class Confined:
    """One process in its own session. What ends the run early, a limit or the caller, kills all of it."""

    first: Callable[[], int | None] | None = None
    """Tells the first process of the PID namespace that it lives in, which dies with it, if there is one."""
    gently = False
    """It adopts what it started, and ends it when asked to."""
    _process: asyncio.subprocess.Process

    def __init__(self, job: SandboxCommand, *, on_output: OnOutput | None, spill: Path | None) -> None:
        limits = job.limits
        self._job = job
        self._output = ProcessOutput(limits.keep, limits.output, on_output, spill, lambda: self._stop("output"))
        self._mark = new_mark()
        self._began = time.monotonic()
        self._stopped: Stopped | None = None
        self._streams: dict[Stream, int] = {}
        self._all_read = asyncio.Event()
        self._struck = False
        self._watch: ResourceWatch | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    async def open(
        self,
        argv: Sequence[str],
        *,
        env: dict[str, str],
        stdin: bytes | socket.socket | None,
        merge: bool,
        pass_fds: Sequence[int] = (),
        cwd: str | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        reading2, writing2 = (-1, writing) if merge else os.pipe()
        source = stdin.fileno() if isinstance(stdin, socket.socket) else asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL if stdin is None else source,
                stdout=writing,
                stderr=writing2,
                env=env if self.first else {**env, MARK: self._mark},
                cwd=cwd,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
            )
        except OSError as error:
            for end in {reading, reading2} - {-1}:
                os.close(end)
            self._output.close()
            raise SandboxUnavailable(f"{argv[0]} could not be started: {error.strerror}", "see to that") from None
        finally:
            for end in {writing, writing2}:
                os.close(end)
        self._listen(loop, "stdout", reading)
        if not merge:
            self._listen(loop, "stderr", reading2)
        limits = self._job.limits
        self._timer = loop.call_later(limits.seconds, self._stop, "time")
        if isinstance(stdin, bytes):
            self._feeding = asyncio.create_task(self._feed(stdin))
        self._watch = ResourceWatch(self._job, self._process.pid, first=self.first, over=self._over_from(loop))

    async def wait(self) -> ProcessResult:
        try:
            code = await self._process.wait()
            self._put_away()
            self._strike()  # what it left behind, where that did not end with it
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):
                    await self._all_read.wait()
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.create_task(self.kill()))
            raise
        self._close()
        signalled = _signal_of(code)
        return ProcessResult(
            exit_code=None if signalled or self._stopped else code,
            signal=signalled,
            stdout=self._output.kept("stdout"),
            stderr=self._output.kept("stderr"),
            stopped=self._stopped,
            duration=round(time.monotonic() - self._began, 3),
            spilled=self._output.spilled,
        )

    async def kill(self) -> None:
        self._strike()
        with suppress(TimeoutError):
            async with asyncio.timeout(_END):
                await self._process.wait()
        self._put_away()
        self._close()

    def drain(self) -> None:
        for stream in tuple(self._streams):
            while self._read(stream):
                pass

    def renew(self, seconds: float) -> None:
        """From now on it has this long, and may write as much as at first."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._stop, "time")
        self._output.renew()

    def _over_from(self, loop: asyncio.AbstractEventLoop) -> Callable[[Stopped], None]:
        def over(what: Stopped) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._stop, what)

        return over

    def _stop(self, what: Stopped) -> None:
        if self._stopped is None and self._process.returncode is None:
            self._stopped = what
        self._strike()

    def _strike(self) -> None:
        process = self._process
        if self.first:
            if process.returncode is None:
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
        elif not self._struck:
            self._struck = True
            end_all(process.pid, self._mark, gently=self.gently and process.returncode is None)

    def _listen(self, loop: asyncio.AbstractEventLoop, stream: Stream, reading: int) -> None:
        os.set_blocking(reading, False)
        self._streams[stream] = reading
        loop.add_reader(reading, self._read, stream)

    def _read(self, stream: Stream) -> bool:
        """Read a piece; whether there may be more at once."""
        reading = self._streams.get(stream)
        if reading is None:
            return False
        try:
            piece = os.read(reading, _PIECE)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if not piece:
            self._forget(stream)
            return False
        self._output.add(stream, piece)
        return True

    def _forget(self, stream: Stream) -> None:
        reading = self._streams.pop(stream, None)
        if reading is not None:
            with suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(reading)
            os.close(reading)
        if not self._streams:
            self._all_read.set()

    async def _feed(self, words: bytes) -> None:
        if (line := self._process.stdin) is not None:
            with suppress(ConnectionError):
                line.write(words)
                await line.drain()
            line.close()

    def _put_away(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._feeding is not None:
            self._feeding.cancel()
        if self._watch is not None:
            self._watch.end()

    def _close(self) -> None:
        self.drain()
        for stream in tuple(self._streams):
            self._forget(stream)
        self._output.close()


def _signal_of(code: int) -> int | None:
    """Of a process that a signal ended, which; a sandbox tells it as a shell does, by 128 and more."""
    number = -code if code < 0 else code - 128
    return number if 0 < number < signal.NSIG and (code < 0 or code > 128) else None
