"""`file_list`: what is in a folder, with sizes."""

import os
import stat
import time
from collections.abc import Generator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

import msgspec

from atlas_agents.builtin_tools.files.read import counted, sized
from atlas_agents.builtin_tools.files.root import OpenedPath, Root
from atlas_agents.core.errors import BadArguments

MOST_VISITED = 50_000
DEEPEST = 32
LONGEST = 8.0
HEAPS = frozenset((".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache"))
"""Folders of what others made, in the thousands; they are entered only by name."""


class DirectoryEntry(msgspec.Struct, frozen=True):
    """Something in a folder: `path` is relative to the root, `folder` the open folder that it is in."""

    path: str
    name: str
    folder: int
    about: os.stat_result
    depth: int

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.about.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.about.st_mode)

    @property
    def leads_to(self) -> str:
        """Of a link, what is written in it."""
        if not stat.S_ISLNK(self.about.st_mode):
            return ""
        try:
            return os.readlink(self.name, dir_fd=self.folder)
        except OSError:
            return "?"


class Walk:
    """One way through a folder, which knows afterwards what it left out."""

    def __init__(
        self, root: Root, *, depth: int, hidden: bool, longest: float = LONGEST, most: int = MOST_VISITED
    ) -> None:
        self._off_limits = root.off_limits()
        self._depth = min(depth, DEEPEST)
        self._hidden = hidden
        self._longest = longest
        self._most = most
        self._until = time.monotonic() + longest
        self.visited = 0
        self.left_out = 0
        self.not_entered: list[str] = []
        self.cut_short = ""

    def through(self, top: OpenedPath) -> Generator[DirectoryEntry]:
        """Everything in an open folder, in the order of the names, what is in a folder after it."""
        yield from self._inside(top.descriptor, "" if top.path == "." else top.path, 1)

    def notes(self) -> list[str]:
        """What is missing, in words."""
        found = [f"{self.left_out:,} hidden left out"] if self.left_out else []
        if self.not_entered:
            some = ", ".join(self.not_entered[:5]) + (", …" if len(self.not_entered) > 5 else "")
            found.append(f"not entered: {some}")
        return [*found, *([self.cut_short] if self.cut_short else [])]

    def _inside(self, folder: int, path: str, depth: int) -> Generator[DirectoryEntry]:
        for name in sorted(os.listdir(folder)):
            self.visited += 1
            if self._spent():
                return
            where = f"{path}/{name}" if path else name
            if (name.startswith(".") and not self._hidden) or where in self._off_limits:
                self.left_out += 1
                continue
            try:
                about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:  # it went away just now
                continue
            entry = DirectoryEntry(where, name, folder, about, depth)
            yield entry
            if entry.is_folder:
                yield from self._enter(entry)

    def _enter(self, entry: DirectoryEntry) -> Generator[DirectoryEntry]:
        if entry.name in HEAPS:
            self.not_entered.append(entry.path)
            return
        if entry.depth >= self._depth:
            return
        try:
            folder = os.open(
                entry.name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=entry.folder
            )
        except OSError:
            self.not_entered.append(entry.path)
            return
        try:
            yield from self._inside(folder, entry.path, entry.depth + 1)
        finally:
            os.close(folder)

    def _spent(self) -> bool:
        if self.visited > self._most:
            self.cut_short = f"stopped after {self._most:,} names; look into a folder of it"
        elif time.monotonic() > self._until:
            self.cut_short = f"stopped after {self._longest:g} s; look into a folder of it"
        return bool(self.cut_short)


class Pattern:
    """A glob: `*.py` is for names in any folder, `src/**/*.py` for paths, `**` stands for any folders or none."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > 200 or "\0" in pattern:
            raise BadArguments("This is no pattern: write something like *.py or src/**/*.md.")
        parts = [part for part in pattern.strip("/").split("/") if part != "."]
        self._parts = tuple(parts) if len(parts) > 1 else ("**", *parts)
        self.is_open = not pattern or pattern in ("*", "**")

    def fits(self, path: str) -> bool:
        return self.is_open or _fits(tuple(path.split("/")), self._parts)


def _fits(path: Sequence[str], parts: Sequence[str]) -> bool:
    """Part by part: fnmatch is quick whatever it is given, and so is going through a table of what fits so far."""

    @lru_cache(None)
    def rest(at: int, part: int) -> bool:
        if part == len(parts):
            return at == len(path)
        if parts[part] == "**":
            return rest(at, part + 1) or (at < len(path) and rest(at + 1, part))
        return at < len(path) and fnmatchcase(path[at], parts[part]) and rest(at + 1, part + 1)

    return rest(0, 0)


MOST = 500


def listed(root: Root, path: str, pattern: str, depth: int, *, hidden: bool) -> str:
    """Lines of path and size, folders with a slash; the first line says what there is and what is missing."""
    if depth < 0:
        raise BadArguments("depth is how many folders deep to look, 1 or more; 0 leaves it to the tool.")
    wanted = Pattern(pattern)
    walk = Walk(root, depth=depth or (1 if wanted.is_open else DEEPEST), hidden=hidden)
    lines: list[str] = []
    files = folders = more = 0
    with root.find(path, folder=True) as top:
        for entry in walk.through(top):
            if not wanted.fits(os.path.relpath(entry.path, top.path)):
                continue
            files, folders = files + (not entry.is_folder), folders + entry.is_folder
            if len(lines) < MOST:
                lines.append(_line(entry))
            else:
                more += 1
        where = top.path
    notes = walk.notes() + ([f"{more:,} more are not shown: give a pattern or a folder"] if more else [])
    if not lines:
        what = "nothing" if wanted.is_open else f"nothing that fits {pattern}"
        return f"[{', '.join([f'{where}: {what}', *notes])}]"
    head = [f"{where}: {counted(files, 'file')}, {counted(folders, 'folder')}", *notes]
    return "\n".join([f"[{', '.join(head)}]", *lines])


def _line(entry: DirectoryEntry) -> str:
    if entry.is_folder:
        return f"{entry.path}/"
    if target := entry.leads_to:
        return f"{entry.path} -> {target}"
    return f"{entry.path}  {sized(entry.about.st_size)}" if entry.is_file else f"{entry.path}  (no regular file)"
