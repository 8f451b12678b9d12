"""The end of a run that no namespace holds together: found by descent, by session and by a mark in the environment."""

import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

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
