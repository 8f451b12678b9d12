"""Server-sent events out of bytes that may be cut anywhere, and the JSON in them."""

import json
from typing import TypeVar

import msgspec

from atlas_agents.core.errors import ProviderError

T = TypeVar("T")
MAX_EVENT = 4 * 1024 * 1024
MAX_RESPONSE = 32 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class EventSplitter:
    """Feed it bytes, get whole events as (name, data). An event that never saw its blank line is not one."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._waiting = 0
        self._total = 0
        self._begun = False
        self._half = False

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        self._total += len(piece)
        if self._total > MAX_RESPONSE:
            raise ProviderError(f"the answer is longer than {MAX_RESPONSE >> 20} MB", "protocol")
        if self._half or b"\r" in piece:
            piece = self._unify(piece)
        if self._rest or not self._begun:
            piece = self._join(piece)
        *blocks, last = piece.split(b"\n\n")
        if last:
            self._rest.append(last)
            self._waiting = len(last)
        if len(last) > MAX_EVENT or any([len(block) > MAX_EVENT for block in blocks]):
            raise _too_long()
        return [_read(block) for block in blocks if block]

    def _join(self, piece: bytes) -> bytes:
        """What waited and this, or nothing while no event can have ended: a long one is joined once, not per piece."""
        rest = self._rest
        ended = b"\n\n" in (rest[-1][-1:] + piece if rest else piece)
        if piece:
            rest.append(piece)
        if self._begun and not ended:
            self._waiting += len(piece)
            if self._waiting > MAX_EVENT:
                raise _too_long()
            return b""
        piece = b"".join(rest)
        if not self._begun:
            if len(piece) < 3 and _BOM.startswith(piece):
                return b""
            self._begun, piece = True, piece.removeprefix(_BOM)
        self._rest = []
        return piece

    def _unify(self, piece: bytes) -> bytes:
        """All line ends as LF. Of a CRLF that was cut in half, the CR has already been counted as one."""
        if self._half:
            piece = piece.removeprefix(b"\n")
        self._half = piece.endswith(b"\r")
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _too_long() -> ProviderError:
    return ProviderError(f"one event is longer than {MAX_EVENT >> 20} MB", "protocol")


def _read(block: bytes) -> tuple[bytes, bytes]:
    if block.startswith(b"data: ") and b"\n" not in block:
        return b"", block[6:]
    name, data = b"", list[bytes]()
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return name, b"\n".join(data)


def read_event(decoder: msgspec.json.Decoder[T], data: bytes) -> T:
    """One event's JSON as a typed value, or ProviderError."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # or JSON to others: half a surrogate pair
        try:
            return msgspec.convert(json.loads(data), decoder.type)
        except (ValueError, RecursionError) as error:
            raise ProviderError(f"an event of the stream could not be read: {error}", "incomplete") from error


def read_plain(data: bytes) -> object:
    """JSON as plain values, or the text itself where it is none."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode("utf-8", "replace")
