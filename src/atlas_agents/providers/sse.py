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
        self._rest = b""
        self._total = 0
        self._begun = False

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        self._total += len(piece)
        if self._total > MAX_RESPONSE:
            raise ProviderError(f"the answer is longer than {MAX_RESPONSE >> 20} MB", "protocol")
        data = self._rest + piece if self._rest else piece
        if not self._begun:
            if len(data) < 3 and _BOM.startswith(data):
                self._rest = data
                return []
            self._begun, data = True, data.removeprefix(_BOM)
        if b"\r" in data:
            data = self._unify(data)
        *blocks, self._rest = data.split(b"\n\n")
        if len(self._rest) > MAX_EVENT or any(len(block) > MAX_EVENT for block in blocks):
            raise ProviderError(f"one event is longer than {MAX_EVENT >> 20} MB", "protocol")
        return [_read(block) for block in blocks if block]

    def _unify(self, data: bytes) -> bytes:
        """All line ends as LF. A CR at the very end may be half of a CRLF: it stays as it is until more comes."""
        held = data.endswith(b"\r")
        data = (data[:-1] if held else data).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data + b"\r" if held else data


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
    except (msgspec.DecodeError, UnicodeDecodeError):  # also what is JSON to others: half a surrogate pair
        try:
            return msgspec.convert(json.loads(data), decoder.type)
        except (ValueError, RecursionError) as error:
            raise ProviderError(f"an event of the stream could not be read: {error}", "incomplete") from error


def read_plain(data: bytes) -> object:
    """JSON as plain values, or the text itself where it is none."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data.decode("utf-8", "replace")
