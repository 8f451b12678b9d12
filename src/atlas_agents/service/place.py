"""The home folder in use: one process at a time works in it, and says where it can be reached."""

import fcntl
import os
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from atlas_agents.core.errors import ConfigError

_LOCK = "lock"
_NOTE = "running.json"


class Running(msgspec.Struct, frozen=True):
    """A process that works in a home folder: its number and, once it listens, its address."""

    pid: int
    url: str = ""
    version: str = ""


@contextmanager
def occupied(home: Path, *, shared: bool = False) -> Generator[None, None, None]:
    """Hold a home folder as long as the block lasts, alone, or with others who share it; ConfigError if another process
    holds it otherwise.

    Two that work alone would each take the other's open turns for ones that a sudden end cut short.
    """
    with (home / _LOCK).open("a") as file:
        if not _take(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            raise ConfigError(_taken(home))
        try:
            yield
        finally:
            if not shared or _is_mine(home):
                with suppress(FileNotFoundError):
                    (home / _NOTE).unlink()


def announce(home: Path, running: Running) -> None:
    """Say where this process can be reached, whole or not at all."""
    fresh = home / f"{_NOTE}.{os.getpid()}"
    fresh.write_bytes(msgspec.json.encode(running))
    fresh.chmod(0o600)
    fresh.replace(home / _NOTE)


def running(home: Path) -> Running | None:
    """Who works in a home folder now, and where; None if nobody does, whatever a sudden end has left there."""
    try:
        with (home / _LOCK).open("r") as file:
            if _free(file):
                return None
        return _note(home)
    except (OSError, msgspec.DecodeError):
        return None


def _note(home: Path) -> Running:
    return msgspec.json.decode((home / _NOTE).read_bytes(), type=Running)


def _is_mine(home: Path) -> bool:
    try:
        return _note(home).pid == os.getpid()
    except (OSError, msgspec.DecodeError):
        return False


def _take(file: IO[str], kind: int) -> bool:
    """Who only looks whether it is free holds it for a moment; that moment is waited for."""
    for pause in (0.02, 0.05, 0.1, None):
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if pause is not None:
                time.sleep(pause)
        else:
            return True
    return False


def _free(file: IO[str]) -> bool:
    """Nobody holds it, alone or with others."""
    for kind in (fcntl.LOCK_SH, fcntl.LOCK_EX):  # who holds it alone need not wait for who only looks
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _taken(home: Path) -> str:
    other = running(home)
    where = f", process {other.pid}" + (f" at {other.url}" if other.url else "") if other else ""
    return f"another Atlas works in {home}{where}: use that one, end it, or set ATLAS_HOME to another folder"
