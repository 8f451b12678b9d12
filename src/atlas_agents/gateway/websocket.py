"""The two ends of a TCP connection under uvicorn, with what uvicorn leaves open.

A frame is written where it is made, without a task or a queue per socket: the transport's own buffer is the queue, and
it has an end. Uvicorn takes protocol classes as they are, and these only add to its own.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from atlas_agents.gateway.protocol.frames import SLOW_CONSUMER

HEADERS_WITHIN = 10.0
"""Seconds that a connection may take to say what it wants."""
SHORT = 64 * 1024
"""Bytes in the queue of a client that reads."""
LINGER = 5.0
"""Seconds that a closed socket has to read what is on its way."""
KEY = "atlas.link"


class HttpProtocol(H11Protocol):
    """Closes a connection that does not ask for anything."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._patience = self.loop.call_later(HEADERS_WITHIN, self._lose_patience)

    def connection_lost(self, exc: Exception | None) -> None:
        self._be_patient()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._be_patient()
        super().handle_websocket_upgrade(event)

    def _lose_patience(self) -> None:
        if self.scope is None:  # pyright: ignore[reportUnnecessaryComparison] - set with the first request
            self.transport.abort()

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


class WebSocketTransport(WebSocketsSansIOProtocol):
    """One WebSocket. The application finds it in its scope, under `extensions`."""

    max_queued = 1024 * 1024
    slow = False
    """Nobody read, and it was closed for that."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            scope: Any = self.scope
            scope["extensions"][KEY] = self

    def trust(self, max_frame: int, max_queued: int) -> None:
        """Take frames of this size from now on, and let so much wait to be read."""
        self.conn.max_message_size = max_frame
        self.max_queued = max_queued

    @property
    def is_open(self) -> bool:
        return self.handshake_complete and not (
            self.close_sent or self.disconnected or self.conn.state is not State.OPEN or self.transport.is_closing()
        )

    def put(self, frame: bytes) -> bool:
        """Send a text frame, now or as soon as the other side reads; False if the socket is closed, by this or before.

        Whoever does not read is closed, and can come back and ask for what was missed.
        """
        if not self.is_open:
            return False
        queued = self.transport.get_write_buffer_size()
        if queued > SHORT and queued + len(frame) > self.max_queued:  # who reads may get a large one, too
            self.slow = True
            self.end(SLOW_CONSUMER, "slow consumer")
            return False
        self.conn.send_text(frame)
        self.transport.write(b"".join(self.conn.data_to_send()))
        return True

    async def room(self) -> bool:
        """Wait until the other side has read most of what was sent; False if it is gone."""
        await self.writable.wait()
        return self.is_open

    def end(self, code: int, reason: str) -> None:
        """Close, after what is on its way; who does not read is cut off soon."""
        if not self.is_open:
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER, self.transport.abort)

    def keepalive_timeout(self) -> None:
        """No answer to a ping: there is nobody to wait for."""
        super().keepalive_timeout()
        self.transport.abort()

    def handle_parser_exception(self) -> None:
        super().handle_parser_exception()
        self.loop.call_later(LINGER, self.transport.abort)
