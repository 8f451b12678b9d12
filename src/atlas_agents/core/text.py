"""Text safety: lone surrogates, invisible characters and tool names on the wire."""

import hashlib
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec

_HARMLESS = frozenset("\t\n\r")
_VISIBLE = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u08e2\U000110bd\U000110cd")
"""Format characters that are visible: signs that enclose numbers."""
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800")
"""Letters and symbols that render as blank."""
_HIGH, _LOW = "\ud800", "\udc00"
MAX_FINDINGS = 100
"""Maximum number of findings listed per file."""

_JOINER, _EMOJI_STYLE = "\u200d", "\ufe0f"
_BREAKS = frozenset("\x0b\x0c\x85\u2028\u2029")
"""Invisible line separators."""
_INVISIBLE_PRINTABLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
_MAX_KNOWN = 10
_MIN_SECRET, _MIN_SECRET_BITS = 5, 11
_MIN_WORDS, _MIN_NUMBER, _MIN_WORD = 8, 10, 12
"""Minimum lengths of secrets without digits, of digits only and of letters only; shorter ones may be words."""
_ALLOWED = re.compile(r"[A-Za-z0-9_-]{1,64}")
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def clean(text: str) -> str:
    """Return the text with split surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class SurrogateJoiner:
    """Cleaner for streamed text: half a surrogate pair at the end of a piece is held until the next piece."""

    def __init__(self) -> None:
        self.pending = ""
        """The held half; empty if there is none."""

    def add(self, piece: str) -> str:
        """Add a piece and return the text that became displayable."""
        if not self.pending and piece.isascii():
            return piece
        text, self.pending = self.pending + piece, ""
        if text and _HIGH <= text[-1] < _LOW:
            text, self.pending = text[:-1], text[-1]
        return clean(text)

    def flush(self) -> str:
        """Return the pending text once the stream has ended."""
        pending, self.pending = self.pending, ""
        return clean(pending)


def is_hidden(char: str) -> bool:
    """Return whether a person cannot see a character that a model reads: control, format, tag and blank characters."""
    if char in _HARMLESS or char in _VISIBLE:
        return False
    if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp"):
        return True
    code = ord(char)
    return char in _BLANK or 0xE0000 <= code <= 0xE0FFF or 0xFE00 <= code <= 0xFE0D


class HiddenCharacters(msgspec.Struct, frozen=True):
    """A run of hidden characters: its position, its first character and its length.

    Attributes:
        file: Name of the file.
        line: Line of the first character, from 1.
        column: Column of the first character, from 1.
        code_point: The first character, such as `U+202E`.
        name: Its Unicode name.
        count: Number of hidden characters in a row.
    """

    file: str
    line: int
    column: int
    code_point: str
    name: str
    count: int = 1

    def __str__(self) -> str:
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.file}:{self.line}:{self.column}: hidden character {self.code_point} {self.name}{more}"


def hidden_characters(text: str, file: str) -> tuple[HiddenCharacters, ...]:
    """Find all hidden characters in a text; adjacent ones form one finding."""
    found = (_describe_run(run, text, file) for run in _find_hidden_runs(text))
    return tuple(islice(found, MAX_FINDINGS))


def remove_hidden_characters(text: str) -> str:
    """Return the text as a person sees it: hidden characters removed, hidden line separators made plain."""
    pieces: list[str] = []
    end = 0
    for run in _find_hidden_runs(text):
        pieces += (text[end : run.start()], "\n" if _BREAKS.intersection(run[0]) else "")
        end = run.end()
    return "".join((*pieces, text[end:]))


def one_line(text: str, limit: int) -> str:
    """Return the visible text on one line, truncated with an ellipsis at `limit` characters."""
    line = " ".join(remove_hidden_characters(clean(text)).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def list_known(kind: str, names: Iterable[str]) -> str:
    """List the known items of a kind for a not-found error: `agents: ana, bob`."""
    known = [one_line(name, 100) for name in names]
    more = f" and {len(known) - _MAX_KNOWN} more" if len(known) > _MAX_KNOWN else ""
    return f"{kind}: {', '.join(known[:_MAX_KNOWN])}{more}" if known else f"there are no {kind}"


def _find_hidden_runs(text: str) -> Iterator[re.Match[str]]:
    """Yield each run of adjacent hidden characters."""
    suspects = "".join(sorted(char for char in set(text) if is_hidden(char)))
    runs = re.finditer(f"[{re.escape(suspects)}]+", text) if suspects else iter(())
    return (run for run in runs if not _joins_emoji(run, text))


def _describe_run(run: re.Match[str], text: str, file: str) -> HiddenCharacters:
    start = run.start()
    line_start = text.rfind("\n", 0, start) + 1
    first = text[start]
    name = unicodedata.name(first, "CONTROL CHARACTER" if unicodedata.category(first) == "Cc" else "UNNAMED")
    line = text.count("\n", 0, start) + 1
    return HiddenCharacters(file, line, start - line_start + 1, f"U+{ord(first):04X}", name, len(run[0]))


def _joins_emoji(run: re.Match[str], text: str) -> bool:
    """Return whether the run is a single zero-width joiner between two emoji."""
    if run[0] != _JOINER:
        return False
    before = text[max(0, run.start() - 2) : run.start()].removesuffix(_EMOJI_STYLE)[-1:]
    after = text[run.end() : run.end() + 1]
    return all(char and unicodedata.category(char) in ("So", "Sk") for char in (before, after))


def escape_invisible(value: Any) -> str:
    """Encode a value as JSON with every invisible or ambiguous character escaped.

    The result is JSON for the same value, so it can be edited and parsed again.
    """
    return "".join(map(_escape_char, json.dumps(value, ensure_ascii=False, default=str)))


def escape_text(text: str) -> str:
    """Escape invisible characters in a text, except tabs and line ends."""
    return "".join(char if char in "\n\t" else _escape_char(char) for char in text)


def _escape_char(char: str) -> str:
    if char.isprintable() and char not in _INVISIBLE_PRINTABLE and not _is_variation_selector(char):
        return char
    return "".join(f"\\u{unit:04x}" for unit in _utf16_units(char))


def _is_variation_selector(char: str) -> bool:
    """Return whether a character is a variation selector: invisible to a person, read by a model."""
    return 0xFE00 <= ord(char) <= 0xFE0F or 0xE0100 <= ord(char) <= 0xE01EF or unicodedata.category(char) == "Me"


def _utf16_units(char: str) -> list[int]:
    code = ord(char)
    if code < 0x10000:
        return [code]
    return [0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF)]


def is_distinctive(secret: str) -> bool:
    """Return whether a secret is long and varied enough to search for it; a short one also occurs in harmless texts."""
    size = len(secret)
    if size < _MIN_SECRET or (secret.isalpha() and size < _MIN_WORD) or (secret.isdigit() and size < _MIN_NUMBER):
        return False
    if size < _MIN_WORDS and not any(char.isdigit() for char in secret):
        return False
    counts = Counter(secret).values()
    return sum(count * math.log2(size / count) for count in counts) >= _MIN_SECRET_BITS


@lru_cache(maxsize=4096)
def wire_name(name: str) -> str:
    """Return the tool name sent to a model: unchanged if valid, `server__tool` for `server/tool`.

    Other characters are replaced, and a hash of the full name keeps different names distinct.
    """
    if _ALLOWED.fullmatch(name):
        return name
    readable = name.replace("/", "__")
    if _ALLOWED.fullmatch(readable):
        return readable
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_OTHER.sub('_', readable)[:55]}_{digest}"
