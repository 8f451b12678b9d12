"""The three files of a workspace on the disk: read with care, written only where none of them is."""

import os
import stat
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import TypeAlias

from atlas_agents.core.errors import ConfigError

NAMES = ("AGENTS.md", "SOUL.md", "TOOLS.md")
LARGEST = 256 * 1024

Look: TypeAlias = tuple[tuple[int, ...] | None, ...]
"""How the files look from outside; another look means that one of them was edited."""


def read(folder: Path, name: str) -> str | None:
    """The text of a file, without a byte order mark; None if there is no such file.

    A link that leads out of the workspace is refused, or a model could be told what stands anywhere on the machine.
    """
    path = folder / name
    if not os.path.lexists(path):
        return None
    try:
        real = Path(os.path.realpath(path, strict=True))
        if not real.is_relative_to(os.path.realpath(folder)):
            raise ConfigError(f"{path}: it is a link out of the workspace; put the file itself there")
        content = _content(real)
    except FileNotFoundError as error:
        if not path.is_symlink():  # it went away just now
            return None
        raise ConfigError(f"{path}: it is a link to nothing; put the file itself there") from error
    except OSError as error:
        raise ConfigError(f"{path}: it cannot be read: {error.strerror}") from error
    if content is None:
        raise ConfigError(f"{path}: it is not a regular file; put a text file there")
    if len(content) > LARGEST:
        raise ConfigError(
            f"{path}: it is larger than {LARGEST // 1024} KiB; every model reads all of it, so shorten it"
        )
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: it is not UTF-8; save it as UTF-8") from error


def _content(path: Path) -> bytes | None:
    """Never more than one byte too many; None for what is no file. Opening it neither waits nor follows a link."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(LARGEST + 1)
    finally:
        os.close(descriptor)


def look(folder: Path, more: Iterable[str] = ()) -> Look:
    """How the files look now, and `more` below the folder; cheap enough to be asked every second."""
    return tuple(_look(folder / name) for name in (*NAMES, *more))


def _look(path: Path) -> tuple[int, ...] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_mode


def write_defaults(folder: Path) -> bool:
    """Write all three files into a folder that has none of them, and say whether that was done."""
    try:
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o755)
        if any(os.path.lexists(folder / name) for name in NAMES):
            return False
        for name in NAMES:
            _write(folder / name, (files("atlas_agents.workspace") / "defaults" / name).read_bytes())
    except FileExistsError:  # somebody else is writing them; theirs stay
        return False
    except OSError as error:
        raise ConfigError(f"{folder}: the workspace cannot be made there: {error.strerror}") from error
    return True


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o644)
        file.write(content)
