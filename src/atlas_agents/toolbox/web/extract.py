"""Reading: what came from the web as text for a model. It runs in a process that can be killed.

Parsers meet their worst input here: one crafted tag keeps a fast one busy for a minute, and a small PDF can ask for
gigabytes. So the time is limited from outside and the memory from inside.
"""

import json
import resource
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

import msgspec

from atlas_agents.core.errors import ToolFailed
from atlas_agents.toolbox.web.charsets import decoded
from atlas_agents.toolbox.web.kinds import Kind
from atlas_agents.toolbox.web.untrusted import one_line, plain

MOST_CHARACTERS = 1_000_000
MOST_PAGES = 300
_ROOM = 1 << 30
"""So much more memory may be taken than the process has already, in bytes."""
_TITLE = 300


class Extract(msgspec.Struct, frozen=True):
    """A page, read. `notes` are sentences about what is missing."""

    title: str
    text: str
    links: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()


def extract(kind: Kind, content: bytes, charset: str, url: str) -> Extract:
    """Title, text and links of what was fetched; ToolFailed if it cannot be read."""
    try:
        with _little_memory():
            found = _READERS[kind](content, charset, url)
    except MemoryError:
        raise ToolFailed("the page needs too much memory to be read") from None
    except ImportError as error:
        raise ToolFailed(
            f"this cannot be read here: {error.name} is missing; say pip install 'atlas-agents[web]'"
        ) from None
    text, notes = plain(found.text), found.notes
    if len(text) > MOST_CHARACTERS:
        text, notes = text[:MOST_CHARACTERS], (*notes, f"Only its first {MOST_CHARACTERS:,} characters were read.")
    return Extract(one_line(found.title, _TITLE), text, found.links, notes)


def _html(content: bytes, charset: str, url: str) -> Extract:
    from atlas_agents.toolbox.web.html import read_html

    title, text, links = read_html(decoded(content, charset, markup=True), url)
    return Extract(title, text, links)


def _text(content: bytes, charset: str, url: str) -> Extract:
    return Extract("", decoded(content, charset))


def _json(content: bytes, charset: str, url: str) -> Extract:
    """Indented, if it is JSON; else as it is."""
    text = decoded(content, charset)
    try:
        return Extract("", json.dumps(json.loads(text), indent=1, ensure_ascii=False))
    except (ValueError, RecursionError):
        return Extract("", text, notes=("It says that it is JSON, and it is not.",))


def _pdf(content: bytes, charset: str, url: str) -> Extract:
    from atlas_agents.toolbox.web.pdf import read_pdf

    title, text, notes = read_pdf(content, MOST_PAGES, MOST_CHARACTERS)
    return Extract(title, text, notes=notes)


_READERS = {"html": _html, "text": _text, "json": _json, "pdf": _pdf}


@contextmanager
def _little_memory() -> Generator[None]:
    """Let this process grow by so much and no more. The limit is taken back: other calls are served here after this."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = _size()
    if now:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, (now + _ROOM, before[1]))
    try:
        yield
    finally:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_AS, before)


def _size() -> int:
    """How much memory this process has asked for, where the system says so."""
    if sys.platform != "linux":
        return 0
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()
