"""Files of a workspace: safe reads, change detection, and the default files."""

import os
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TypeAlias

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.paths import read_text_file
from atlas_agents.core.trust import Trust

NAMES = ("AGENTS.md", "SOUL.md", "TOOLS.md")
MAX_BYTES = 256 * 1024

FileStamps: TypeAlias = tuple[tuple[int, ...] | None, ...]
"""Stat fields of the files; a different value means that one of them changed."""


def read(folder: Path, name: str, trust: Trust | None = None) -> str | None:
    """Return the text of a file without a byte order mark, or None if it does not exist.

    A link that points outside the workspace is rejected: it could put any file of the machine into the prompt. With
    `trust`, it is the version that a person agreed to.
    """
    found = _read_from_disk(folder, name)
    if trust is None:
        return found and found.removeprefix("\ufeff")
    content = trust.read(folder / name, found.encode() if found is not None else None)
    return content.decode("utf-8").removeprefix("\ufeff") if content is not None else None


def _read_from_disk(folder: Path, name: str) -> str | None:
    path = folder / name
    if not os.path.lexists(path):
        return None
    try:
        real = Path(os.path.realpath(path, strict=True))
        if not real.is_relative_to(os.path.realpath(folder)):
            raise ConfigError(f"{path}: symbolic link to outside the workspace; replace it with the file itself")
        return read_text_file(path, MAX_BYTES, real)
    except FileNotFoundError as error:
        if not path.is_symlink():  # deleted since the check above
            return None
        raise ConfigError(f"{path}: broken symbolic link; replace it with the file itself") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the file: {error.strerror}") from error


def read_stamps(folder: Path, more: Iterable[str] = ()) -> FileStamps:
    """Return the stat fields of the files and of `more` paths below the folder; cheap enough to poll every second."""
    return tuple(_stamp(folder / name) for name in (*NAMES, *more))


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        seen = path.stat()
    except OSError:
        return None
    return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_mode


@cache
def default_text(name: str) -> str:
    """Return the content of a default file."""
    return (files("atlas_agents.workspace") / "defaults" / name).read_bytes().decode()


def write_defaults(folder: Path) -> bool:
    """Write the three default files into a folder that has none of them. Return whether they were written."""
    try:
        if not folder.exists():
            folder.mkdir(parents=True)
            folder.chmod(0o755)
        if any(os.path.lexists(folder / name) for name in NAMES):
            return False
        for name in NAMES:
            _write(folder / name, default_text(name).encode())
    except FileExistsError:  # another process is writing them
        return False
    except OSError as error:
        raise ConfigError(f"cannot create the workspace {folder}: {error.strerror}") from error
    return True


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o644)
        file.write(content)
