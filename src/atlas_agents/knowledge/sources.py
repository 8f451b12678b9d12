"""Where documents come from: files, folders and addresses, and how each becomes Markdown."""

import asyncio
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.core.calling import in_thread
from atlas_agents.core.errors import ConfigError, ToolFailed
from atlas_agents.core.hidden import without_hidden
from atlas_agents.core.text import clean
from atlas_agents.knowledge.word_file import read_word_file
from atlas_agents.toolbox.web.caps import CAPS
from atlas_agents.toolbox.web.charsets import decoded
from atlas_agents.toolbox.web.extract import Extract, extract
from atlas_agents.toolbox.web.hosts import Hosts
from atlas_agents.toolbox.web.kinds import kind_of, sniffed
from atlas_agents.toolbox.web.network import INTERNET, Network
from atlas_agents.tools.workers import WorkerDied, Workers

Media: TypeAlias = Literal["markdown", "text", "html", "pdf", "docx"]
LARGEST = 30_000_000
"""Bytes of a file."""
_READING = 60.0
_WORD_FILE = "application/vnd.openxmlformats-officedocument.wordprocessingml.document"
_MEDIA: dict[str, Media] = {
    **dict.fromkeys((".md", ".markdown", ".mdx", ".rst"), "markdown"),
    **dict.fromkeys((".txt", ".text"), "text"),
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    ".pdf": "pdf",
    ".docx": "docx",
}
KINDS = "Markdown, text, HTML, PDF and Word files (.docx)"


class Item(msgspec.Struct, frozen=True):
    """One document that can be read. `name` is how it is cited, `root` what it was added with."""

    source: str
    name: str
    root: str


class Raw(msgspec.Struct, frozen=True):
    """A document as it came."""

    content: bytes
    media: Media
    charset: str = ""


class Readable(msgspec.Struct, frozen=True):
    """A document as Markdown, or as `plain` text. `lines` if its lines are those of the source."""

    title: str
    text: str
    plain: bool = False
    lines: bool = False


def is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


class Sources:
    """Finds documents and reads them; what can be hostile in a process that is killed when it takes too long."""

    def __init__(self, *, hosts: Iterable[str] = (), network: Network = INTERNET) -> None:
        self._hosts = Hosts(hosts)
        self._network = network
        self._workers = Workers(warm=1, at_most=2)

    async def close(self) -> None:
        await self._workers.close()

    async def find(self, source: str) -> list[Item]:
        """All documents of a file, a folder or an address; ConfigError if there is no such thing."""
        if is_url(source):
            return [Item(source, source, source)]
        return await in_thread(_find, source)

    async def fetch(self, item: Item) -> Raw:
        """The document as it is there now; FileNotFoundError if it is gone, ToolFailed if it has no text."""
        return await self._download(item) if is_url(item.source) else await in_thread(_load, Path(item.source))

    async def read(self, item: Item, raw: Raw) -> Readable:
        """What it says, without what hides in it; ToolFailed if that cannot be read."""
        if raw.media in ("markdown", "text"):
            text = _plain(decoded(raw.content, raw.charset))
            return Readable("", text, plain=raw.media == "text", lines=True)
        if raw.media == "docx":
            found = await self._apart(read_word_file, {"content": raw.content})
        else:
            asked = {"kind": raw.media, "content": raw.content, "charset": raw.charset, "url": item.source}
            found = await self._apart(extract, asked)
        return Readable(_plain(found.title), _plain(found.text), plain=raw.media == "pdf")

    async def _apart(self, function: Any, arguments: dict[str, Any]) -> Extract:
        try:
            async with asyncio.timeout(_READING):
                return await self._workers.run(function, arguments)
        except TimeoutError:
            raise ToolFailed(f"it could not be read within {_READING:g} s") from None
        except WorkerDied:
            raise ToolFailed("the process that read it broke down") from None

    async def _download(self, item: Item) -> Raw:
        from atlas_agents.toolbox.web.download import download  # with the first page, for it brings the HTTP client

        def wanted(url: str, media_type: str) -> None:
            """Whatever it is, its first bytes will tell."""

        page = await download(item.source, hosts=self._hosts, wanted=wanted, caps=CAPS, network=self._network)
        if page.cut:
            raise ToolFailed(f"it is larger than {page.size / 1e6:.1f} MB")
        if page.media_type == _WORD_FILE:
            return Raw(page.body, "docx")
        kind = kind_of(page.media_type) or sniffed(page.body)
        if kind is None:
            raise ToolFailed(f"it is {page.media_type or 'something without a type'}; {KINDS} can be read")
        if kind in ("html", "pdf"):
            return Raw(page.body, kind, page.charset)
        is_markdown = page.media_type == "text/markdown" or _media(Path(page.url)) == "markdown"
        return Raw(page.body, "markdown" if is_markdown else "text", page.charset)


def _plain(text: str) -> str:
    return without_hidden(clean(text)).replace("\r\n", "\n").replace("\r", "\n")


def _media(path: Path) -> Media | None:
    return _MEDIA.get(path.suffix.lower())


def _find(source: str) -> list[Item]:
    path = Path(source).expanduser()
    try:
        whole = path.resolve(strict=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if not whole.is_dir():
        if _media(whole) is None:
            raise ConfigError(f"{path} is of a kind that is not read; {KINDS} are")
        return [Item(str(whole), whole.name, str(whole))]
    found = [Item(str(each), f"{whole.name}/{each.relative_to(whole)}", str(whole)) for each in _files(whole)]
    if not found:
        raise ConfigError(f"there is nothing to read in {path}; {KINDS} are read")
    return found


def _files(folder: Path) -> Iterator[Path]:
    """In the order of their names. What is hidden is left alone, and so are links: they may lead anywhere."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "node_modules")
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and _media(path) is not None and not path.is_symlink() and path.is_file():
                yield path


def _load(path: Path) -> Raw:
    media = _media(path)
    if media is None:
        raise ToolFailed(f"{KINDS} can be read")
    try:
        if path.stat().st_size > LARGEST:
            raise ToolFailed(f"it is larger than {LARGEST / 1e6:.0f} MB")
        return Raw(path.read_bytes(), media)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ToolFailed(f"it cannot be read: {error.strerror}") from error
