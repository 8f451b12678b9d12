"""Home folder lock: one process at a time uses a home folder and publishes its address there.

Separate from `app`, so that a command can find the running gateway without importing one.
"""

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import write_json

_LOCK = "lock"
_ADDRESS = "running.json"


class HomeInUse(ConfigError):
    """Another process holds the home folder."""


class RunningGateway(msgspec.Struct, frozen=True):
    """The process that holds a home folder: its pid and, once it listens, its URL."""

    pid: int
    url: str = ""
    version: str = ""


@contextmanager
def lock_home(home: Path, *, shared: bool = False) -> Generator[None, None, None]:
    """Lock a home folder, exclusively or shared with other members of a cluster; raise HomeInUse if it is locked.

    Without the lock, two processes would each resume the other's running turns as if it had crashed.
    """
    with (home / _LOCK).open("a") as file:
        if not _acquire(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            raise HomeInUse(_in_use(home))
        if not shared:
            (home / _ADDRESS).unlink(missing_ok=True)  # left by a process that was killed
        try:
            yield
        finally:
            if not shared or _is_own(home):
                (home / _ADDRESS).unlink(missing_ok=True)


def publish_address(home: Path, gateway: RunningGateway) -> None:
    """Write the address of this process atomically."""
    write_json(home / _ADDRESS, gateway)


def find_running(home: Path) -> RunningGateway | None:
    """Return the process that holds a home folder, or None. An address file left by a crash does not count."""
    try:
        with (home / _LOCK).open("r") as file:
            if _is_free(file):
                return None
        return _read_address(home)
    except (OSError, msgspec.DecodeError):
        return None


def _read_address(home: Path) -> RunningGateway:
    return msgspec.json.decode((home / _ADDRESS).read_bytes(), type=RunningGateway)


def _is_own(home: Path) -> bool:
    try:
        return _read_address(home).pid == os.getpid()
    except (OSError, msgspec.DecodeError):
        return False


def _acquire(file: IO[str], kind: int) -> bool:
    """Take the lock; retry for a while, because `find_running` of a client that reconnects holds it for a moment."""
    for delay in (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, None):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if delay is not None:
                time.sleep(delay)
        else:
            return True
    return False


def _is_free(file: IO[str]) -> bool:
    """Return whether the lock is free: no process holds it, shared or exclusively."""
    for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX):  # shared first: it fails without disturbing an exclusive holder
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _in_use(home: Path) -> str:
    other = find_running(home)
    process = f" (process {other.pid}{f' at {other.url}' if other.url else ''})" if other else ""
    return f"another Atlas process{process} is using {home}; stop it, or set ATLAS_HOME to another folder"
