"""Chunking: splits Markdown into passages along its structure, never inside code or a table row."""

import re
from collections.abc import Iterable, Iterator

import msgspec

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t]*#*[ \t]*")
_UNDERLINE = re.compile(r" {0,3}(=+|-{2,})[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM = re.compile(r"\s*(?:[-*+]|\d{1,9}[.)])\s")
_PAGE = re.compile(r"\[page (\d+) of \d+\]")
"""Page marker in text that was extracted from pages."""


class Block(msgspec.Struct, frozen=True):
    """A block of lines. `whole` blocks (code, tables) are split only if they are too long."""

    path: tuple[str, ...]
    text: str
    line: int
    page: int
    whole: bool = False
    table: bool = False


class _Reader:
    """Line-based block parser; emits a block when the next one begins."""

    def __init__(self, *, plain: bool) -> None:
        self.plain = plain
        self.path: list[tuple[int, str]] = []
        self.lines: list[str] = []
        self.first = 0
        self.page = 0
        self.fence = ""
        self.bare: Block | None = None
        """A heading without content so far, as a block of its own."""

    def give(self, *, whole: bool = False, table: bool = False) -> Iterator[Block]:
        text = "\n".join(self.lines).strip("\n")
        self.lines = []
        if text.strip():
            self.bare = None
            yield Block(self._path, text, self.first, self.page, whole or table, table)

    @property
    def _path(self) -> tuple[str, ...]:
        return tuple(words for _, words in self.path)

    def add(self, line: str, number: int) -> None:
        if not self.lines:
            self.first = number
        self.lines.append(line)

    def head(self, level: int, words: str, line: int) -> Iterator[Block]:
        """Start a heading; a preceding heading without content becomes a block."""
        if self.bare is not None and self.path and level <= self.path[-1][0]:
            yield self.bare
        self.path = [*(each for each in self.path if each[0] < level), (level, words)]
        self.bare = Block(self._path, words, line, self.page) if words else None

    @property
    def in_table(self) -> bool:
        return not (self.plain or self.fence) and bool(self.lines) and self.lines[-1].lstrip().startswith("|")

    def read(self, line: str, number: int) -> Iterator[Block]:
        page = _PAGE.fullmatch(line)
        fence = None if self.plain else _FENCE.match(line)
        if page:
            yield from self.give()
            self.page = int(page[1])
        elif self.fence:
            self.add(line, number)
            if fence and fence[1].startswith(self.fence) and not line.strip(" \t`~"):
                self.fence = ""
                yield from self.give(whole=True)
        elif fence:
            yield from self.give(table=self.in_table)
            self.fence = fence[1]
            self.add(line, number)
        else:
            yield from self._plain(line, number)

    def _plain(self, line: str, number: int) -> Iterator[Block]:
        under = None if self.plain else _UNDERLINE.fullmatch(line)
        if not self.plain and (heading := _HEADING.fullmatch(line)):
            yield from self.give(table=self.in_table)
            yield from self.head(len(heading[1]), heading[2], number)
        elif under and len(self.lines) == 1 and not self.in_table and not _ITEM.match(self.lines[0]):
            yield from self.head(1 if under[1][0] == "=" else 2, self.lines.pop().strip(), number - 1)
        elif not line.strip():
            yield from self.give(table=self.in_table)
        else:
            is_row = not self.plain and line.lstrip().startswith("|")
            if self.lines and is_row != self.in_table:
                yield from self.give(table=self.in_table)
            self.add(line.rstrip(), number)


def blocks(markdown: str, *, plain: bool = False) -> Iterator[Block]:
    """Yield all blocks in order; an unclosed fence is code to the end. `plain` text has paragraphs only."""
    reader = _Reader(plain=plain)
    for number, line in enumerate(_without_front_matter(markdown).split("\n"), 1):
        yield from reader.read(line, number)
    yield from reader.give(whole=bool(reader.fence), table=reader.in_table)
    if reader.bare is not None:
        yield reader.bare


def title_of(markdown: str) -> str:
    """Return the first heading of the highest level."""
    return next((block.path[0] for block in blocks(markdown) if block.path), "")


def _without_front_matter(markdown: str) -> str:
    """Blank out front matter, keeping line numbers."""
    if not markdown.startswith("---\n"):
        return markdown
    end = markdown.find("\n---\n", 3)
    if end < 0:
        return markdown
    head = markdown[: end + 5]
    return "\n" * head.count("\n") + markdown[end + 5 :]


LARGEST = 900
"""Maximum characters of a passage; code and tables may be longer."""
_LARGEST_WHOLE = 4 * LARGEST
_ENOUGH = 250
"""Minimum characters of a passage that need not be joined with the next one."""
_SENTENCE = re.compile(r"(?<=[.!?;:])\s+|\n")


class TextPassage(msgspec.Struct, frozen=True):
    """A passage to be stored: its headings, its text and where it begins."""

    path: tuple[str, ...]
    text: str
    line: int
    page: int

    @property
    def heading(self) -> str:
        return " > ".join(self.path)


def chunks(markdown: str, *, plain: bool = False) -> list[TextPassage]:
    """Split a document into passages, in order, without duplicates."""
    seen: set[str] = set()
    found: list[TextPassage] = []
    for chunk in _joined(piece for block in blocks(markdown, plain=plain) for piece in _pieces(block)):
        key = " ".join((chunk.heading, *chunk.text.split()))
        if key not in seen:
            seen.add(key)
            found.append(chunk)
    return found


def _joined(pieces: Iterable[Block]) -> Iterator[TextPassage]:
    """Join pieces under the same headings while they fit."""
    held: list[Block] = []
    for piece in pieces:
        if held and not _fits(held, piece):
            yield _chunk(held)
            held = []
        held.append(piece)
    if held:
        yield _chunk(held)


def _fits(held: list[Block], piece: Block) -> bool:
    size = sum(len(each.text) + 2 for each in held)
    if held[0].path != piece.path or held[0].page != piece.page:
        return False
    return size + len(piece.text) <= LARGEST or (size < _ENOUGH and piece.whole)


def _chunk(held: list[Block]) -> TextPassage:
    return TextPassage(held[0].path, "\n\n".join(each.text for each in held), held[0].line, held[0].page)


def _pieces(block: Block) -> Iterator[Block]:
    """Split a block that is too long: tables between rows, code between lines, text after sentences."""
    most = _LARGEST_WHOLE if block.whole and not block.table else LARGEST
    if len(block.text) <= most:
        yield block
        return
    lines = block.text.split("\n")
    head = lines[:2] if block.table and len(lines) > 2 and len(lines[0]) + len(lines[1]) < most // 2 else []
    if block.whole:
        units = [(place, line) for place, line in enumerate(lines)][len(head) :]
    else:
        units = [(0, unit) for unit in _SENTENCE.split(block.text) if unit.strip()]
    for place, text in _packed(units, most - sum(len(line) + 1 for line in head), "\n" if block.whole else " "):
        yield msgspec.structs.replace(block, text="\n".join([*head, text]), line=block.line + place)


def _packed(units: Iterable[tuple[int, str]], most: int, between: str) -> Iterator[tuple[int, str]]:
    held: list[str] = []
    first = 0
    for place, unit in units:
        for start in range(0, len(unit) or 1, max(most, 1)):  # a unit that is too long by itself is cut anywhere
            piece = unit[start : start + max(most, 1)]
            if held and sum(len(each) + 1 for each in held) + len(piece) > most:
                yield first, between.join(held)
                held = []
            if not held:
                first = place
            held.append(piece)
    if held:
        yield first, between.join(held)
