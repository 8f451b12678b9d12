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
MAX_PASSAGE = 900
"""Maximum characters of a passage; code and tables may be longer."""
_MAX_WHOLE = 4 * MAX_PASSAGE
_MIN_PASSAGE = 250
"""Minimum characters of a passage that need not be joined with the next one."""
_SENTENCE = re.compile(r"(?<=[.!?;:])\s+|\n")


class Block(msgspec.Struct, frozen=True):
    """A block of lines. `whole` blocks (code, tables) are split only if they are too long."""

    path: tuple[str, ...]
    text: str
    line: int
    page: int
    whole: bool = False
    table: bool = False


class _BlockParser:
    """Line-based block parser; emits a block when the next one begins."""

    def __init__(self, *, plain: bool) -> None:
        self.plain = plain
        self.path: list[tuple[int, str]] = []
        self.lines: list[str] = []
        self.first = 0
        self.page = 0
        self.fence = ""
        self.empty_heading: Block | None = None
        """A heading without content so far, as a block of its own."""

    def emit(self, *, whole: bool = False, table: bool = False) -> Iterator[Block]:
        text = "\n".join(self.lines).strip("\n")
        self.lines = []
        if text.strip():
            self.empty_heading = None
            yield Block(self._path, text, self.first, self.page, whole or table, table)

    @property
    def _path(self) -> tuple[str, ...]:
        return tuple(title for _, title in self.path)

    def add(self, line: str, number: int) -> None:
        if not self.lines:
            self.first = number
        self.lines.append(line)

    def start_heading(self, level: int, title: str, line: int) -> Iterator[Block]:
        """Start a heading; a preceding heading without content becomes a block."""
        if self.empty_heading is not None and self.path and level <= self.path[-1][0]:
            yield self.empty_heading
        self.path = [*(each for each in self.path if each[0] < level), (level, title)]
        self.empty_heading = Block(self._path, title, line, self.page) if title else None

    @property
    def in_table(self) -> bool:
        return not (self.plain or self.fence) and bool(self.lines) and self.lines[-1].lstrip().startswith("|")

    def feed(self, line: str, number: int) -> Iterator[Block]:
        page = _PAGE.fullmatch(line)
        fence = None if self.plain else _FENCE.match(line)
        if page:
            yield from self.emit()
            self.page = int(page[1])
        elif self.fence:
            self.add(line, number)
            if fence and fence[1].startswith(self.fence) and not line.strip(" \t`~"):
                self.fence = ""
                yield from self.emit(whole=True)
        elif fence:
            yield from self.emit(table=self.in_table)
            self.fence = fence[1]
            self.add(line, number)
        else:
            yield from self._feed_text(line, number)

    def _feed_text(self, line: str, number: int) -> Iterator[Block]:
        underline = None if self.plain else _UNDERLINE.fullmatch(line)
        if not self.plain and (heading := _HEADING.fullmatch(line)):
            yield from self.emit(table=self.in_table)
            yield from self.start_heading(len(heading[1]), heading[2], number)
        elif underline and len(self.lines) == 1 and not self.in_table and not _ITEM.match(self.lines[0]):
            yield from self.start_heading(1 if underline[1][0] == "=" else 2, self.lines.pop().strip(), number - 1)
        elif not line.strip():
            yield from self.emit(table=self.in_table)
        else:
            is_row = not self.plain and line.lstrip().startswith("|")
            if self.lines and is_row != self.in_table:
                yield from self.emit(table=self.in_table)
            self.add(line.rstrip(), number)


def parse_blocks(markdown: str, *, plain: bool = False) -> Iterator[Block]:
    """Yield all blocks in order; an unclosed fence is code to the end. `plain` text has paragraphs only."""
    parser = _BlockParser(plain=plain)
    for number, line in enumerate(_without_front_matter(markdown).split("\n"), 1):
        yield from parser.feed(line, number)
    yield from parser.emit(whole=bool(parser.fence), table=parser.in_table)
    if parser.empty_heading is not None:
        yield parser.empty_heading


def _without_front_matter(markdown: str) -> str:
    """Blank out front matter, keeping line numbers."""
    if not markdown.startswith("---\n"):
        return markdown
    end = markdown.find("\n---\n", 3)
    if end < 0:
        return markdown
    return "\n" * markdown.count("\n", 0, end + 5) + markdown[end + 5 :]


class TextPassage(msgspec.Struct, frozen=True):
    """A passage to be stored: its headings, its text and where it begins."""

    path: tuple[str, ...]
    text: str
    line: int
    page: int

    @property
    def heading(self) -> str:
        return " > ".join(self.path)


def split_passages(markdown: str, *, plain: bool = False) -> list[TextPassage]:
    """Split a document into passages, in order, without duplicates."""
    seen: set[str] = set()
    passages: list[TextPassage] = []
    for chunk in _join_pieces(piece for block in parse_blocks(markdown, plain=plain) for piece in _split_block(block)):
        key = " ".join((chunk.heading, *chunk.text.split()))
        if key not in seen:
            seen.add(key)
            passages.append(chunk)
    return passages


def _join_pieces(pieces: Iterable[Block]) -> Iterator[TextPassage]:
    """Join pieces under the same headings while they fit."""
    pending: list[Block] = []
    for piece in pieces:
        if pending and not _fits(pending, piece):
            yield _to_passage(pending)
            pending = []
        pending.append(piece)
    if pending:
        yield _to_passage(pending)


def _fits(pending: list[Block], piece: Block) -> bool:
    size = sum(len(each.text) + 2 for each in pending)
    if pending[0].path != piece.path or pending[0].page != piece.page:
        return False
    return size + len(piece.text) <= MAX_PASSAGE or (size < _MIN_PASSAGE and piece.whole)


def _to_passage(pending: list[Block]) -> TextPassage:
    return TextPassage(pending[0].path, "\n\n".join(each.text for each in pending), pending[0].line, pending[0].page)


def _split_block(block: Block) -> Iterator[Block]:
    """Split a block that is too long: tables between rows, code between lines, text after sentences."""
    limit = _MAX_WHOLE if block.whole and not block.table else MAX_PASSAGE
    if len(block.text) <= limit:
        yield block
        return
    lines = block.text.split("\n")
    header = lines[:2] if block.table and len(lines) > 2 and len(lines[0]) + len(lines[1]) < limit // 2 else []
    if block.whole:
        units = [(offset, line) for offset, line in enumerate(lines)][len(header) :]
    else:
        units = [(0, unit) for unit in _SENTENCE.split(block.text) if unit.strip()]
    budget = limit - sum(len(line) + 1 for line in header)
    for offset, text in _pack_units(units, budget, "\n" if block.whole else " "):
        yield msgspec.structs.replace(block, text="\n".join([*header, text]), line=block.line + offset)


def _pack_units(units: Iterable[tuple[int, str]], limit: int, separator: str) -> Iterator[tuple[int, str]]:
    pending: list[str] = []
    first = 0
    for offset, unit in units:
        for start in range(0, len(unit) or 1, max(limit, 1)):  # a unit that is too long by itself is cut anywhere
            piece = unit[start : start + max(limit, 1)]
            if pending and sum(len(each) + 1 for each in pending) + len(piece) > limit:
                yield first, separator.join(pending)
                pending = []
            if not pending:
                first = offset
            pending.append(piece)
    if pending:
        yield first, separator.join(pending)
