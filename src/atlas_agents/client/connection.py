"""One socket to a gateway, from the token on: requests find their answers, events are handed on in their order."""

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

Hear: TypeAlias = Callable[[str, msgspec.Raw], None]
OnAnswer: TypeAlias = Callable[[msgspec.Raw], None]
_BEATS = 20.0
_LET_IN = 15.0
_LARGEST = 64 * 1024 * 1024
_TEXT = (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY)
_encoder = msgspec.json.Encoder()
_greeting = msgspec.json.Decoder(WelcomeFrame)
_refusal = msgspec.json.Decoder(AuthErrorFrame)


class ErrorDetail(msgspec.Struct, frozen=True, rename="camel"):
    """For programs; of any kind, so that a newer gateway is understood."""

    kind: str = "INTERNAL"
    retryable: bool = False
    retry_after_ms: int | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    data: ErrorDetail = ErrorDetail()


class Frame(msgspec.Struct, frozen=True):
    """Anything that a gateway sends after its welcome."""

    id: int | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: ErrorBody | None = None
    event: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"{}")


_frames = msgspec.json.Decoder(Frame)


class ConnectionLost(Exception):
    """The line broke. `sent` if the request may have arrived."""

    def __init__(self, words: str, *, sent: bool) -> None:
        super().__init__(words)
        self.words = words
        self.sent = sent


class _Asked(msgspec.Struct, frozen=True):
    future: asyncio.Future[Any]
    on_answer: OnAnswer | None


class WebSocketLink:
    """A socket that was let in. `on_event` and `on_end` are called by its reader, in the order of the frames."""

    def __init__(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        welcome: WelcomeFrame,
        on_event: Hear,
        on_end: Callable[["WebSocketLink"], None],
    ) -> None:
        self.welcome = welcome
        self._socket = socket
        self._on_event = on_event
        self._on_end = on_end
        self._asked: dict[int, _Asked] = {}
        self._number = 0
        self._why: str | None = None
        self._tasks = BackgroundTasks("gateway connection")
        self._tasks.spawn(self._read())

    @property
    def ended(self) -> bool:
        return self._why is not None

    async def ask(self, method: str, params: dict[str, Any], on_answer: OnAnswer | None = None) -> Any:
        """The result of a method. `on_answer` sees it first, before any frame that came after it."""
        if self._why is not None:
            raise ConnectionLost(self._why, sent=False)
        self._number = id = self._number + 1
        frame = _encoder.encode({"id": id, "method": method, "params": params})
        largest = self.welcome.policy.max_frame_bytes if self.welcome.policy else len(frame)
        if len(frame) > largest:
            raise GatewayError(
                f"{method}: {len(frame):,} bytes are more than the gateway takes ({largest:,})", "TOO_LARGE"
            )
        asked = self._asked[id] = _Asked(asyncio.get_running_loop().create_future(), on_answer)
        try:
            await self._socket.send_bytes(frame)
            return await asked.future
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ConnectionLost(str(error) or "the line broke", sent=True) from error
        finally:
            self._asked.pop(id, None)

    async def close(self) -> None:
        with suppress(aiohttp.ClientError, ConnectionError):
            await self._socket.close()
        await self._tasks.close()

    async def _read(self) -> None:
        try:
            async for message in self._socket:
                if message.type in _TEXT:
                    self._take(_frames.decode(message.data))
        except msgspec.DecodeError as error:
            self._end(f"what came is no frame: {error}")
        else:
            self._end(_ending(self._socket))
        finally:
            self._end("the client was closed")

    def _take(self, frame: Frame) -> None:
        if frame.event is not None:
            self._on_event(frame.event, frame.data)
            return
        asked = self._asked.get(frame.id or 0)
        if asked is None or asked.future.done():
            return
        if frame.error is not None:
            asked.future.set_exception(_fault(frame.error))
        else:
            if asked.on_answer is not None:
                asked.on_answer(frame.result)
            asked.future.set_result(msgspec.json.decode(frame.result))

    def _end(self, why: str) -> None:
        if self._why is not None:
            return
        self._why = why
        for asked in self._asked.values():
            if not asked.future.done():
                asked.future.set_exception(ConnectionLost(why, sent=True))
        self._on_end(self)


async def open_link(
    http: aiohttp.ClientSession,
    url: str,
    token: str,
    name: str,
    on_event: Hear,
    on_end: Callable[[WebSocketLink], None],
) -> WebSocketLink:
    """Knock, show the token, and be let in; Unreachable or NotLetIn if not."""
    try:
        async with asyncio.timeout(_LET_IN):
            socket = await http.ws_connect(_socket_address(url), heartbeat=_BEATS, max_msg_size=_LARGEST, compress=0)
            try:
                auth = AuthFrame("auth", token, PROTOCOL, Client(name, version("atlas-agents")))
                await socket.send_bytes(_encoder.encode(auth))
                return WebSocketLink(socket, _welcomed(await socket.receive(), url), on_event, on_end)
            except BaseException:
                await socket.close()
                raise
    except aiohttp.WSServerHandshakeError as error:
        raise Unreachable(
            f"{url} does not let sockets in: HTTP {error.status}", retryable=error.status == 503
        ) from error
    except TimeoutError as error:
        raise Unreachable(f"the gateway at {url} does not answer") from error
    except (aiohttp.ClientError, OSError) as error:
        raise Unreachable(f"no gateway answers at {url}") from error


def _welcomed(first: aiohttp.WSMessage, url: str) -> WelcomeFrame:
    if first.type not in _TEXT:
        raise Unreachable(f"the gateway at {url} closed the line")
    try:
        welcome = _greeting.decode(first.data)
    except msgspec.DecodeError:
        try:
            words = _refusal.decode(first.data).error
        except msgspec.DecodeError as error:
            raise Unreachable(f"what answers at {url} is no gateway", retryable=False) from error
        raise Unauthorized(f"the gateway at {url} refuses the token: {words}") from None
    if welcome.protocol < PROTOCOL:
        raise Unreachable(f"the gateway at {url} speaks an older protocol", retryable=False)
    return welcome


def _socket_address(url: str) -> str:
    if not url.startswith(("http://", "https://", "ws://", "wss://")):
        raise Unreachable(f"{url!r} is no address of a gateway: write http://127.0.0.1:18789", retryable=False)
    return f"ws{url[4:]}" if url.startswith("http") else url


def _ending(socket: aiohttp.ClientWebSocketResponse) -> str:
    error = socket.exception()
    return f"the line broke: {error}" if error else f"the gateway closed the line ({socket.close_code})"


def _fault(shape: ErrorBody) -> GatewayError:
    after = shape.data.retry_after_ms
    return GatewayError(
        shape.message, shape.data.kind, retryable=shape.data.retryable, retry_after=after / 1000 if after else None
    )
