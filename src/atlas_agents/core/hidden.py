"""Characters that a person does not see and a model reads: the usual way to hide an order in a text."""

import re
import unicodedata
from collections.abc import Iterator
from itertools import islice

import msgspec

from atlas_agents.core.text import is_hidden

MOST = 100
"""So many findings of a file are listed; one that hides more is no less suspect."""

_JOINER, _EMOJI_STYLE = "\u200d", "\ufe0f"
_BREAKS = frozenset("\x0b\x0c\x85\u2028\u2029")
"""Hidden ends of lines."""


class Finding(msgspec.Struct, frozen=True):
    """Where hidden characters begin, what the first one is, and how many follow each other."""

    file: str
    line: int
    column: int
    code_point: str
    name: str
    count: int = 1

    def __str__(self) -> str:
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        return f"{self.file}:{self.line}:{self.column}: hidden character {self.code_point} {self.name}{more}"


def hidden_characters(text: str, file: str) -> tuple[Finding, ...]:
    """All that is hidden in a text: control, format, tag and blank characters; neighbours are one finding."""
    found = (_finding(run, text, file) for run in _runs(text))
    return tuple(islice(found, MOST))


def without_hidden(text: str) -> str:
    """The text as a person sees it: nothing hidden is left in it, and a hidden end of a line has become a plain one."""
    pieces: list[str] = []
    end = 0
    for run in _runs(text):
        pieces += (text[end : run.start()], "\n" if _BREAKS.intersection(run[0]) else "")
        end = run.end()
    return "".join((*pieces, text[end:]))


def _runs(text: str) -> Iterator[re.Match[str]]:
    """Hidden characters that follow each other."""
    suspects = "".join(sorted(char for char in set(text) if is_hidden(char)))
    runs = re.finditer(f"[{re.escape(suspects)}]+", text) if suspects else iter(())
    return (run for run in runs if not _joins_emoji(run, text))


def _finding(run: re.Match[str], text: str, file: str) -> Finding:
    start = run.start()
    line_start = text.rfind("\n", 0, start) + 1
    first = text[start]
    name = unicodedata.name(first, "CONTROL CHARACTER" if unicodedata.category(first) == "Cc" else "UNNAMED")
    line = text.count("\n", 0, start) + 1
    return Finding(file, line, start - line_start + 1, f"U+{ord(first):04X}", name, len(run[0]))


def _joins_emoji(run: re.Match[str], text: str) -> bool:
    """Whether it is the one joiner between two pictures that are shown as one."""
    if run[0] != _JOINER:
        return False
    before = text[max(0, run.start() - 2) : run.start()].removesuffix(_EMOJI_STYLE)[-1:]
    after = text[run.end() : run.end() + 1]
    return all(char and unicodedata.category(char) in ("So", "Sk") for char in (before, after))
