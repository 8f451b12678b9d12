"""Client connection over one WebSocket: authentication, requests and responses, events, and closing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import msgspec

from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.dispatch import Bound, id_of
from atlas_agents.gateway.events import Channel
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol.frames import (
    BAD_FIRST_FRAME,
    BAD_TOKEN,
    PROTOCOL,
    AuthErrorFrame,
    AuthFrame,
    ProtocolError,
    RequestFrame,
    WelcomeFrame,
)
from atlas_agents.gateway.telemetry import shown
from atlas_agents.gateway.websocket import WebSocketTransport

logger = logging.getLogger(__name__)
Receive: TypeAlias = Callable[[], Awaitable[Any]]
_MOST_WAITING = 64
_first = msgspec.json.Decoder(AuthFrame)
_encoder = msgspec.json.Encoder()


class ClientConnection:
    """A client on a WebSocket, before and after it has authenticated."""

    __slots__ = (
        *("_link", "_tasks", "address", "full", "grant", "hub", "incoming", "jobs", "lists", "on_close", "sessions"),
    )

    def __init__(self, hub: Hub, link: WebSocketTransport, address: str) -> None:
        self.hub = hub
        self.address = address
        self.full = False
        self.grant: Grant | None = None
        self.on_close: set[Callable[[], object]] = set()
        """Callbacks to run when the socket is closed."""
        self.sessions: set[str] = set()
        self.lists = False
        self.incoming: list[str] = []
        """Parts of a session that the client is importing."""
        self.jobs = False
        self._link = link
        self._tasks = BackgroundTasks("connection")

    async def serve(self, receive: Receive) -> None:
        """Handle the connection from its first frame until it is closed."""
        if not await self._welcome(receive):
            return
        self.hub.connections.add(self)
        self.hub.metrics.sockets.inc()
        try:
            while (frame := _content(await receive())) is not None:
                await self._handle(frame)
        finally:
            self.hub.metrics.sockets.dec()
            self.hub.connections.discard(self)
            self._leave()

    def put(self, frame: bytes) -> bool:
        """Send a frame; return False if the socket is closed."""
        sent = self._link.put(frame)
        if not sent and self._link.slow:
            self._link.slow = False
            self.hub.metrics.slow.inc()
            self._leave()
        return sent

    async def room(self) -> bool:
        """Wait until the send buffer has room; return False if the socket is closed."""
        return await self._link.room()

    def close(self, code: int, reason: str) -> None:
        self._link.end(code, reason)
        self._leave()

    def hear(self, session: str) -> Channel:
        """Subscribe to a session, starting in this event loop tick."""
        self.sessions.add(session)
        return self.hub.runs.listen(session, self)

    def hear_no_more(self, session: str) -> None:
        self.sessions.discard(session)
        self.hub.runs.leave(session, self)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task beside the requests; it is cancelled when the socket is closed."""
        self._tasks.spawn(work)

    @property
    def who(self) -> Grant:
        """Return the grant of the authenticated token."""
        if self.grant is None:
            raise ProtocolError("FORBIDDEN", "not authenticated: send an auth frame first")
        return self.grant

    async def _welcome(self, receive: Receive) -> bool:
        """Read and answer the auth frame; return False if the connection was refused."""
        try:
            async with asyncio.timeout(self.hub.settings.auth_timeout):
                frame = _content(await receive())
        except TimeoutError:
            return self._refuse(BAD_FIRST_FRAME, "no auth frame received in time")
        if frame is None:
            return False
        try:
            auth = _first.decode(frame)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return self._refuse(BAD_FIRST_FRAME, "the first frame must be an auth frame")
        wait, self.grant = self.hub.porch.admit(self.address, auth.token)
        if self.grant is None:
            words = f"too many invalid tokens; retry in {wait:.0f} s" if wait else "invalid token"
            self._link.put(_encoder.encode(AuthErrorFrame("auth", False, words)))
            return self._refuse(BAD_TOKEN, "unauthorized")
        self.full = auth.protocol >= PROTOCOL
        self._link.trust(self.hub.settings.max_frame, self.hub.settings.max_queued)
        named = auth.client.name if auth.client else ""
        fields = {"address": self.address, "principal": self.grant.principal.id, "client": shown(named.encode())}
        logger.info("connected", extra={"fields": fields})
        self._link.put(_encoder.encode(self._greeting()))
        return True

    def _greeting(self) -> WelcomeFrame:
        if not self.full:
            return WelcomeFrame("auth", True)
        hub = self.hub
        return WelcomeFrame("auth", True, PROTOCOL, hub.server, self.who.principal, hub.features, hub.policy)

    def _refuse(self, code: int, reason: str) -> bool:
        self.hub.metrics.refused.labels(reason).inc()
        logger.warning("refused: %s", reason, extra={"fields": {"address": self.address}})
        self._link.end(code, reason)
        return False

    async def _handle(self, frame: str | bytes) -> None:
        dispatch = self.hub.dispatch
        id = None
        try:
            request = dispatch.read(frame)
            id = request.id
            bound = dispatch.find(request, self.who)
        except ProtocolError as fault:
            self.put(dispatch.failed(id_of(frame) if id is None else id, fault))
            return
        if not bound.method.waits:
            self.put(await dispatch.answer(request, bound, self))
        elif len(self._tasks) >= _MOST_WAITING:
            self.put(
                dispatch.failed(id, ProtocolError("LIMIT_EXCEEDED", "too many pending requests on this connection"))
            )
        else:
            self.spawn(self._answer_later(request, bound))

    async def _answer_later(self, request: RequestFrame, bound: Bound) -> None:
        self.put(await self.hub.dispatch.answer(request, bound, self))

    def _leave(self) -> None:
        self._tasks.cancel()
        for session in list(self.sessions):
            self.hear_no_more(session)
        undo, self.on_close = self.on_close, set()
        for each in undo:
            each()


def _content(message: Any) -> str | bytes | None:
    """Return the frame in an ASGI message, or None if the socket is closed."""
    if message["type"] != "websocket.receive":
        return None
    text = message.get("text")
    return message["bytes"] if text is None else text
