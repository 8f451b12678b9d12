"""`file_read`: lines of a text file with their numbers, or a picture."""

import base64
import codecs
import os
from collections.abc import Iterator
from typing import Any

from atlas_agents.core.errors import BadArguments, ToolFailed
from atlas_agents.toolbox.files.content import (
    LARGEST,
    LARGEST_PICTURE,
    Text,
    as_text,
    check_regular,
    counted,
    is_binary,
    picture,
    read_all,
    sized,
)
from atlas_agents.toolbox.files.root import Found, Root

MOST_LINES = 2000
MOST_CHARACTERS = 50_000
LONGEST_LINE = 2000
_HEAD = 8192


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


def _picture(found: Found, kind: str) -> dict[str, str]:
    """In the shape of an `Image`, by which a model gets to see it."""
    if found.stat.st_size > LARGEST_PICTURE:
        most = sized(LARGEST_PICTURE)
        raise ToolFailed(f"{found.path} is a picture of {sized(found.stat.st_size)}; at most {most} can be shown")
    data = base64.b64encode(read_all(found, LARGEST_PICTURE)).decode()
    return {"type": "image", "name": found.path, "media_type": kind, "data": data}


def _numbered(path: str, text: Text, start: int, lines: int) -> str:
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


def _part(found: Found, head: bytes, start: int, lines: int) -> str:
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
