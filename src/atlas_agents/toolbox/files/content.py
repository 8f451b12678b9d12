"""What the bytes of a file are: text in some encoding, a picture, or neither; and how text becomes the same bytes."""

import codecs
import os
import stat
from typing import Literal, TypeAlias

import msgspec

from atlas_agents.core.errors import ToolFailed
from atlas_agents.toolbox.files.root import Found

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


class Text(msgspec.Struct, frozen=True):
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


def read_all(found: Found, largest: int = LARGEST) -> bytes:
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


def check_regular(found: Found) -> None:
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


def as_text(data: bytes, name: str) -> Text:
    """Bytes as text; ToolFailed says what they are if they are none."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return Text(data[len(mark) :].decode(encoding), encoding, mark)
            except UnicodeDecodeError:
                raise ToolFailed(f"{name} begins like {encoding} text and is not: {_not_text(data)}") from None
    if is_binary(data[:_HEAD]):
        raise ToolFailed(f"{name} is no text, but {_not_text(data)}")
    try:
        return Text(data.decode())
    except UnicodeDecodeError:
        return Text(data.decode("latin-1"), "latin-1")


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
