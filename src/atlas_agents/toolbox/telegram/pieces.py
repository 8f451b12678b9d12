"""Long texts as the messages that Telegram takes: 4,096 units of UTF-16 each, cut where a reader would pause."""

import unicodedata
from collections.abc import Iterator
from typing import Any

import msgspec

from atlas_agents.toolbox.telegram.markdown import Styled

MOST = 4096
_MOST_MARKS = 100
"""Telegram takes no more in one message."""
_PAUSES = ("\n\n", "\n", " ")
_JOINS = ("\u200d", "\ufe0e", "\ufe0f")


def units(text: str) -> int:
    """How long Telegram finds a text."""
    return len(text) + sum(1 for char in text if char > "\uffff")


def pieces(whole: Styled, most: int = MOST) -> list[Styled]:
    """The text in messages, none of them empty. A mark that goes over a cut goes on in the next message."""
    return list(_pieces(_trimmed(whole), most))


def as_params(piece: Styled) -> dict[str, Any]:
    """What `sendMessage` and `editMessageText` take."""
    return {"text": piece.text, "entities": entities(piece) or None}


def entities(piece: Styled) -> list[dict[str, Any]]:
    """The marks as Telegram counts them."""
    found: list[dict[str, Any]] = []
    for mark in piece.marks[:_MOST_MARKS]:
        each: dict[str, Any] = {
            "type": mark.kind,
            "offset": units(piece.text[: mark.start]),
            "length": units(piece.text[mark.start : mark.end]),
        }
        if mark.kind == "pre" and mark.language:
            each["language"] = mark.language
        found.append(each)
    return found


def _pieces(rest: Styled, most: int) -> Iterator[Styled]:
    while rest.text:
        end = _fitting(rest.text, most)
        if end == len(rest.text):
            yield rest
            return
        cut = _cut(rest, end)
        first = _trimmed(_part(rest, 0, cut))
        if first.text:
            yield first
        rest = _trimmed(_part(rest, cut, len(rest.text)))


def _fitting(text: str, most: int) -> int:
    """How many characters are no more than so many units."""
    if units(text) <= most:
        return len(text)
    room = 0
    for place, char in enumerate(text):
        room += 2 if char > "\uffff" else 1
        if room > most:
            return place
    return len(text)


def _cut(whole: Styled, end: int) -> int:
    """The last good place before `end`: before a block of code, at the end of a paragraph, a line or a word."""
    for mark in whole.marks:
        if mark.kind == "pre" and end // 4 < mark.start < end < mark.end:
            return mark.start
    for pause in _PAUSES:
        place = whole.text.rfind(pause, end // 2, end + 1)
        if place > 0:
            return place + len(pause) if place + len(pause) <= end else place
    for place in range(end, max(end - 32, 1), -1):
        if not _belongs(whole.text, place):
            return place
    return end


def _belongs(text: str, place: int) -> bool:
    """Whether what stands there is part of the sign before it."""
    char = text[place]
    joined = char in _JOINS or text[place - 1] == "\u200d" or "\U0001f3fb" <= char <= "\U0001f3ff"
    return joined or bool(unicodedata.combining(char))


def _part(whole: Styled, start: int, end: int) -> Styled:
    marks = [
        msgspec.structs.replace(mark, start=max(mark.start, start) - start, end=min(mark.end, end) - start)
        for mark in whole.marks
        if mark.start < end and mark.end > start
    ]
    return Styled(whole.text[start:end], tuple(mark for mark in marks if mark.start < mark.end))


def _trimmed(piece: Styled) -> Styled:
    """Without the space around it, which Telegram takes away, too; and no mark that ends or begins in it."""
    text = piece.text
    start, end = len(text) - len(text.lstrip()), len(text.rstrip())
    return piece if (start, end) == (0, len(text)) else _part(piece, start, max(start, end))
