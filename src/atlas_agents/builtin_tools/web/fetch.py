"""`url_fetch`: read a web page as Markdown, in parts."""

import asyncio
import re
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from atlas_agents.builtin_tools.web import extract as extraction
from atlas_agents.builtin_tools.web.ssrf import CAPS, INTERNET, Caps, Hosts, Network
from atlas_agents.core.errors import ToolFailed
from atlas_agents.core.json import encode
from atlas_agents.core.messages import UNTRUSTED, Conversation, Message
from atlas_agents.core.text import one_line
from atlas_agents.tools.tool import Tool, tool
from atlas_agents.tools.worker_pool import WorkerDied, Workers

_DEFAULT_CHARS = 20_000
_MIN_CHARS, _MAX_CHARS = 500, 100_000
WEB = "web"
"""Kind of untrusted content in the results of web tools."""
_URL_ENDS = r"/?(?![\w%/?&=+~@-]|[.,:;!'()*$]+\w)"


def url_fetch(
    exit_stack: AsyncExitStack, *, hosts: Iterable[str] = (), caps: Caps = CAPS, network: Network = INTERNET
) -> Tool:
    """Create the tool. `hosts` are private hosts that it can read; `exit_stack` closes its worker processes."""
    reader = PageReader(Hosts(hosts), caps, network)
    exit_stack.push_async_callback(reader.close)

    @tool(effect="pure", timeout=caps.total + caps.reading + 10, untrusted=_source, sends=is_composed_url)
    async def url_fetch(
        url: str,
        max_chars: Annotated[int, Field(ge=_MIN_CHARS, le=_MAX_CHARS)] = _DEFAULT_CHARS,
        start: Annotated[int, Field(ge=0)] = 0,
    ) -> str:
        """Read a web page: its title, main content as Markdown, and links. Supports HTML, text, JSON and PDF.

        Args:
            url: The URL, with http:// or https://.
            max_chars: The maximum number of characters to return.
            start: The character to start at, to continue a long page.
        """
        return await reader.read(url, start, max_chars)

    return url_fetch


def is_composed_url(arguments: dict[str, Any], conversation: Conversation) -> bool:
    """Return whether the model composed the URL, so that it may carry data out of the session.

    A URL that the user wrote, or that occurs whole in a web page or search result, reveals nothing to its server.
    """
    url = str(arguments.get("url", "")).strip().partition("#")[0].rstrip("/")
    wanted = re.compile(re.escape(url) + _URL_ENDS)
    return not any(wanted.search(text) for message in conversation.messages for text in _texts_by_others(message))


def _texts_by_others(message: Message) -> list[str]:
    """Return the text that the user typed, or the results of web tools; nothing that a model may have composed."""
    if message.role == "tool":
        return [encode(each.result).decode() for each in message.tool_results if each.untrusted.startswith(f"{WEB}: ")]
    typed = message.role == "user" and not message.metadata.get(UNTRUSTED) and not message.metadata.get("synthetic")
    return [message.text] if typed else []


def _source(arguments: dict[str, Any]) -> str:
    """Name a page by its host and path; the rest of a URL may hold secrets."""
    try:
        parts = urlsplit(str(arguments.get("url", "")).strip())
        return f"{WEB}: {parts.scheme}://{parts.hostname}{parts.path}"
    except ValueError:
        return f"{WEB}: invalid URL"


class PageReader:
    """Downloads pages and extracts their text in worker processes, which are killed after a timeout."""

    def __init__(self, hosts: Hosts, caps: Caps, network: Network) -> None:
        self._hosts = hosts
        self._caps = caps
        self._network = network
        self._workers = Workers(warm=1, at_most=4)

    async def close(self) -> None:
        await self._workers.close()

    async def read(self, url: str, start: int, max_chars: int) -> str:
        """Return a part of a page for the model."""
        from atlas_agents.builtin_tools.web.download import download  # deferred: it imports the HTTP client

        page = await download(url, hosts=self._hosts, check_type=_check_type, caps=self._caps, network=self._network)
        kind = extraction.content_kind(page.media_type) or extraction.sniff_kind(page.body)
        if kind is None:
            raise ToolFailed(_describe_unsupported(page.url, page.media_type or "unknown type"))
        if page.cut and kind in ("pdf", "json"):
            raise ToolFailed(
                f"{page.url} is larger than {page.size / 1e6:.1f} MB, and {kind.upper()} cannot be read in part"
            )
        found = await self._extract(kind, page.body, page.charset, page.url)
        cut = (f"The page is larger than {page.size / 1e6:.1f} MB; the rest is missing.",) if page.cut else ()
        return _describe_page(page.url, found, (*found.notes, *cut), start, max_chars)

    async def _extract(self, kind: extraction.Kind, content: bytes, charset: str, url: str) -> extraction.Extract:
        arguments = {"kind": kind, "content": content, "charset": charset, "url": url}
        try:
            async with asyncio.timeout(self._caps.reading):
                return await self._workers.run(extraction.extract, arguments)
        except TimeoutError:
            raise ToolFailed(f"reading {url} took longer than {self._caps.reading:g} s") from None
        except WorkerDied:
            raise ToolFailed(f"reading {url} crashed the reader process") from None


def _check_type(url: str, media_type: str) -> None:
    if extraction.content_kind(media_type) is None and not extraction.is_unspecified(media_type):
        raise ToolFailed(_describe_unsupported(url, media_type))


def _describe_unsupported(url: str, media_type: str) -> str:
    return f"{url} is not text ({one_line(media_type, 80)}); supported: HTML, text, JSON and PDF"


def _describe_page(url: str, found: extraction.Extract, notes: tuple[str, ...], start: int, max_chars: int) -> str:
    """Format a part of a page, with all text by the page's author between the markers."""
    size = len(found.text)
    if start and start >= size:
        raise ToolFailed(f"start={start:,} is beyond the end of the page ({size:,} characters)")
    end = min(start + max_chars, size)
    lines = [f"Fetched: {url}", *notes]
    if (start, end) != (0, size):
        rest = f" To continue, call again with start={end}." if end < size else ""
        lines.append(f"Characters {start:,} to {end:,} of {size:,}.{rest}")
    content = [f"Title: {found.title}"] if found.title and not start else []
    content.append(found.text[start:end] or "(No text found; the page may need a browser that runs scripts.)")
    if found.links and end == size:
        content.append("Links:\n" + "\n".join(f"- {label}: {target}" for label, target in found.links))
    return "\n".join(lines) + "\n" + extraction.wrap_untrusted("\n\n".join(content))
