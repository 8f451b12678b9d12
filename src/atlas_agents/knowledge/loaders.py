"""Document loaders: read files, folders and URLs, convert them to Markdown, and split that into passages.

Passages follow the structure of the Markdown: they never end inside code or a table row.
"""

import asyncio
import io
import os
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias
from xml.etree import ElementTree

import msgspec

from atlas_agents.builtin_tools.web.extract import Extract, content_kind, decode_text, extract, sniff_kind
from atlas_agents.builtin_tools.web.ssrf import CAPS, INTERNET, Hosts, Network
from atlas_agents.core.aio import run_in_thread
from atlas_agents.core.errors import ConfigError, ToolFailed
from atlas_agents.core.text import clean, remove_hidden_characters
from atlas_agents.tools.worker_pool import WorkerDied, Workers

_W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_TITLE = "{http://purl.org/dc/elements/1.1/}title"
_MAX_UNPACKED = 50_000_000
"""Maximum unpacked size of a Word document in bytes."""
Media: TypeAlias = Literal["markdown", "text", "html", "pdf", "docx"]
MAX_SIZE = 30_000_000
"""Maximum file size in bytes."""
_READ_TIMEOUT = 60.0
_WORD_FILE = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_MEDIA: dict[str, Media] = {
    ".md": "markdown",
    ".markdown": "markdown",
    ".mdx": "markdown",
    ".rst": "markdown",
    ".txt": "text",
    ".text": "text",
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".pdf": "pdf",
    ".docx": "docx",
}
SUPPORTED = "Markdown, text, HTML, PDF and Word files (.docx)"
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
"""Minimum number of characters of a passage; a shorter one is joined with the next."""
_SENTENCE = re.compile(r"(?<=[.!?;:])\s+|\n")


def read_word_file(content: bytes) -> Extract:
    """Read title and text of a Word document; ToolFailed if it is invalid."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            body = _parse_xml(archive, "word/document.xml").find(f"{_W}body")
            properties = "docProps/core.xml"
            title = _parse_xml(archive, properties).findtext(_TITLE) if properties in archive.namelist() else ""
    except (zipfile.BadZipFile, KeyError, ElementTree.ParseError, EOFError, RuntimeError, ValueError, OSError) as error:
        raise ToolFailed(f"damaged, or not a Word document: {error}") from None
    pieces = [] if body is None else [piece for each in body for piece in _convert_element(each)]
    return Extract(title or "", "\n\n".join(pieces))


def _parse_xml(archive: zipfile.ZipFile, name: str) -> ElementTree.Element:
    if archive.getinfo(name).file_size > _MAX_UNPACKED:
        raise ToolFailed("too large to read")
    with archive.open(name) as file:
        content = file.read(_MAX_UNPACKED + 1)
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content or len(content) > _MAX_UNPACKED:
        raise ToolFailed("contains XML entities, which Word documents never need")
    return ElementTree.fromstring(content)  # noqa: S314 - see above


def _convert_element(element: ElementTree.Element) -> Iterator[str]:
    if element.tag == f"{_W}p":
        text = _paragraph_text(element)
        if text.strip():
            yield _prefix(element) + text.strip()
    elif element.tag == f"{_W}tbl":
        rows = [[_cell_text(cell) for cell in row.findall(f"{_W}tc")] for row in element.findall(f"{_W}tr")]
        if rows:
            head, *rest = rows
            lines = [head, ["---"] * len(head), *rest]
            yield "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    elif element.tag == f"{_W}sdt":
        for inner in element.iter(f"{_W}p"):
            yield from _convert_element(inner)


def _prefix(paragraph: ElementTree.Element) -> str:
    style = paragraph.find(f"{_W}pPr/{_W}pStyle")
    name = (style.get(f"{_W}val") or "").lower() if style is not None else ""
    if name.startswith("heading") and name[7:].strip().isdigit():
        return "#" * min(int(name[7:]), 6) + " "
    if name == "title":
        return "# "
    return "- " if paragraph.find(f"{_W}pPr/{_W}numPr") is not None else ""


def _cell_text(cell: ElementTree.Element) -> str:
    return " ".join(" ".join(_paragraph_text(each).split()) for each in cell.iter(f"{_W}p")).replace("|", "/").strip()


def _paragraph_text(paragraph: ElementTree.Element) -> str:
    pieces: list[str] = []
    for each in paragraph.iter():
        if each.tag == f"{_W}t":
            pieces.append(each.text or "")
        elif each.tag in (f"{_W}tab", f"{_W}br", f"{_W}cr"):
            pieces.append(" ")
    return "".join(pieces)


class Item(msgspec.Struct, frozen=True):
    """A document to load. `name` is its name in citations, `root` the source that it was added with."""

    source: str
    name: str
    root: str


class Raw(msgspec.Struct, frozen=True):
    """A document as downloaded."""

    content: bytes
    media: Media
    charset: str = ""


class LoadedDocument(msgspec.Struct, frozen=True):
    """A document as Markdown or `plain` text. `lines` if its line numbers match the source."""

    title: str
    text: str
    plain: bool = False
    lines: bool = False


def is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


class Sources:
    """Finds and reads documents; untrusted formats are parsed in a process with a time limit."""

    def __init__(self, *, hosts: Iterable[str] = (), network: Network = INTERNET) -> None:
        self._hosts = Hosts(hosts)
        self._network = network
        self._workers = Workers(warm=1, at_most=2)

    async def close(self) -> None:
        await self._workers.close()

    async def find(self, source: str) -> list[Item]:
        """Return all documents of a file, a folder or a URL; ConfigError if it does not exist."""
        if is_url(source):
            return [Item(source, source, source)]
        return await run_in_thread(_find_items, source)

    async def fetch(self, item: Item) -> Raw:
        """Download a document; FileNotFoundError if it is gone, ToolFailed if it has no text."""
        return await self._download(item) if is_url(item.source) else await run_in_thread(_load_file, Path(item.source))

    async def read(self, item: Item, raw: Raw) -> LoadedDocument:
        """Convert a document to text without hidden characters; ToolFailed if that fails."""
        if raw.media in ("markdown", "text"):
            text = _clean(decode_text(raw.content, raw.charset))
            return LoadedDocument("", text, plain=raw.media == "text", lines=True)
        if raw.media == "docx":
            found = await self._run_in_worker(read_word_file, {"content": raw.content})
        else:
            arguments = {"kind": raw.media, "content": raw.content, "charset": raw.charset, "url": item.source}
            found = await self._run_in_worker(extract, arguments)
        return LoadedDocument(_clean(found.title), _clean(found.text), plain=raw.media == "pdf")

    async def _run_in_worker(self, function: Any, arguments: dict[str, Any]) -> Extract:
        try:
            async with asyncio.timeout(_READ_TIMEOUT):
                return await self._workers.run(function, arguments)
        except TimeoutError:
            raise ToolFailed(f"reading took longer than {_READ_TIMEOUT:g} s") from None
        except WorkerDied:
            raise ToolFailed("the reader process crashed") from None

    async def _download(self, item: Item) -> Raw:
        from atlas_agents.builtin_tools.web.download import (
            download,  # imported with the first page, because it needs the HTTP client
        )

        def check_type(url: str, media_type: str) -> None:
            """Accept any media type; the content decides."""

        page = await download(item.source, hosts=self._hosts, check_type=check_type, caps=CAPS, network=self._network)
        if page.cut:
            raise ToolFailed(f"larger than {page.size / 1e6:.1f} MB")
        if page.media_type == _WORD_FILE:
            return Raw(page.body, "docx")
        kind = content_kind(page.media_type) or sniff_kind(page.body)
        if kind is None:
            raise ToolFailed(f"unsupported type {page.media_type or 'unknown'}; supported: {SUPPORTED}")
        if kind in ("html", "pdf"):
            return Raw(page.body, kind, page.charset)
        is_markdown = page.media_type == "text/markdown" or _media_type(Path(page.url)) == "markdown"
        return Raw(page.body, "markdown" if is_markdown else "text", page.charset)


def _clean(text: str) -> str:
    return remove_hidden_characters(clean(text)).replace("\r\n", "\n").replace("\r", "\n")


def _media_type(path: Path) -> Media | None:
    return _MEDIA.get(path.suffix.lower())


def _find_items(source: str) -> list[Item]:
    path = Path(source).expanduser()
    try:
        resolved = path.resolve(strict=True)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if not resolved.is_dir():
        if _media_type(resolved) is None:
            raise ConfigError(f"unsupported file type: {path}; supported: {SUPPORTED}")
        return [Item(str(resolved), resolved.name, str(resolved))]
    found = [
        Item(str(each), f"{resolved.name}/{each.relative_to(resolved)}", str(resolved))
        for each in _walk_files(resolved)
    ]
    if not found:
        raise ConfigError(f"no supported documents in {path}; supported: {SUPPORTED}")
    return found


def _walk_files(folder: Path) -> Iterator[Path]:
    """Yield files in name order, without hidden files and without links, which may lead anywhere."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "node_modules")
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and _media_type(path) is not None and not path.is_symlink() and path.is_file():
                yield path


def _load_file(path: Path) -> Raw:
    media = _media_type(path)
    if media is None:
        raise ToolFailed(f"unsupported type; supported: {SUPPORTED}")
    try:
        if path.stat().st_size > MAX_SIZE:
            raise ToolFailed(f"larger than {MAX_SIZE / 1e6:.0f} MB")
        return Raw(path.read_bytes(), media)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ToolFailed(f"cannot be read: {error.strerror}") from error


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
