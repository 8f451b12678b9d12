"""`url_fetch`: a page of the web as Markdown, a piece at a time."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Annotated

from pydantic import Field

from atlas_agents.builtin_tools.web.extract import Extract, Kind, extract, is_vague, kind_of, sniffed, wrapped
from atlas_agents.builtin_tools.web.ssrf import CAPS, INTERNET, Caps, Hosts, Network
from atlas_agents.core.errors import ToolFailed
from atlas_agents.core.text import one_line
from atlas_agents.tools.tool import Tool, tool
from atlas_agents.tools.worker_pool import WorkerDied, Workers

_CHARACTERS = 20_000
_LEAST, _MOST = 500, 100_000


def url_fetch(
    opening: AsyncExitStack, *, hosts: Iterable[str] = (), caps: Caps = CAPS, network: Network = INTERNET
) -> Tool:
    """The tool. `hosts` are those of a private network that it may read; what it holds open ends with `opening`."""
    reader = PageReader(Hosts(hosts), caps, network)
    opening.push_async_callback(reader.close)

    @tool(effect="pure", timeout=caps.total + caps.reading + 10)
    async def url_fetch(
        url: str,
        max_chars: Annotated[int, Field(ge=_LEAST, le=_MOST)] = _CHARACTERS,
        start: Annotated[int, Field(ge=0)] = 0,
    ) -> str:
        """Read a page of the web: its main content as Markdown, its title and its links. HTML, text, JSON and PDF.

        Args:
            url: The address, with http:// or https://.
            max_chars: How many characters to read.
            start: At which character to begin; for a long page, where the last piece ended.
        """
        return await reader.read(url, start, max_chars)

    return url_fetch


class PageReader:
    """Fetches pages, and has them read in a process that is killed when it takes too long."""

    def __init__(self, hosts: Hosts, caps: Caps, network: Network) -> None:
        self._hosts = hosts
        self._caps = caps
        self._network = network
        self._workers = Workers(warm=1, at_most=4)

    async def close(self) -> None:
        await self._workers.close()

    async def read(self, address: str, start: int, most: int) -> str:
        """A piece of a page, as a model is told it."""
        from atlas_agents.builtin_tools.web.download import (
            download,  # with the first page, for it brings the HTTP client
        )

        page = await download(address, hosts=self._hosts, wanted=_wanted, caps=self._caps, network=self._network)
        kind = kind_of(page.media_type) or sniffed(page.body)
        if kind is None:
            raise ToolFailed(_no_text(page.url, page.media_type or "something without a type"))
        if page.cut and kind in ("pdf", "json"):
            raise ToolFailed(f"{page.url} is larger than {page.size / 1e6:.1f} MB, and {kind.upper()} is read whole")
        found = await self._extract(kind, page.body, page.charset, page.url)
        cut = (f"It is larger than {page.size / 1e6:.1f} MB, and the rest is missing.",) if page.cut else ()
        return _describe_page(page.url, found, (*found.notes, *cut), start, most)

    async def _extract(self, kind: Kind, content: bytes, charset: str, url: str) -> Extract:
        arguments = {"kind": kind, "content": content, "charset": charset, "url": url}
        try:
            async with asyncio.timeout(self._caps.reading):
                return await self._workers.run(extract, arguments)
        except TimeoutError:
            seconds = f"{self._caps.reading:g} s"
            raise ToolFailed(
                f"{url} could not be read within {seconds}; it may be made to hold up its readers"
            ) from None
        except WorkerDied:
            raise ToolFailed(f"{url} could not be read: the process that read it broke down") from None


def _wanted(url: str, media_type: str) -> None:
    if kind_of(media_type) is None and not is_vague(media_type):
        raise ToolFailed(_no_text(url, media_type))


def _no_text(url: str, what: str) -> str:
    return f"{url} is {one_line(what, 80)}, and no text; HTML, text, JSON and PDF can be read"


def _describe_page(url: str, found: Extract, notes: tuple[str, ...], start: int, most: int) -> str:
    """A piece of a page; all that its author has written stands between the lines that say so."""
    size = len(found.text)
    if start and start >= size:
        raise ToolFailed(f"the page has {size:,} characters; there is nothing at {start:,}")
    end = min(start + most, size)
    lines = [f"Fetched: {url}", *notes]
    if (start, end) != (0, size):
        lines.append(f"Characters {start:,} to {end:,} of {size:,}." + _more(end, size))
    content = [f"Title: {found.title}"] if found.title and not start else []
    content.append(found.text[start:end] or "(There is no text here; the page may need a browser that runs scripts.)")
    if found.links and end == size:
        content.append("Links:\n" + "\n".join(f"- {words}: {place}" for words, place in found.links))
    return "\n".join(lines) + "\n" + wrapped("\n\n".join(content))


def _more(end: int, size: int) -> str:
    return f" For more, call again with start={end}." if end < size else ""
