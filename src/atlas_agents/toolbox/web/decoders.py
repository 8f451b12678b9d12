"""What a server has compressed, unpacked no further than it may grow: the limit is inside the decoder.

A limit on what a library has already unpacked comes too late: one small piece of a bomb is tens of megabytes.
"""

import zlib

ACCEPTED = "gzip, deflate"
"""Only what can be unpacked piece by piece under a limit is asked for."""


class BadEncoding(Exception):
    """What came is not packed as it says, or in a way that was not asked for."""


class Body:
    """Bytes as they come off the wire, unpacked up to a limit. `full` when there is more of it than may be taken."""

    def __init__(self, encoding: str, limit: int) -> None:
        self.content = bytearray()
        self.full = False
        self._limit = limit
        self._wire = 0
        self._plain = encoding == ""
        self._first = encoding == "deflate"
        self._decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip or zlib, by what it begins with
        if encoding not in ("", "gzip", "deflate"):
            raise BadEncoding(f"it is packed as {encoding[:50]!r}, which was not asked for")

    def add(self, piece: bytes) -> None:
        """Take the next bytes off the wire."""
        self._wire += len(piece)
        self.content += piece[: self._room] if self._plain else self._unpacked(piece)
        self.full = not self._room or self._wire > self._limit

    @property
    def _room(self) -> int:
        return self._limit + 1 - len(self.content)

    def _unpacked(self, piece: bytes) -> bytes:
        if self._first and piece:
            self._first = False
            if piece[0] & 0x0F != 8:  # many servers send what is inside a zlib stream, without its head
                self._decoder = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            return self._decoder.decompress(piece, self._room) if self._room else b""
        except zlib.error:
            raise BadEncoding("it is not packed as it says") from None


def encoding_of(header: str) -> str:
    """The one encoding of a body, empty where there is none; several are given back as they are, and refused."""
    found = [each.strip().lower() for each in header.split(",") if each.strip().lower() not in ("", "identity")]
    return ",".join("gzip" if each == "x-gzip" else each for each in found)
