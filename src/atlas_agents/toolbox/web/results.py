"""What was found, as a model is told it: title, address and a few words, each address once, nothing hidden."""

import re
from collections.abc import Iterable
from html import unescape
from typing import Any, cast

import msgspec

from atlas_agents.toolbox.web.untrusted import one_line

_TITLE, _SNIPPET, _URL = 200, 600, 1000
_TAG = re.compile(r"</?[a-zA-Z][^<>]{0,200}>")


class Hit(msgspec.Struct, frozen=True):
    """One result of a search."""

    title: str
    url: str
    snippet: str


def hits(found: Iterable[Any], words: str, most: int) -> list[Hit]:
    """The first results that have an address; `words` names the field with the snippet."""
    kept: dict[str, Hit] = {}
    for each in found:
        if len(kept) >= most or not isinstance(each, dict):
            continue
        hit = _hit(cast(dict[str, Any], each), words)
        if hit is not None:
            kept.setdefault(_same(hit.url), hit)
    return list(kept.values())


def _hit(found: dict[str, Any], words: str) -> Hit | None:
    url = found.get("url") or found.get("href")
    if not isinstance(url, str) or not url.startswith(("http://", "https://")) or len(url) > _URL:
        return None
    if any(char.isspace() or not char.isprintable() for char in url):
        return None
    said = found.get(words)
    snippet = " … ".join(str(each) for each in cast(list[Any], said)) if isinstance(said, list) else said
    return Hit(_plain(found.get("title"), _TITLE) or url, url, _plain(snippet, _SNIPPET))


def _plain(text: Any, most: int) -> str:
    """A text without tags: some services mark the words that were asked for."""
    return one_line(unescape(_TAG.sub("", text)), most) if isinstance(text, str) else ""


def _same(url: str) -> str:
    """What two addresses of one page have in common."""
    return url.partition("#")[0].partition("://")[2].rstrip("/").removeprefix("www.")
