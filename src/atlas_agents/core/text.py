"""Text that any UTF-8 writer accepts: surrogate halves are joined where they meet and replaced where they don't."""

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
