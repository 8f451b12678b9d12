"""The line to an interpreter: orders go in, answers come back, each with its length before it."""

import asyncio
import json
import socket
import struct
from typing import Any, cast

_HEAD = struct.Struct("!I")
_LARGEST = 1 << 20


class LineBroken(Exception):
    """The other end is gone, or says what it never should."""


class Line:
    """Our end of a pair of sockets."""

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)

    async def say(self, order: dict[str, Any]) -> None:
        body = json.dumps(order).encode()
        try:
            await asyncio.get_running_loop().sock_sendall(self._ours, _HEAD.pack(len(body)) + body)
        except OSError as error:
            raise LineBroken from error

    async def hear(self) -> dict[str, Any]:
        """The next answer. It comes from a stranger: too long, or no JSON object, and the line is broken."""
        (size,) = _HEAD.unpack(await self._exactly(_HEAD.size))
        if size > _LARGEST:
            raise LineBroken
        try:
            answer = json.loads(await self._exactly(size))
        except (ValueError, RecursionError) as error:
            raise LineBroken from error
        if not isinstance(answer, dict):
            raise LineBroken
        return cast(dict[str, Any], answer)

    def close(self) -> None:
        self._ours.close()
        self.theirs.close()

    async def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                piece = await asyncio.get_running_loop().sock_recv(self._ours, size - len(found))
            except OSError as error:
                raise LineBroken from error
            if not piece:
                raise LineBroken
            found += piece
        return bytes(found)
