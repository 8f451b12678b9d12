"""HTTP and WebSocket protocol classes for uvicorn, with timeouts and a bounded send buffer.

Frames are written directly to the transport, without a task or queue per socket: the transport's buffer is the queue,
and its size is limited. Uvicorn accepts protocol classes as arguments; these extend its own.
"""

import asyncio
import logging
import resource
from typing import Any, Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Request
from websockets.protocol import State

from atlas_agents.gateway.protocol.frames import SLOW_CONSUMER

HEADER_TIMEOUT = 10.0
"""Seconds within which the headers of a request must arrive."""
BODY_TIMEOUT = 35.0
"""Seconds within which the body of a request must arrive. APIs that read it answer a little earlier with 408."""
READING_BELOW = 64 * 1024
"""Bytes in the send buffer below which a client counts as reading."""
CLOSE_TIMEOUT = 5.0
"""Seconds a closing socket has to read what was sent."""
TRANSPORT_KEY = "atlas.transport"
_MIN_RESERVED, _MAX_RESERVED = 16, 256
"""File descriptors that are left to turns, for connections to providers, tools and files."""
_OVERLOADED = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
logger = logging.getLogger(__name__)


def _max_descriptor() -> int:
    """Return the first descriptor number that connections of clients must not use: running turns need the rest."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limit - max(_MIN_RESERVED, min(limit // 8, _MAX_RESERVED))


def _encode_frame(payload: bytes) -> bytes:
    """Return a complete text frame of a server (RFC 6455, section 5.2): no extension, no mask."""
    size = len(payload)
    if size < 126:
        return b"\x81%c%b" % (size, payload)
    if size < 65536:
        return b"\x81\x7e%b%b" % (size.to_bytes(2, "big"), payload)
    return b"\x81\x7f%b%b" % (size.to_bytes(8, "big"), payload)


class HttpProtocol(H11Protocol):
    """HTTP protocol that closes a connection if the headers or the body of a request do not arrive in time."""

    _timer: asyncio.TimerHandle | None = None
    _awaited: Literal["headers", "body"] | None = None
    """The part of a request that the timer limits."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._await("headers")
        if transport.get_extra_info("socket").fileno() >= _max_descriptor():
            logger.warning("connection refused: most file descriptors are in use; raise `ulimit -n`")
            transport.write(_OVERLOADED)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._await(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_timer()  # the next request may have been received in part

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._await(None)
        super().handle_websocket_upgrade(event)

    def _update_timer(self) -> None:
        """Start or stop the timer. Between requests, uvicorn limits how long a connection may be idle."""
        state = self.conn.their_state
        if self.transport.get_protocol() is not self or state not in (h11.SEND_BODY, h11.IDLE):
            self._await(None)
        elif state is h11.SEND_BODY:
            self._await("body")
        elif self.conn.trailing_data[0]:
            self._await("headers")

    def _await(self, part: Literal["headers", "body"] | None) -> None:
        if part == self._awaited:
            return
        self._awaited = part
        if self._timer is not None:
            self._timer.cancel()
        timeout = HEADER_TIMEOUT if part == "headers" else BODY_TIMEOUT
        self._timer = self.loop.call_later(timeout, self._abort) if part is not None else None

    def _abort(self) -> None:
        if self._awaited == "body" and self.flow.read_paused:  # the application, not the client, is slow
            self._timer = self.loop.call_later(BODY_TIMEOUT, self._abort)
        else:
            self.transport.abort()


class WebSocketTransport(WebSocketsSansIOProtocol):
    """WebSocket protocol. The application finds it in its scope, under `extensions`."""

    max_queued = 1024 * 1024
    slow = False
    """Whether it was closed because the client did not read."""

    def handle_connect(self, event: Request) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            scope: Any = self.scope
            scope["extensions"][TRANSPORT_KEY] = self

    def raise_limits(self, max_frame: int, max_queued: int) -> None:
        """Accept frames of this size from now on, and allow a send buffer of this size."""
        self.conn.max_message_size = max_frame
        self.max_queued = max_queued

    @property
    def is_open(self) -> bool:
        return self.handshake_complete and not (
            self.close_sent or self.disconnected or self.conn.state is not State.OPEN or self.transport.is_closing()
        )

    def send_frame(self, frame: bytes) -> bool:
        """Send a text frame, now or as soon as the client reads; return False if the socket is closed.

        A client that does not read is closed. It can reconnect and replay what it missed.
        """
        if not self.is_open:
            return False
        queued = self.transport.get_write_buffer_size()
        # A client that reads may receive a frame larger than the limit.
        if queued > READING_BELOW and queued + len(frame) > self.max_queued:
            self.slow = True
            self.close_with(SLOW_CONSUMER, "slow consumer")
            return False
        self.transport.write(_encode_frame(frame))
        return True

    async def drain(self) -> bool:
        """Wait until the client has read most of the send buffer; return False if the socket is closed."""
        await self.writable.wait()
        return self.is_open

    def close_with(self, code: int, reason: str) -> None:
        """Close the socket after sending what is queued; a client that does not read is cut off after a delay."""
        if not self.is_open:
            return
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.conn.send_close(code, reason)
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(CLOSE_TIMEOUT, self.transport.abort)

    def keepalive_timeout(self) -> None:
        """Close the socket when a ping is not answered."""
        super().keepalive_timeout()
        self.transport.abort()

    def handle_parser_exception(self) -> None:
        super().handle_parser_exception()
        self.loop.call_later(CLOSE_TIMEOUT, self.transport.abort)
