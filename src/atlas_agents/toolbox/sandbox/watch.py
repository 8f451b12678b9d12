"""A watch over a run's processes: memory, number and disk, which no limit of a single process holds together."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from atlas_agents.toolbox.sandbox.ending import kin, stat_of
from atlas_agents.toolbox.sandbox.ports import Job, Stopped

_EVERY = 0.02
_PAGE = os.sysconf("SC_PAGE_SIZE")
_MOST_FILES = 10_000


class Watch:
    """A thread that looks at a run's processes again and again, and says so when they use too much.

    In a PID namespace they are those of its own /proc, and `first` tells which one is its first; else those that
    descend from the process that was started, or are in its session.
    """

    def __init__(
        self, job: Job, pid: int, *, first: Callable[[], int | None] | None, over: Callable[[Stopped], None]
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

    def __init__(self, job: Job) -> None:
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
