"""Words and phrases that the style guide forbids, and the search for them in code, docs and the web client.

Metaphors hide the field's own term: `Desk` instead of `ToolRunner`, "the last word" instead of "the terminal event".
Identifiers are split into their words, so `house_events` and `HouseEvents` are both found, and `heartbeat` is not.
"""

import io
import re
import tokenize
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

_WORDS = re.compile(
    r"""(?: houses? | housed | rooms? | floors? | doors? | desks? | offices? | porch | porches | crews? | errands?
      | shelf | shelves | lanes? | keepers? | purses? | study | studies | studied | scribes? | beats? | beaten | beating
      | patience | told | heard | said | mend | mends | mended | mending | whoever | nobody | somebody )""",
    re.VERBOSE,
)
_PHRASES = {
    "a life": r"\ba\s+life\b",
    "last word": r"\blast\s+words?\b",
    "under way": r"\bunder\s?way\b",
    "a yes": r"\ba\s+yes\b",
    "sudden end": r"\bsudden\s+ends?\b",
    "is no <noun>": r"\b(?<!there\s)(?:is|was)\s+no\b(?!\s+(?:longer|more|less|different|better|worse)\b)",
    "there is no such thing": r"\bno\s+such\s+thing\b",
    "say <command>": r"\bsays?:?\s+[`']?(?:pip|make|atlas)\b",
}
_PHRASE = re.compile("|".join(f"(?P<p{at}>{pattern})" for at, pattern in enumerate(_PHRASES.values())), re.IGNORECASE)
_TOKEN = re.compile(r"[A-Za-z]+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


_STEMS = (
    *("house", "room", "floor", "door", "desk", "office", "porch", "crew", "errand", "shelf", "shelv", "lane"),
    *("keeper", "purse", "study", "studie", "scribe", "beat", "patience", "told", "heard", "said", "mend", "whoever"),
    *("nobody", "somebody"),
)
"""Every forbidden word contains one of these. A search for plain text is much faster than a look at all tokens."""
_BEGINNINGS = (
    *("a life", "last word", "underway", "under way", "a yes", "sudden end", "is no", "was no"),
    "no such thing",
)
_COMMAND = re.compile(r"says?:? [`']?(?:pip|make|atlas)")


class Exemption(NamedTuple):
    """An ordinary use of a forbidden word: files by glob, a pattern that covers the use, and why it stays."""

    files: str
    pattern: str
    reason: str


EXEMPTIONS = [
    Exemption("tests/*words.py", r".*", "the list of these words, and the test of it"),
    Exemption("*", r"\bmath\.floor\b", "the function that rounds down, in Python and in JavaScript"),
    Exemption(
        "src/atlas_agents/storage/*.py",
        r"\b(shelf|told|jobs_untold|said_at|runs_said)\b",
        "columns and indexes of the database, which keep their names",
    ),
    Exemption("src/atlas_agents/channels/telegram/state.py", r"\bheard_at\b", "a key of the stored channel state"),
    Exemption("src/atlas_agents/providers/testing.py", r'name="heard"', "a key in recorded cassettes"),
    Exemption("src/atlas_agents/tools/journal.py", r'name="said"', "a key in stored journals"),
    Exemption("tests/durable/crash/stores.py", r"\btold\b", "a column of the database"),
    Exemption("tests/knowledge/[cq]*", r".*", "sample documents about an office, and questions about them"),
    Exemption("src/atlas_agents/dispatch/members.py", r"\b(door|heard)\b", "a column, and keys of `cluster.status`"),
]


class Hit(NamedTuple):
    """One forbidden word in a file."""

    path: str
    line: int
    kind: str
    """`identifier` or `text`."""
    word: str
    context: str


def in_python(path: str, source: str) -> Iterator[Hit]:
    """Forbidden words in the identifiers, strings and comments of a module, and in its file name."""
    for word in _in_identifier(Path(path).stem):
        yield Hit(path, 0, "identifier", word, Path(path).name)
    if not _may_contain_any(source):
        return
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            found = [(token.start[0], "identifier", word) for word in _in_identifier(token.string)]
        elif token.type in _TEXTS:
            found = [(token.start[0] + down, "text", word) for down, word in _in_prose(token.string)]
        else:
            continue
        yield from (
            Hit(path, line, kind, word, lines[line - 1].strip())
            for line, kind, word in found
            if not _exempt(path, lines[line - 1], word)
        )


def _may_contain_any(source: str) -> bool:
    """Return whether a forbidden word or phrase may stand anywhere in a source, in code or in text."""
    lowered = source.lower()
    if len(lowered) != len(source):  # a letter became two, so that places differ
        return True
    words = {word for stem in _STEMS if stem in lowered for word in _letters_around(stem, lowered, source)}
    if any(_WORDS.fullmatch(word.lower()) or _in_identifier(word) for word in words):
        return True
    one_line = " ".join(lowered.split())
    places = [at for each in _BEGINNINGS for at in _places(each, one_line)]
    places += [found.start() for found in _COMMAND.finditer(one_line)]
    return any(_PHRASE.search(one_line[max(0, at - 20) : at + 60]) for at in places)


def _places(text: str, within: str) -> Iterator[int]:
    at = within.find(text)
    while at >= 0:
        yield at
        at = within.find(text, at + 1)


def _letters_around(stem: str, lowered: str, source: str) -> Iterator[str]:
    """Each run of letters that contains a stem, as it is written in the source."""
    at = lowered.find(stem)
    while at >= 0:
        start, end = at, at + len(stem)
        while start and source[start - 1].isalpha():
            start -= 1
        while end < len(source) and source[end].isalpha():
            end += 1
        yield source[start:end]
        at = lowered.find(stem, end)


_TEXTS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


def in_text(path: str, text: str, *, identifiers: bool = False) -> Iterator[Hit]:
    """Forbidden words in a page, a settings file or a source of the web client (`identifiers`: split camelCase)."""
    for word in _in_identifier(Path(path).stem):
        yield Hit(path, 0, "identifier", word, Path(path).name)
    if not _may_contain_any(text):
        return
    lines = text.splitlines()
    for down, word in _in_prose(text, identifiers=identifiers):
        if not _exempt(path, lines[down], word):
            yield Hit(path, down + 1, "text", word, lines[down].strip())


def _in_identifier(name: str) -> list[str]:
    return [part for found in _PART.findall(name) if _WORDS.fullmatch(part := found.lower())]


def _in_prose(text: str, *, identifiers: bool = False) -> list[tuple[int, str]]:
    """(Lines after the first, word) of each find."""
    split = _PART if identifiers else _TOKEN
    found = [(at.start(), at[0].lower()) for at in split.finditer(text) if _WORDS.fullmatch(at[0].lower())]
    names = list(_PHRASES)
    for at in _PHRASE.finditer(text):
        found.append((at.start(), names[int(str(at.lastgroup)[1:])]))
    return [(text.count("\n", 0, place), word) for place, word in sorted(found)]


def _exempt(path: str, line: str, word: str) -> bool:
    return any(
        fnmatch(path, each.files)
        and any(word in _PHRASES or word in found[0].lower() for found in re.finditer(each.pattern, line, re.I))
        for each in EXEMPTIONS
    )
