"""Uploads: files that a client sends over HTTP, kept until a method uses them."""

import hashlib
import os
import re
import shutil
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from atlas_agents.core.aio import run_in_thread
from atlas_agents.core.errors import ConfigError, QuotaExceeded
from atlas_agents.core.messages import new_id
from atlas_agents.core.paths import make_private_folder
from atlas_agents.core.text import is_hidden

_MAX_NAME = 200
_MAX_PENDING = 64
"""Maximum number of pending uploads."""
_TTL = 3600.0
"""Seconds after which an unused upload is deleted."""
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\\\]")


class UploadedFile(msgspec.Struct, frozen=True, rename="camel"):
    """Response to an upload."""

    upload_id: str
    name: str
    bytes: int


class Uploads:
    """Uploaded files in a home folder: pending files in `uploads`, files of documents in `documents`."""

    def __init__(self, home: Path) -> None:
        self._pending = home / "uploads"
        self._kept = (home / "documents").resolve()

    def keeps(self, source: str) -> bool:
        """Return whether the source of a document is a kept upload."""
        return source.startswith(f"{self._kept}{os.sep}")

    def create(self, name: str) -> tuple[str, IO[bytes]]:
        """Create a pending upload and return its id and a file to write to."""
        make_private_folder(self._pending)
        self._delete_expired()
        if sum(1 for _ in self._pending.iterdir()) >= _MAX_PENDING:
            raise QuotaExceeded("too many uploads are waiting; try again later")
        id = new_id().replace("-", "")
        folder = make_private_folder(self._pending / id)
        return id, open(folder / name, "xb", opener=partial(os.open, mode=0o600))

    async def keep(self, id: str) -> Path:
        """Move a pending upload to its permanent path, which depends on its content; ConfigError if it is missing."""
        return await run_in_thread(self._keep, id)

    async def discard(self, path: Path) -> None:
        """Delete a kept file."""
        if self.keeps(str(path)):
            await run_in_thread(_unlink, path)

    def delete(self, id: str) -> None:
        """Delete a pending upload."""
        shutil.rmtree(self._pending / id, ignore_errors=True)

    def _keep(self, id: str) -> Path:
        found = next(iter(sorted((self._pending / id).glob("*"))), None)
        if found is None:
            raise ConfigError(f"upload not found: {id!r}; upload the file again")
        digest = hashlib.sha256(found.read_bytes()).hexdigest()[:32]
        folder = make_private_folder(make_private_folder(self._kept) / digest)
        path = folder.resolve() / found.name
        found.replace(path)
        self.delete(id)
        return path

    def _delete_expired(self) -> None:
        limit = time.time() - _TTL
        for folder in self._pending.iterdir():
            if folder.stat().st_mtime < limit:
                shutil.rmtree(folder, ignore_errors=True)


def _unlink(path: Path) -> None:
    path.unlink(missing_ok=True)
    with suppress(OSError):  # files with the same content and other names are in the same folder
        path.parent.rmdir()


def check_name(name: str) -> str:
    """Return the file name; raise ConfigError unless it is safe to create and to show."""
    if not name or name.startswith(".") or _UNSAFE.search(name) or any(map(is_hidden, name)):
        raise ConfigError("invalid file name: expected a name without '/' and hidden characters")
    if len(name.encode(errors="replace")) > _MAX_NAME:
        raise ConfigError(f"the file name is longer than {_MAX_NAME} bytes")
    return name
