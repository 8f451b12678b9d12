"""Lists and objects on standard output: plain columns for people, JSON for programs."""

import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

import msgspec

from atlas_agents.cli.words import one_line

_GAP = "  "
_NARROW = 20
_encoder = msgspec.json.Encoder(enc_hook=str)


def as_json(value: Any) -> None:
    """One JSON document, indented where a person reads it."""
    encoded = _encoder.encode(value)
    print((msgspec.json.format(encoded) if sys.stdout.isatty() else encoded).decode())


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], nothing: str) -> None:
    """Columns as wide as they need to be; on a narrow terminal the last one is shortened. In a pipe nothing is."""
    if not rows:
        print(nothing, file=sys.stderr)
        return
    cells = [[one_line(str(cell), 2000) for cell in row] for row in rows]
    widths = [max(_width(head), *(_width(row[place]) for row in cells)) for place, head in enumerate(heads)]
    room = _room(widths)
    for row in ([head.upper() for head in heads], *cells):
        *first, last = row
        line = _GAP.join([*(_padded(cell, width) for cell, width in zip(first, widths, strict=False)), ""])
        print((line + _shortened(last, room)).rstrip())


def _room(widths: list[int]) -> int | None:
    """How wide the last column may be; None where nobody counts columns."""
    if not sys.stdout.isatty():
        return None
    return max(_NARROW, shutil.get_terminal_size().columns - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1))


def _shortened(text: str, room: int | None) -> str:
    if room is None or _width(text) <= room:
        return text
    while _width(text) >= room:
        text = text[:-1]
    return text + "…"


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _width(text: str) -> int:
    """Cells of a terminal."""
    return sum(
        2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text if unicodedata.combining(char) == 0
    )
