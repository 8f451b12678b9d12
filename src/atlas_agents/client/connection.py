"""One WebSocket connection to a gateway: authentication, requests with their responses, and events in order."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Any, TypeAlias

import aiohttp
import msgspec

from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.errors import GatewayError, Unauthorized, Unreachable
from atlas_agents.gateway.protocol.frames import PROTOCOL, AuthErrorFrame, AuthFrame, Client, WelcomeFrame

OnWireEvent: TypeAlias = Callable[[str, msgspec.Raw], None]
OnResult: TypeAlias = Callable[[msgspec.Raw], None]
_HEARTBEAT_INTERVAL = 20.0
_CONNECT_TIMEOUT = 15.0
_MAX_MESSAGE = 64 * 1024 * 1024
_TEXT = (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY)
_encoder = msgspec.json.Encoder()
_welcome_decoder = msgspec.json.Decoder(WelcomeFrame)
_auth_error_decoder = msgspec.json.Decoder(AuthErrorFrame)


class ErrorDetail(msgspec.Struct, frozen=True, rename="camel"):
    """Machine-readable part of an error; `kind` may be one that this version does not know."""

    kind: str = "INTERNAL"
    retryable: bool = False
    retry_after_ms: int | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    data: ErrorDetail = ErrorDetail()


class Frame(msgspec.Struct, frozen=True):
    """A response or an event."""

    id: int | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorBody | None = None
    event: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"{}")


_frame_decoder = msgspec.json.Decoder(Frame)


class ConnectionLost(Exception):
    """The connection was lost; `sent` means that the request may have arrived."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


class _PendingRequest(msgspec.Struct, frozen=True):
    future: asyncio.Future[Any]
    on_result: OnResult | None


class WebSocketLink:
    """An authenticated connection. Its reader calls `on_event` and `on_end` in the order of the frames."""

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        welcome: WelcomeFrame,
        on_event: OnWireEvent,
        on_end: Callable[["WebSocketLink"], None],
    ) -> None:
        self.welcome = welcome
        self._socket = socket
        self._on_event = on_event
        self._on_end = on_end
        self._pending: dict[int, _PendingRequest] = {}
        self._last_id = 0
        self._end_reason: str | None = None
        self._tasks = BackgroundTasks("gateway connection")
        self._tasks.spawn(self._read())

    @property
    def ended(self) -> bool:
        return self._end_reason is not None

    async def request(self, method: str, params: dict[str, Any], on_result: OnResult | None = None) -> Any:
        """Call a method and return its result. `on_result` receives it before any later frame is handled."""
        if self._end_reason is not None:
            raise ConnectionLost(self._end_reason, sent=False)
        self._last_id = id = self._last_id + 1
        frame = _encoder.encode({"id": id, "method": method, "params": params})
        limit = self.welcome.policy.max_frame_bytes if self.welcome.policy else len(frame)
        if len(frame) > limit:
            raise GatewayError(
                f"{method}: the request has {len(frame):,} bytes, the gateway accepts at most {limit:,}", "TOO_LARGE"
            )
        pending = self._pending[id] = _PendingRequest(asyncio.get_running_loop().create_future(), on_result)
        try:
            await self._socket.send_bytes(frame)
            return await pending.future
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ConnectionLost(str(error) or "the connection was lost", sent=True) from error
        finally:
            self._pending.pop(id, None)

    async def close(self) -> None:
        with suppress(aiohttp.ClientError, ConnectionError):
            await self._socket.close()
        await self._tasks.close()

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if message.type in _TEXT:
                    self._handle_frame(_frame_decoder.decode(message.data))
        except msgspec.DecodeError as error:
            self._end(f"invalid frame from the gateway: {error}")
        else:
            self._end(_describe_close(self._socket))
        finally:
            self._end("the client was closed")

    def _handle_frame(self, frame: Frame) -> None:
        if frame.event is not None:
            self._on_event(frame.event, frame.data)
            return
        pending = self._pending.get(frame.id or 0)
        if pending is None or pending.future.done():
            return
        if frame.error is not None:
            pending.future.set_exception(_to_error(frame.error))
        else:
            if pending.on_result is not None:
                pending.on_result(frame.result)
            pending.future.set_result(msgspec.json.decode(frame.result))

    def _end(self, reason: str) -> None:
        if self._end_reason is not None:
            return
        self._end_reason = reason
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(ConnectionLost(reason, sent=True))
        self._on_end(self)


async def open_link(
    http: aiohttp.ClientSession,
    url: str,
    token: str,
    name: str,
    on_event: OnWireEvent,
    on_end: Callable[[WebSocketLink], None],
) -> WebSocketLink:
    """Connect and authenticate; raises Unreachable, or Unauthorized if the token is rejected."""
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            socket = await http.ws_connect(
                _websocket_url(url), heartbeat=_HEARTBEAT_INTERVAL, max_msg_size=_MAX_MESSAGE, compress=0
            )
            try:
                auth = AuthFrame("auth", token, PROTOCOL, Client(name, version("atlas-agents")))
                await socket.send_bytes(_encoder.encode(auth))
                return WebSocketLink(socket, _decode_welcome(await socket.receive(), url), on_event, on_end)
            except BaseException:
                await socket.close()
                raise
    except aiohttp.WSServerHandshakeError as error:
        raise Unreachable(
            f"{url} rejected the WebSocket connection: HTTP {error.status}", retryable=error.status == 503
        ) from error
    except TimeoutError as error:
        raise Unreachable(f"the gateway at {url} does not respond") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unreachable(f"cannot connect to a gateway at {url}") from error


def _decode_welcome(first: aiohttp.WSMessage, url: str) -> WelcomeFrame:
    if first.type not in _TEXT:
        raise Unreachable(f"the gateway at {url} closed the connection")
    try:
        welcome = _welcome_decoder.decode(first.data)
    except msgspec.DecodeError:
        try:
            reason = _auth_error_decoder.decode(first.data).error
        except msgspec.DecodeError as error:
            raise Unreachable(f"the server at {url} is not an Atlas gateway", retryable=False) from error
        raise Unauthorized(f"the gateway at {url} rejected the token: {reason}") from None
    if welcome.protocol < PROTOCOL:
        raise Unreachable(f"the gateway at {url} uses an older protocol version", retryable=False)
    return welcome


def _websocket_url(url: str) -> str:
    if not url.startswith(("http://", "https://", "ws://", "wss://")):
        raise Unreachable(f"invalid gateway URL {url!r}: expected for example http://127.0.0.1:18789", retryable=False)
    return f"ws{url[4:]}" if url.startswith("http") else url


def _describe_close(socket: aiohttp.ClientWebSocketResponse) -> str:
    error = socket.exception()
    return f"the connection was lost: {error}" if error else f"the gateway closed the connection ({socket.close_code})"


def _to_error(body: ErrorBody) -> GatewayError:
    after = body.data.retry_after_ms
    return GatewayError(
        body.message, body.data.kind, retryable=body.data.retryable, retry_after=after / 1000 if after else None
    )
