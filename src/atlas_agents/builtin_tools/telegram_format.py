"""Long texts as the messages that Telegram takes: 4,096 units of UTF-16 each, cut where a reader would pause."""

import re
import unicodedata
from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import msgspec

Kind: TypeAlias = Literal["bold", "italic", "strikethrough", "code", "pre"]
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})\s*([\w+#.-]{0,40})([^`]*)")
_HEADING = re.compile(r" {0,3}#{1,6}\s+(.*?)\s*#*")
_BULLET = re.compile(r"^(\s*)[-*+]\s+(?=\S)")
_SIGNS = re.compile(r"\\([\\`*_{}\[\]()#+.!~>|-])|(`+)|(\*\*|__|~~|\*|_)|!?\[([^\[\]]*)\]\(([^\s()]{1,2000})\)")
_KINDS: dict[str, Kind] = {"**": "bold", "__": "bold", "~~": "strikethrough", "*": "italic", "_": "italic"}


class Mark(msgspec.Struct, frozen=True):
    """From here to there a text is something else than plain."""

    start: int
    end: int
    kind: Kind
    language: str = ""


class Styled(msgspec.Struct, frozen=True):
    """A text and its marks, in the order in which they begin."""

    text: str
    marks: tuple[Mark, ...] = ()


def styled(markdown: str) -> Styled:
    """The text that is meant, with its marks. Links are written out: nobody clicks on what they do not see."""
    text: list[str] = []
    marks: list[Mark] = []
    size = 0
    for block in _blocks(markdown.replace("\r\n", "\n")):
        marks += [Mark(size + mark.start, size + mark.end, mark.kind, mark.language) for mark in block.marks]
        text.append(block.text)
        size += len(block.text)
    return Styled("".join(text), tuple(sorted(marks, key=lambda mark: (mark.start, -mark.end))))


def code_block(text: str, language: str = "") -> Styled:
    """A text that is shown letter by letter."""
    return Styled(text, (Mark(0, len(text), "pre", language),) if text else ())


def joined(*parts: Styled | str) -> Styled:
    """One text of several."""
    text, marks = "", list[Mark]()
    for part in parts:
        each = Styled(part) if isinstance(part, str) else part
        size = len(text)
        marks += [Mark(size + mark.start, size + mark.end, mark.kind, mark.language) for mark in each.marks]
        text += each.text
    return Styled(text, tuple(marks))


def bold(text: str) -> Styled:
    return Styled(text, (Mark(0, len(text), "bold"),) if text else ())


def _blocks(markdown: str) -> Iterator[Styled]:
    lines = markdown.split("\n")
    fence, language, inside = "", "", list[str]()
    for number, line in enumerate(lines):
        end = "\n" if number < len(lines) - 1 else ""
        found = _FENCE.fullmatch(line)
        if fence:
            if found and found[1].startswith(fence) and not found[2] and not found[3].strip():
                yield joined(code_block("\n".join(inside) or language, language), end)
                fence = ""
            else:
                inside.append(line)
        elif found:
            fence, language, inside = found[1], found[2], []
            if found[3].strip():  # more than a language: it is somebody's words
                language, inside = "", [found[2] + found[3]]
        else:
            yield joined(_line(line), end)
    if fence:  # it has no end yet
        yield code_block("\n".join(inside) or language, language)


def _line(line: str) -> Styled:
    if heading := _HEADING.fullmatch(line):
        return bold(_inline(heading[1]).text)
    return _inline(_BULLET.sub(r"\1• ", line, count=1))


class _Writing:
    """Pieces of a line. A sign that opens something stands as text until its other half is found."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.pieces: list[str] = []
        self.found: list[tuple[int, int, Kind]] = []
        self._opened: dict[str, int] = {}
        self._no_end: set[str] = set()

    def code(self, ticks: str, after: int) -> int:
        """Text between equal rows of ticks; where to go on."""
        end = -1 if ticks in self._no_end else self.line.find(ticks, after)
        if end < 0:
            self._no_end.add(ticks)
            self.pieces.append(ticks)
            return after
        inner = self.line[after:end]
        self.found.append((len(self.pieces), len(self.pieces) + 1, "code"))
        self.pieces.append(inner.strip() or inner)
        return end + len(ticks)

    def emphasis(self, sign: str, start: int, end: int) -> None:
        before, after = self.line[start - 1 : start], self.line[end : end + 1]
        shy = sign not in ("**", "~~")  # names_like_this and 2*3*4 are no emphasis
        within_word = shy and before.isalnum() and after.isalnum()
        if sign in self._opened and before.strip() and not within_word:
            first = self._opened[sign]
            self.pieces[first] = ""
            self.found.append((first, len(self.pieces), _KINDS[sign]))
            self._opened = {other: place for other, place in self._opened.items() if place < first}
            return
        if after.strip() and not (shy and before.isalnum()):
            self._opened[sign] = len(self.pieces)
        self.pieces.append(sign)

    def done(self) -> Styled:
        places = [0]
        for piece in self.pieces:
            places.append(places[-1] + len(piece))
        marks = [Mark(places[first], places[last], kind) for first, last, kind in self.found]
        return Styled("".join(self.pieces), tuple(mark for mark in marks if mark.start < mark.end))


def _inline(line: str) -> Styled:
    writing, place = _Writing(line), 0
    while sign := _SIGNS.search(line, place):
        writing.pieces.append(line[place : sign.start()])
        place = sign.end()
        if sign[1]:
            writing.pieces.append(sign[1])
        elif sign[2]:
            place = writing.code(sign[2], place)
        elif sign[3]:
            writing.emphasis(sign[3], sign.start(), place)
        else:
            label, address = sign[4], sign[5]
            writing.pieces.append(address if label in ("", address) else f"{label} ({address})")
    writing.pieces.append(line[place:])
    return writing.done()


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
