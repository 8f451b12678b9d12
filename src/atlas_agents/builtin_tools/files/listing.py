"""`file_list`: the entries of a folder with their sizes. Also walks folders for the other tools."""

import os
import stat
import time
from collections.abc import Generator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache

import msgspec

from atlas_agents.builtin_tools.files.read import format_count, format_size
from atlas_agents.builtin_tools.files.root import OpenedPath, Root
from atlas_agents.core.errors import BadArguments

MAX_DEPTH = 32
_MAX_ENTRIES = 50_000
_MAX_SECONDS = 8.0
_MAX_LISTED = 500
_SKIPPED_FOLDERS = frozenset(
    (".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache")
)
"""Folders with thousands of generated files; they are listed only if named explicitly."""


class DirectoryEntry(msgspec.Struct, frozen=True):
    """An entry of a folder. `path` is relative to the root, `folder` is the descriptor of the folder that has it."""

    path: str
    name: str
    folder: int
    stat: os.stat_result
    depth: int

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.stat.st_mode)

    @property
    def is_socket(self) -> bool:
        return stat.S_ISSOCK(self.stat.st_mode)

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.stat.st_mode)

    @property
    def link_target(self) -> str:
        """The target of a symbolic link; empty for anything else."""
        if not stat.S_ISLNK(self.stat.st_mode):
            return ""
        try:
            return os.readlink(self.name, dir_fd=self.folder)
        except OSError:
            return "?"


class DirectoryWalk:
    """Recursive walk through a folder that records what it omitted."""

    def __init__(
        self,
        root: Root,
        *,
        depth: int,
        hidden: bool,
        max_seconds: float = _MAX_SECONDS,
        max_entries: int = _MAX_ENTRIES,
    ) -> None:
        self._private = root.private_paths()
        self._depth = min(depth, MAX_DEPTH)
        self._hidden = hidden
        self._max_seconds = max_seconds
        self._max_entries = max_entries
        self._deadline = time.monotonic() + max_seconds
        self._visited = 0
        self._omitted = 0
        self._skipped: list[str] = []
        self._stop_reason = ""

    def entries(self, top: OpenedPath) -> Generator[DirectoryEntry]:
        """Yield everything in an open folder, sorted by name, each folder before its content."""
        yield from self._walk(top.descriptor, "" if top.path == "." else top.path, 1)

    def notes(self) -> list[str]:
        """Return what the walk omitted, for the model."""
        notes = [f"{self._omitted:,} hidden omitted"] if self._omitted else []
        if self._skipped:
            names = ", ".join(self._skipped[:5]) + (", …" if len(self._skipped) > 5 else "")
            notes.append(f"contents not listed: {names}")
        return [*notes, *([self._stop_reason] if self._stop_reason else [])]

    def _walk(self, folder: int, parent: str, depth: int) -> Generator[DirectoryEntry]:
        for name in sorted(os.listdir(folder)):
            self._visited += 1
            if self._is_over():
                return
            path = f"{parent}/{name}" if parent else name
            if (name.startswith(".") and not self._hidden) or path in self._private:
                self._omitted += 1
                continue
            try:
                info = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:  # it was just removed
                continue
            entry = DirectoryEntry(path, name, folder, info, depth)
            yield entry
            if entry.is_folder:
                yield from self._enter(entry)

    def _enter(self, entry: DirectoryEntry) -> Generator[DirectoryEntry]:
        if entry.name in _SKIPPED_FOLDERS:
            self._skipped.append(entry.path)
            return
        if entry.depth >= self._depth:
            return
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            folder = os.open(entry.name, flags, dir_fd=entry.folder)
        except OSError:
            self._skipped.append(entry.path)
            return
        try:
            yield from self._walk(folder, entry.path, entry.depth + 1)
        finally:
            os.close(folder)

    def _is_over(self) -> bool:
        if self._visited > self._max_entries:
            self._stop_reason = f"stopped after {self._max_entries:,} entries; choose a subfolder"
        elif time.monotonic() > self._deadline:
            self._stop_reason = f"stopped after {self._max_seconds:g} s; choose a subfolder"
        return bool(self._stop_reason)


class GlobPattern:
    """A glob: `*.py` matches names in any folder, `src/**/*.py` matches paths, `**` any number of folders."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > 200 or "\0" in pattern:
            raise BadArguments("Invalid pattern: expected a glob such as *.py or src/**/*.md, at most 200 characters.")
        parts = [part for part in pattern.strip("/").split("/") if part != "."]
        self._parts = tuple(parts) if len(parts) > 1 else ("**", *parts)
        self.matches_all = not pattern or pattern in ("*", "**")

    def matches(self, path: str) -> bool:
        return self.matches_all or _match_parts(tuple(path.split("/")), self._parts)


def _match_parts(path: Sequence[str], parts: Sequence[str]) -> bool:
    """Match part by part, memoized, so that no pattern takes exponential time."""

    @lru_cache(None)
    def match(at: int, part: int) -> bool:
        if part == len(parts):
            return at == len(path)
        if parts[part] == "**":
            return match(at, part + 1) or (at < len(path) and match(at + 1, part))
        return at < len(path) and fnmatchcase(path[at], parts[part]) and match(at + 1, part + 1)

    return match(0, 0)


def list_files(root: Root, path: str, pattern: str, depth: int, *, hidden: bool) -> str:
    """Return a line with path and size per entry; the first line has the totals and what was omitted."""
    if depth < 0:
        raise BadArguments(f"invalid depth {depth}: expected 1 or more, or 0 for the default.")
    glob = GlobPattern(pattern)
    walk = DirectoryWalk(root, depth=depth or (1 if glob.matches_all else MAX_DEPTH), hidden=hidden)
    lines: list[str] = []
    files = folders = 0
    with root.find(path, folder=True) as top:
        for entry in walk.entries(top):
            if not glob.matches(os.path.relpath(entry.path, top.path)):
                continue
            files, folders = files + (not entry.is_folder), folders + entry.is_folder
            if len(lines) < _MAX_LISTED:
                lines.append(_format_entry(entry))
        name = top.path
    more = files + folders - len(lines)
    notes = walk.notes() + ([f"{more:,} more not shown: use a pattern or a subfolder"] if more else [])
    if lines:
        found = f"{format_count(files, 'file')}, {format_count(folders, 'folder')}"
    else:
        found = "no entries" if glob.matches_all else f"nothing matches {pattern}"
    return "\n".join([f"[{', '.join([f'{name}: {found}', *notes])}]", *lines])


def _format_entry(entry: DirectoryEntry) -> str:
    if entry.is_folder:
        return f"{entry.path}/"
    if target := entry.link_target:
        return f"{entry.path} -> {target}"
    return f"{entry.path}  {format_size(entry.stat.st_size) if entry.is_file else '(not a regular file)'}"
