"""Small things kept in files of their own: whole or not at all, on the disk when it is said so, their owner's alone."""

import os
import secrets
from collections.abc import Generator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from atlas_agents.core.errors import ConfigError

T = TypeVar("T")


def keep(path: Path, value: Any) -> None:
    """Put a value into a file, as JSON. A sudden end leaves the old one or the new one."""
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        with suppress(OSError):
            fresh.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # the name is part of it
    finally:
        os.close(folder)


def kept(path: Path, kind: type[T]) -> T | None:
    """What a file has; None if there is none. ConfigError if it cannot be read: it is not written over in silence."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; mend it, or move it away") from error


@contextmanager
def alone(path: Path) -> Generator[None, None, None]:
    """Let nobody else in who says the same of this file: for reading, changing and keeping as one."""
    with path.with_name(f".{path.name}.lock").open("a") as file:
        flock(file, LOCK_EX)
        yield
