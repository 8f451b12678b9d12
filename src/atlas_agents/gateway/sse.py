"""Server-sent events: a line when there is something to say, a sign of life when there is not."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.types import Receive, Scope, Send

from atlas_agents.gateway.asking import Seat

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]
_ALIVE = b": still at work\n\n"


def data(content: bytes) -> bytes:
    """One event."""
    return b"data: %b\n\n" % content


class EventStream:
    """An answer that is told as it comes. `on_end` is called in any case: also when the client leaves in the middle, or
    before the first line."""

    def __init__(
        self, seat: Seat, lines: AsyncGenerator[bytes, None], pause: float, on_end: Callable[[], None]
    ) -> None:
        self._seat = seat
        self._lines = lines
        self._pause = pause
        self._on_end = on_end
        self._last = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._tell(send)
        finally:
            self._on_end()

    async def _tell(self, send: Send) -> None:
        self._last = asyncio.get_running_loop().time()
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        writing = asyncio.create_task(self._write(send))
        beside = [asyncio.create_task(self._stay_alive(send)), asyncio.create_task(self._seat.left())]
        try:
            await asyncio.wait((writing, beside[1]), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, *beside):
                task.cancel()
            await asyncio.gather(writing, *beside, return_exceptions=True)
            await self._lines.aclose()
        if not writing.cancelled():
            writing.result()

    async def _write(self, send: Send) -> None:
        async for line in self._lines:
            await self._send(send, line)
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, line: bytes) -> None:
        self._last = asyncio.get_running_loop().time()
        message: dict[str, Any] = {"type": "http.response.body", "body": line, "more_body": True}
        await send(message)

    async def _stay_alive(self, send: Send) -> None:
        """Proxies and clients take silence for death, and a tool may take its time."""
        while True:
            silent = asyncio.get_running_loop().time() - self._last
            if silent >= self._pause:
                await self._send(send, _ALIVE)
                silent = 0.0
            await asyncio.sleep(self._pause - silent)
