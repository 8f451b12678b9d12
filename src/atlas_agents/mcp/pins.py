"""What the owner has approved: servers as they were written down, and their tools as they described themselves.

It is a private file in the home folder. What stands in it is what models are shown, whatever a server says later.
"""

import os
import secrets
import time
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import msgspec

from atlas_agents.core.errors import ConfigError
from atlas_agents.core.places import make_private
from atlas_agents.mcp.entries import Server
from atlas_agents.mcp.found import Found

Stamp: TypeAlias = tuple[int, ...]


class Approval(msgspec.Struct, frozen=True):
    """A yes to a server: the hash of its entry, and the tools word by word."""

    entry: str
    tools: tuple[Found, ...]
    at: int = 0

    def fits(self, server: Server) -> bool:
        """The entry is the one that was approved."""
        return self.entry == entry_digest(server)


def entry_digest(server: Server) -> str:
    return sha256(server.shown).hexdigest()


class Pins:
    """The approvals of a home folder, by server."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "mcp"
        self.path = self.folder / "approved.json"

    def read(self) -> dict[str, Approval]:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=dict[str, Approval])
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            words = f"{self.path}: {error}; take the file away and approve the servers again"
            raise ConfigError(words) from error

    def approve(self, server: Server, tools: Iterable[Found]) -> Approval:
        """Keep a yes; what was approved of this server before does not count any more."""
        approval = Approval(entry_digest(server), tuple(tools), int(time.time()))
        self._write({**self.read(), server.name: approval})
        return approval

    def forget(self, name: str) -> bool:
        """Take a yes back."""
        approvals = self.read()
        known = approvals.pop(name, None) is not None
        if known:
            self._write(approvals)
        return known

    def stamp(self) -> Stamp:
        """Another one means that the file has changed."""
        return stamp_of(self.path)

    def _write(self, approvals: dict[str, Approval]) -> None:
        make_private(self.folder)
        write_private(self.path, msgspec.json.format(msgspec.json.encode(approvals), indent=1) + b"\n")


def stamp_of(path: Path) -> Stamp:
    try:
        seen = path.stat()
    except OSError:
        return ()
    return seen.st_mtime_ns, seen.st_ino, seen.st_size


def write_private(path: Path, content: bytes) -> None:
    """Whole or not at all, and for its owner only."""
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
