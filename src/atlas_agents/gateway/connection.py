"""Client connection over one WebSocket: authentication, requests and responses, events, and closing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

import msgspec

from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.gateway.auth import Grant
from atlas_agents.gateway.dispatch import BoundMethod, read_frame_id
from atlas_agents.gateway.events import Channel
from atlas_agents.gateway.hub import Hub
from atlas_agents.gateway.protocol import frames
from atlas_agents.gateway.quotas import Upload
from atlas_agents.gateway.telemetry import printable
from atlas_agents.gateway.websocket import WebSocketTransport

logger = logging.getLogger(__name__)
Receive: TypeAlias = Callable[[], Awaitable[Any]]
_MAX_PENDING = 64
_auth_frames = msgspec.json.Decoder(frames.AuthFrame)
_encoder = msgspec.json.Encoder()


class ClientConnection:
    """A client on a WebSocket, before and after it has authenticated."""

    __slots__ = (
        *("_tasks", "_transport", "address", "full", "grant", "hub"),
        *("upload", "device", "jobs", "on_close", "sessions"),
    )
    grant: Grant
    """Set once the client has authenticated; with the cookie of a signed-in browser, even before the auth frame."""

    def __init__(self, hub: Hub, transport: WebSocketTransport, address: str) -> None:
        self.hub = hub
        self.address = address
        self.full = False
        self.on_close: set[Callable[[], object]] = set()
        """Callbacks to run when the socket is closed."""
        self.sessions: set[str] = set()
        self.upload: Upload | None = None
        """The session that the client is importing."""
        self.jobs = False
        self.device = ""
        """The signed-in browser whose cookie the client has sent; empty if there is none."""
        self._transport = transport
        self._tasks = BackgroundTasks("connection")

    async def serve(self, receive: Receive) -> None:
        """Handle the connection from its first frame until it is closed."""
        if not await self._authenticate(receive):
            return
        self.hub.connections.add(self)
        self.hub.metrics.sockets.inc()
        try:
            while (frame := _read_frame(await receive())) is not None:
                await self._handle(frame)
        finally:
            self.hub.metrics.sockets.dec()
            self.hub.connections.discard(self)
            self._clean_up()

    def send(self, frame: bytes) -> bool:
        """Send a frame; return False if the socket is closed."""
        sent = self._transport.send_frame(frame)
        if not sent and self._transport.slow:
            self._transport.slow = False
            self.hub.metrics.slow.inc()
            self._clean_up()
        return sent

    async def drain(self) -> bool:
        """Wait until the send buffer can take more; return False if the socket is closed."""
        return await self._transport.drain()

    def close(self, code: int, reason: str) -> None:
        self._transport.close_with(code, reason)
        self._clean_up()

    def subscribe(self, session: str) -> Channel:
        """Subscribe to a session, starting in this event loop tick."""
        self._add_session(session)
        return self.hub.runs.subscribe(session, self)

    async def receive_run(self, session: str, run_id: str, *, new: bool) -> None:
        """Subscribe to a session and receive all events of a run, unless they were sent to this client already."""
        self._add_session(session)
        await self.hub.runs.send_run(session, self, run_id, new=new)

    def _add_session(self, session: str) -> None:
        self.sessions.add(session)
        self.hub.session_updates.subscribe(self, session)

    def unsubscribe(self, session: str) -> None:
        self.sessions.discard(session)
        self.hub.session_updates.unsubscribe(self, session)
        self.hub.runs.unsubscribe(session, self)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task beside the requests; it is cancelled when the socket is closed."""
        self._tasks.spawn(work)

    async def _authenticate(self, receive: Receive) -> bool:
        """Read and answer the auth frame; return False if the connection was refused."""
        try:
            async with asyncio.timeout(self.hub.settings.auth_timeout):
                frame = _read_frame(await receive())
        except TimeoutError:
            return self._refuse(frames.BAD_FIRST_FRAME, "no auth frame received in time")
        if frame is None:
            return False
        try:
            auth = _auth_frames.decode(frame)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return self._refuse(frames.BAD_FIRST_FRAME, "the first frame must be an auth frame")
        wait, grant = self._check_token(auth.token)
        if grant is None:
            message = f"too many invalid tokens; retry in {wait:.0f} s" if wait else "invalid token"
            self._transport.send_frame(_encoder.encode(frames.AuthErrorFrame("auth", False, message)))
            return self._refuse(frames.BAD_TOKEN, "unauthorized")
        self.grant, self.full = grant, auth.protocol >= frames.PROTOCOL
        self._transport.raise_limits(self.hub.settings.max_frame, self.hub.settings.max_queued)
        name = auth.client.name if auth.client else ""
        fields = {"address": self.address, "principal": grant.principal.id, "client": printable(name.encode())}
        logger.info("connected", extra={"fields": fields})
        self._transport.send_frame(_encoder.encode(self._welcome_frame()))
        return True

    def _check_token(self, token: str) -> tuple[float, Grant | None]:
        """Authenticate the token; without one, the cookie counts. A missing token is not an attempt to guess one."""
        if token:
            self.device = ""
            return self.hub.authenticator.authenticate(self.address, token)
        return 0.0, self.grant if self.device else None

    def _welcome_frame(self) -> frames.WelcomeFrame:
        if not self.full:
            return frames.WelcomeFrame("auth", True)
        hub = self.hub
        return frames.WelcomeFrame(
            "auth", True, frames.PROTOCOL, hub.server, self.grant.principal, hub.features, hub.policy
        )

    def _refuse(self, code: int, reason: str) -> bool:
        self.hub.metrics.refused.labels(reason).inc()
        logger.warning("refused: %s", reason, extra={"fields": {"address": self.address}})
        self._transport.close_with(code, reason)
        return False

    async def _handle(self, frame: str | bytes) -> None:
        dispatch = self.hub.dispatch
        id = None
        try:
            request = dispatch.read(frame)
            id = request.id
            bound = dispatch.find(request, self.grant)
        except frames.ProtocolError as fault:
            self.send(dispatch.encode_error(read_frame_id(frame) if id is None else id, fault))
            return
        if not bound.method.is_slow:
            self.send(await dispatch.answer(request, bound, self))
        elif len(self._tasks) >= _MAX_PENDING:
            self.send(
                dispatch.encode_error(
                    id, frames.ProtocolError("LIMIT_EXCEEDED", "too many pending requests on this connection")
                )
            )
        else:
            self.spawn(self._answer_later(request, bound))

    async def _answer_later(self, request: frames.RequestFrame, bound: BoundMethod) -> None:
        self.send(await self.hub.dispatch.answer(request, bound, self))

    def _clean_up(self) -> None:
        self._tasks.cancel()
        for session in list(self.sessions):
            self.unsubscribe(session)
        self.hub.session_updates.unsubscribe_from_list(self)
        if self.upload is not None:
            self.upload.close()
            self.upload = None
        callbacks, self.on_close = self.on_close, set()
        for each in callbacks:
            each()


def _read_frame(message: Any) -> str | bytes | None:
    """Return the frame in an ASGI message, or None if the socket is closed."""
    if message["type"] != "websocket.receive":
        return None
    text = message.get("text")
    return message["bytes"] if text is None else text
