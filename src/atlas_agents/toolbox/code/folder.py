"""The folder that a session's code works in, and what it made there. Whatever lies in it is a stranger's."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from atlas_agents.core.errors import ToolFailed
from atlas_agents.core.messages import Image

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_PICTURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_LARGEST = 400_000
_ALL_PICTURES = 600_000
_MOST = 1000
_LISTED = 50

PLACE = "code"
"""Below the root: where each session has its folder."""
CACHE = ".cache"
"""Where libraries put what they want to find again; not shown."""
State = dict[str, tuple[int, int]]


class Picture(msgspec.Struct, frozen=True):
    """A picture that code made, as a result shows it."""

    name: str
    media_type: str
    data: str
    type: str = "image"


class Made(msgspec.Struct, frozen=True):
    """What a run left in its folder that was not there before, or was changed."""

    files: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()


def place_for(root: Path, tenant: str, session: str) -> Path:
    """`code/<session>` below the root, made for its owner only. A link in its place would lead out, and is refused."""
    name = session if _PLAIN.fullmatch(session) and tenant == "default" else _digest(f"{tenant}\0{session}")
    folder = root.resolve()
    for part in (PLACE, name):
        folder /= part
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = folder.lstat().st_mode
        except OSError as error:
            raise ToolFailed(f"the folder {folder} cannot be made: {error.strerror}") from None
        if not stat.S_ISDIR(found):
            raise ToolFailed(f"{folder} should be a folder, and something else is in its place")
    return folder


def state_of(folder: Path) -> State:
    """Sizes and times of its files."""
    return {name: (found.st_size, found.st_mtime_ns) for name, _, _, found in _files(folder)}


def made_in(folder: Path, before: State) -> Made:
    """What is new or changed since; the smaller pictures among it as such."""
    files: list[str] = []
    pictures: list[Picture] = []
    room = _ALL_PICTURES
    for name, within, last, found in _files(folder):
        if before.get(name) == (found.st_size, found.st_mtime_ns):
            continue
        files.append(f"{name} ({found.st_size:,} bytes)")
        if found.st_size <= min(_LARGEST, room) and (picture := _picture(name, within, last)):
            pictures.append(picture)
            room -= found.st_size
    if len(files) > _LISTED:
        files[_LISTED:] = [f"and {len(files) - _LISTED:,} more"]
    return Made(tuple(files), tuple(pictures))


def _files(folder: Path) -> Iterator[tuple[str, int, str, os.stat_result]]:
    """(path below the folder, descriptor of where it lies, name there, stat) of regular files; links are not followed,
    not even those that are put there meanwhile."""
    count = 0
    for where, below, names, within in os.fwalk(folder):
        below[:] = sorted(name for name in below if name != CACHE)
        for name in sorted(names):
            try:
                found = os.stat(name, dir_fd=within, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode) and count < _MOST:
                count += 1
                yield os.path.relpath(os.path.join(where, name), folder), within, name, found


def _picture(name: str, within: int, last: str) -> Picture | None:
    try:
        fd = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=within)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        content = file.read(_LARGEST + 1)
    kind = next((kind for magic, kind in _PICTURES if content.startswith(magic)), None)
    if kind is None or len(content) > _LARGEST:
        return None
    return Picture(name, kind, Image.of(content).data)


def _digest(words: str) -> str:
    return hashlib.sha256(words.encode(errors="replace")).hexdigest()[:32]
