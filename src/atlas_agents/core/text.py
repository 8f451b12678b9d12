"""Text that any UTF-8 writer accepts: surrogate halves are joined where they meet and replaced where they don't. And
which of its characters nobody sees."""

import unicodedata

_HARMLESS = frozenset("\t\n\r")
_VISIBLE = frozenset("\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u08e2\U000110bd\U000110cd")
"""Format characters that are seen: signs that stand around numbers."""
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0\u2800")
"""Letters and signs without ink."""
_HIGH, _LOW = "\ud800", "\udc00"


def clean(text: str) -> str:
    """The same text, with split surrogate pairs joined and lone halves replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


class Joiner:
    """Cleans text that comes in pieces: half a pair at the end of one waits for the next."""

    def __init__(self) -> None:
        self._held = ""

    def add(self, piece: str) -> str:
        """The part of all text so far that can be shown now and was not shown before."""
        if not self._held and piece.isascii():
            return piece
        text, self._held = self._held + piece, ""
        if text and _HIGH <= text[-1] < _LOW:
            text, self._held = text[:-1], text[-1]
        return clean(text)

    def rest(self) -> str:
        """What still waits when no more will come."""
        held, self._held = self._held, ""
        return clean(held)


def is_hidden(char: str) -> bool:
    """A person does not see it, and a model reads it: control, format, tag and blank characters."""
    if char in _HARMLESS or char in _VISIBLE:
        return False
    if unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp"):
        return True
    code = ord(char)
    return char in _BLANK or 0xE0000 <= code <= 0xE0FFF or 0xFE00 <= code <= 0xFE0D
