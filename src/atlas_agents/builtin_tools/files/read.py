"""`file_read` and `file_list`: lines of a text file, images and the entries of folders; helpers of the other tools."""

import base64
import codecs
import os
import stat
import time
from collections.abc import Generator, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.builtin_tools.files.root import OpenedPath, Root
from atlas_agents.core.errors import BadArguments, ToolFailed

MAX_FILE_SIZE = 10 * 1024 * 1024
MAX_IMAGE_SIZE = 700 * 1024  # fits into a JSON result
MAX_LINES = 2000
_MAX_CHARACTERS = 50_000
_MAX_LINE_LENGTH = 2000
_HEAD_SIZE = 8192
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\f\x1b\b"))
Encoding: TypeAlias = Literal["utf-8", "utf-16-le", "utf-16-be", "latin-1"]
_BOMS: tuple[tuple[bytes, Encoding], ...] = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
IMAGE_SIGNATURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_BINARY_SIGNATURES = (
    (b"%PDF-", "a PDF, which this tool cannot read; convert it to text first"),
    (b"PK\x03\x04", "a ZIP archive (perhaps a .docx or .xlsx file); unpack it or export it as text first"),
    (b"SQLite format 3\0", "a SQLite database; query it with a program that reads it"),
    (b"\x7fELF", "an executable"),
)
MAX_DEPTH = 32
_MAX_ENTRIES = 50_000
_MAX_SECONDS = 8.0
_MAX_LISTED = 500
_SKIPPED_FOLDERS = frozenset(
    (".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox", ".mypy_cache")
)
"""Folders with thousands of generated files; they are listed only if named explicitly."""


class DecodedText(msgspec.Struct, frozen=True):
    """Text with its encoding and byte order mark, so that it can be written back unchanged."""

    text: str
    encoding: Encoding = "utf-8"
    bom: bytes = b""

    @property
    def encoding_name(self) -> str:
        if self.encoding == "latin-1":
            return "not UTF-8, decoded as Latin-1 (a guess)"
        return "UTF-8 with a byte order mark" if self.bom and self.encoding == "utf-8" else self.encoding.upper()

    @property
    def newline(self) -> str:
        """The line ending of most lines."""
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf * 2 > self.text.count("\n") else "\n"

    def encode(self, text: str) -> bytes:
        """Encode other text in the same way; raise ToolFailed if the encoding lacks one of its characters."""
        try:
            return self.bom + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            char = text[error.start]
            raise ToolFailed(
                f"the file is encoded as {self.encoding}, which cannot represent {char!r}; rewrite it as UTF-8"
            ) from None


def read_bytes(opened: OpenedPath, max_size: int = MAX_FILE_SIZE) -> bytes:
    """Return the content of a regular file. The limit also applies to a file that grows while it is read."""
    check_regular(opened)
    if opened.stat.st_size > max_size:
        raise ToolFailed(f"{opened.path} is too large: {format_size(opened.stat.st_size)}, max {format_size(max_size)}")
    chunks: list[bytes] = []
    left = max_size + 1
    while left > 0 and (chunk := os.read(opened.descriptor, min(left, 1 << 20))):
        chunks.append(chunk)
        left -= len(chunk)
    if left <= 0:
        raise ToolFailed(f"{opened.path} is larger than {format_size(max_size)}")
    return b"".join(chunks)


def check_regular(opened: OpenedPath) -> None:
    """Raise ToolFailed for folders, pipes, sockets and devices: reading them may block or have side effects."""
    mode = opened.stat.st_mode
    if stat.S_ISDIR(mode):
        raise ToolFailed(f"{opened.path} is a folder; use file_list to see what is in it")
    if not stat.S_ISREG(mode):
        raise ToolFailed(f"{opened.path} is a pipe, socket or device, which cannot be read; name a regular file")


def detect_image(head: bytes) -> str | None:
    """Return the media type of an image that models support; None for anything else."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for magic, media_type in IMAGE_SIGNATURES if head.startswith(magic)), None)


def decode_text(data: bytes, name: str) -> DecodedText:
    """Decode text; raise ToolFailed that describes the content if it is not text."""
    for bom, encoding in _BOMS:
        if data.startswith(bom):
            try:
                return DecodedText(data[len(bom) :].decode(encoding), encoding, bom)
            except UnicodeDecodeError:
                raise ToolFailed(f"{name} starts like {encoding} text but is not: {_describe_binary(data)}") from None
    if is_binary(data[:_HEAD_SIZE]):
        raise ToolFailed(f"{name} is not text: {_describe_binary(data)}")
    try:
        return DecodedText(data.decode())
    except UnicodeDecodeError:
        return DecodedText(data.decode("latin-1"), "latin-1")


def is_binary(head: bytes) -> bool:
    """Return whether the first bytes of a file are not text: text rarely contains control characters."""
    if any(head.startswith(bom) for bom, _ in _BOMS):
        return False
    if b"\0" in head or any(head.startswith(magic) for magic, _ in _BINARY_SIGNATURES) or detect_image(head):
        return True
    return (len(head) - len(head.translate(None, _CONTROLS))) * 20 > len(head)


def format_size(count: int) -> str:
    """Format a number of bytes: `1 byte`, `1.5 KB`."""
    if count < 1024:
        return format_count(count, "byte")
    for unit, size in (("KB", 1024), ("MB", 1024**2), ("GB", 1024**3)):
        if count < size * 1024 or unit == "GB":
            return f"{count / size:.1f} {unit}"
    raise AssertionError("unreachable")


def format_count(count: int, noun: str) -> str:
    """Format a number of items: `1 line`, `2,000 lines`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _describe_binary(data: bytes) -> str:
    kind = next((text for magic, text in _BINARY_SIGNATURES if data.startswith(magic)), None)
    return kind or f"binary data, {format_size(len(data))}"


def read_file(root: Root, path: str, start: int, lines: int) -> Any:
    """Return numbered lines of a text file from line `start` on (negative: from the end), or an image."""
    _check_range(start, lines)
    with root.find(path) as opened:
        check_regular(opened)
        size = opened.stat.st_size
        head = os.pread(opened.descriptor, _HEAD_SIZE, 0)
        if media_type := detect_image(head):
            return _read_image(opened, media_type)
        if size > MAX_FILE_SIZE and is_binary(head):
            raise ToolFailed(f"{opened.path} is not text: binary data, {format_size(size)}")
        if size > MAX_FILE_SIZE:
            return _read_part(opened, head, start, lines)
        return number_lines(opened.path, decode_text(read_bytes(opened), opened.path), start, lines)


def _check_range(start: int, lines: int) -> None:
    if start == 0 or lines < 1:
        raise BadArguments("start counts from 1, or from the end with -1; lines must be at least 1.")


def check_text(opened: OpenedPath) -> None:
    """Raise ToolFailed for files that an editor does not show as text: images, other binary data and large files."""
    check_regular(opened)
    if opened.stat.st_size > MAX_FILE_SIZE or is_binary(os.pread(opened.descriptor, _HEAD_SIZE, 0)):
        raise ToolFailed(f"{opened.path} is not text, or larger than {format_size(MAX_FILE_SIZE)}")


def _read_image(opened: OpenedPath, media_type: str) -> dict[str, str]:
    """Return the fields of an `Image`, which is shown to the model."""
    size = opened.stat.st_size
    if size > MAX_IMAGE_SIZE:
        raise ToolFailed(f"{opened.path}: image too large: {format_size(size)}, max {format_size(MAX_IMAGE_SIZE)}")
    data = base64.b64encode(read_bytes(opened, MAX_IMAGE_SIZE)).decode()
    return {"type": "image", "name": opened.path, "media_type": media_type, "data": data}


def number_lines(path: str, text: DecodedText, start: int, lines: int) -> str:
    """Return the numbered lines of a text from line `start` on, after a heading."""
    _check_range(start, lines)
    found = split_lines(text.text)
    count = len(found)
    first = start if start > 0 else max(1, count + start + 1)
    heading = [path, format_count(count, "line"), *([] if text.encoding_name == "UTF-8" else [text.encoding_name])]
    if not found:
        return f"{path} is empty"
    if first > count:
        raise ToolFailed(f"{path} has only {format_count(count, 'line')}; use start={count} or less")
    shown = list(_format_lines(found[first - 1 : first - 1 + lines], first))
    last = first + len(shown) - 1
    if first > 1 or last < count:
        heading.append(f"showing lines {first} to {last}")
    more = f"\n… {format_count(count - last, 'more line')}; continue with start={last + 1}" if last < count else ""
    return f"[{', '.join(heading)}]\n" + "\n".join(shown) + more


def _format_lines(lines: list[str], first: int) -> Iterator[str]:
    """Yield numbered lines up to the limit; long lines are cut."""
    left = _MAX_CHARACTERS
    for number, line in enumerate(lines, first):
        if len(line) > _MAX_LINE_LENGTH:
            line = f"{line[:_MAX_LINE_LENGTH]}… ({len(line):,} characters in this line)"
        left -= len(line) + 8
        if left < 0 and number > first:
            return
        yield f"{number:>6}\t{line}"


def _read_part(opened: OpenedPath, head: bytes, start: int, lines: int) -> str:
    """Read the beginning or the end of a file that is too large to be read whole."""
    size = opened.stat.st_size
    if start < 0:
        end = os.pread(opened.descriptor, MAX_FILE_SIZE // 10, max(0, size - MAX_FILE_SIZE // 10))
        shown = _format_lines(split_lines(_decode_part(head, end))[start:][:lines], 1)
        tail = "\n".join(line.partition("\t")[2] for line in shown)
        return f"[{opened.path}, {format_size(size)}, showing its last lines without numbers]\n{tail}"
    beginning = split_lines(_decode_part(head, os.pread(opened.descriptor, MAX_FILE_SIZE, 0)))[:-1]
    if start > len(beginning):
        raise ToolFailed(
            f"{opened.path} is {format_size(size)}, so only its first {len(beginning):,} lines can be read by number; "
            "read its end with a negative start, or use file_search"
        )
    shown = list(_format_lines(beginning[start - 1 : start - 1 + lines], start))
    heading = f"[{opened.path}, {format_size(size)}, showing lines {start} to {start + len(shown) - 1}]"
    return "\n".join([heading, *shown])


def _decode_part(head: bytes, part: bytes) -> str:
    """Decode part of a large text; characters that are cut at its ends are replaced."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return part.decode("utf-16-le" if head.startswith(codecs.BOM_UTF16_LE) else "utf-16-be", errors="replace")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return part.decode("latin-1")
    return part.decode(errors="replace")


def split_lines(text: str) -> list[str]:
    """Split at line feeds and remove carriage returns before them, as editors count lines."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if not lines[-1] else lines


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
    """Recursive walk through a folder that records omitted entries."""

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
        """Return notes for the model about omitted entries."""
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
    """Return a line with path and size per entry; the first line has the totals and the omissions."""
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
