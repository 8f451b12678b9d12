"""`file_read`: lines of a text file with their numbers, or a picture."""

import base64
import codecs
import os
import stat
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.builtin_tools.files.root import OpenedPath, Root
from atlas_agents.core.errors import BadArguments, ToolFailed

LARGEST = 10 * 1024 * 1024
LARGEST_PICTURE = 700 * 1024  # as a result of JSON can carry
_HEAD = 8192
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\f\x1b\b"))
Encoding: TypeAlias = Literal["utf-8", "utf-16-le", "utf-16-be", "latin-1"]
_MARKS: tuple[tuple[bytes, Encoding], ...] = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_PICTURES = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"))
_DOCUMENTS = (
    (b"%PDF-", "a PDF; its text cannot be read here yet, ask for it as text"),
    (b"PK\x03\x04", "an archive or an office document; unpack or export it as text first"),
    (b"SQLite format 3\0", "a database; ask for what you need with a program that reads it"),
    (b"\x7fELF", "a program"),
)


class DecodedText(msgspec.Struct, frozen=True):
    """Text, and all that its bytes were besides."""

    text: str
    encoding: Encoding = "utf-8"
    mark: bytes = b""

    @property
    def known_as(self) -> str:
        """What to tell of the encoding; nothing of the usual one."""
        if self.encoding == "latin-1":
            return "not UTF-8, read as Latin-1, which is a guess"
        return "UTF-8 with a byte order mark" if self.mark and self.encoding == "utf-8" else self.encoding.upper()

    @property
    def newline(self) -> str:
        """How most of its lines end."""
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf * 2 > self.text.count("\n") else "\n"

    def bytes_of(self, text: str) -> bytes:
        """Other text in the same dress; ToolFailed if this encoding has no such characters."""
        try:
            return self.mark + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            char = text[error.start]
            raise ToolFailed(f"the file is {self.encoding}, which has no {char!r}; write it anew as UTF-8") from None


def read_all(found: OpenedPath, largest: int = LARGEST) -> bytes:
    """The bytes of a regular file, up to a limit that also holds for one that grows while it is read."""
    check_regular(found)
    if found.stat.st_size > largest:
        raise ToolFailed(f"{found.path} is {sized(found.stat.st_size)} long; at most {sized(largest)} can be taken")
    pieces: list[bytes] = []
    left = largest + 1
    while left > 0 and (piece := os.read(found.descriptor, min(left, 1 << 20))):
        pieces.append(piece)
        left -= len(piece)
    if left <= 0:
        raise ToolFailed(f"{found.path} is longer than {sized(largest)}")
    return b"".join(pieces)


def check_regular(found: OpenedPath) -> None:
    """ToolFailed for folders, pipes, sockets and devices: reading them may never end, or do something."""
    mode = found.stat.st_mode
    if stat.S_ISDIR(mode):
        raise ToolFailed(f"{found.path} is a folder; file_list shows what is in it")
    if not stat.S_ISREG(mode):
        raise ToolFailed(f"{found.path} is no regular file, but a pipe, a socket or a device: it is not read")


def picture(head: bytes) -> str | None:
    """The media type, if it is a picture that models know."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for mark, kind in _PICTURES if head.startswith(mark)), None)


def as_text(data: bytes, name: str) -> DecodedText:
    """Bytes as text; ToolFailed says what they are if they are none."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return DecodedText(data[len(mark) :].decode(encoding), encoding, mark)
            except UnicodeDecodeError:
                raise ToolFailed(f"{name} begins like {encoding} text and is not: {_not_text(data)}") from None
    if is_binary(data[:_HEAD]):
        raise ToolFailed(f"{name} is no text, but {_not_text(data)}")
    try:
        return DecodedText(data.decode())
    except UnicodeDecodeError:
        return DecodedText(data.decode("latin-1"), "latin-1")


def is_binary(head: bytes) -> bool:
    """Whether the first bytes of a file look like no text at all: most text has no control characters."""
    if any(head.startswith(mark) for mark, _ in _MARKS):
        return False
    if b"\0" in head or any(head.startswith(mark) for mark, _ in _DOCUMENTS) or picture(head):
        return True
    return (len(head) - len(head.translate(None, _CONTROLS))) * 20 > len(head)


def sized(count: int) -> str:
    """A number of bytes for people."""
    if count < 1024:
        return counted(count, "byte")
    for unit, size in (("KB", 1024), ("MB", 1024**2), ("GB", 1024**3)):
        if count < size * 1024 or unit == "GB":
            return f"{count / size:.1f} {unit}"
    raise AssertionError("unreachable")


def counted(count: int, thing: str) -> str:
    """`1 line`, `2,000 lines`."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def _not_text(data: bytes) -> str:
    kind = next((words for mark, words in _DOCUMENTS if data.startswith(mark)), None)
    return kind or f"binary data of {sized(len(data))}"


MOST_LINES = 2000
MOST_CHARACTERS = 50_000
LONGEST_LINE = 2000


def read(root: Root, path: str, start: int = 1, lines: int = MOST_LINES) -> Any:
    """Read a file: text as numbered lines, from line `start` on (-20 is the last 20 lines), or a picture.

    Args:
        path: Relative to the folder.
        start: The first line to read; negative numbers count from the end.
        lines: How many lines to read at most.
    """
    if start == 0 or lines < 1:
        raise BadArguments("Lines are counted from 1, or from the end with -1; read at least one of them.")
    with root.find(path) as found:
        check_regular(found)
        head = os.pread(found.descriptor, _HEAD, 0)
        if kind := picture(head):
            return _picture(found, kind)
        if found.stat.st_size > LARGEST and is_binary(head):
            raise ToolFailed(f"{found.path} is no text, but binary data of {sized(found.stat.st_size)}")
        if found.stat.st_size > LARGEST:
            return _part(found, head, start, lines)
        return _numbered(found.path, as_text(read_all(found), found.path), start, lines)


def _picture(found: OpenedPath, kind: str) -> dict[str, str]:
    """In the shape of an `Image`, by which a model gets to see it."""
    if found.stat.st_size > LARGEST_PICTURE:
        most = sized(LARGEST_PICTURE)
        raise ToolFailed(f"{found.path} is a picture of {sized(found.stat.st_size)}; at most {most} can be shown")
    data = base64.b64encode(read_all(found, LARGEST_PICTURE)).decode()
    return {"type": "image", "name": found.path, "media_type": kind, "data": data}


def _numbered(path: str, text: DecodedText, start: int, lines: int) -> str:
    found = split_lines(text.text)
    first = start if start > 0 else max(1, len(found) + start + 1)
    facts = [path, counted(len(found), "line"), *([] if text.known_as == "UTF-8" else [text.known_as])]
    if not found:
        return f"{path} is empty"
    if first > len(found):
        raise ToolFailed(f"{path} has only {counted(len(found), 'line')}; start at {len(found)} or before")
    shown = list(_shown(found[first - 1 : first - 1 + lines], first))
    last = first + len(shown) - 1
    if first > 1 or last < len(found):
        facts.append(f"lines {first} to {last} follow")
    more = f"\n… {counted(len(found) - last, 'more line')}; go on with start={last + 1}" if last < len(found) else ""
    return f"[{', '.join(facts)}]\n" + "\n".join(shown) + more


def _shown(lines: list[str], first: int) -> Iterator[str]:
    """Numbered lines, as many as there is room for; long ones are cut."""
    room = MOST_CHARACTERS
    for number, line in enumerate(lines, first):
        cut = line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}… ({len(line):,} characters in this line)"
        room -= len(cut) + 8
        if room < 0 and number > first:
            return
        yield f"{number:>6}\t{cut}"


def _part(found: OpenedPath, head: bytes, start: int, lines: int) -> str:
    """The beginning or the end of a file that is too long to be read whole: only there lines can be found quickly."""
    size = found.stat.st_size
    if start < 0:
        from_end = os.pread(found.descriptor, LARGEST // 10, max(0, size - LARGEST // 10))
        text = _lossy(head, from_end)
        shown = _shown(split_lines(text)[start:][:lines], 1)
        tail = "\n".join(line.partition("\t")[2] for line in shown)
        return f"[{found.path}, {sized(size)}, its last lines follow without numbers]\n{tail}"
    beginning = os.pread(found.descriptor, LARGEST, 0)
    kept = split_lines(_lossy(head, beginning))[:-1]
    if start > len(kept):
        raise ToolFailed(
            f"{found.path} is {sized(size)} long, and only its first {len(kept):,} lines can be read by number; "
            "read its end with a negative start, or look for words with file_search"
        )
    shown = list(_shown(kept[start - 1 : start - 1 + lines], start))
    return f"[{found.path}, {sized(size)}, lines {start} to {start + len(shown) - 1} follow]\n" + "\n".join(shown)


def _lossy(head: bytes, piece: bytes) -> str:
    """A piece of a long text; what was cut through at its ends is replaced."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return piece.decode("utf-16-le" if head.startswith(codecs.BOM_UTF16_LE) else "utf-16-be", errors="replace")
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return piece.decode("latin-1")
    return piece.decode(errors="replace")


def split_lines(text: str) -> list[str]:
    """Lines as editors count them: ended by a line feed, with or without a carriage return."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if not lines[-1] else lines
