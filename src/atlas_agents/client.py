"""Gateway client: call methods and follow the events of sessions. It reconnects when the connection is lost."""

import asyncio
import re
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from atlas_agents.core import package_version
from atlas_agents.core.aio import BackgroundTasks
from atlas_agents.core.errors import GatewayError, Unauthorized, Unreachable
from atlas_agents.core.http import backoff
from atlas_agents.core.messages import STEERING_RUN, new_id
from atlas_agents.gateway.protocol import events
from atlas_agents.gateway.protocol.chat import Sent
from atlas_agents.gateway.protocol.frames import PROTOCOL, AuthErrorFrame, AuthFrame, Client, WelcomeFrame
from atlas_agents.gateway.protocol.sessions import RunPosition, Subscribed
from atlas_agents.gateway.protocol.types import MessageShape, SessionShape, WireStruct

__all__ = [
    "GatewayAddress",
    "GatewayClient",
    "GatewayError",
    "SessionEvent",
    "SessionFeed",
    "Unauthorized",
    "Unreachable",
]

SessionEvent: TypeAlias = events.RunEvent | RunPosition
"""An event of a run, or the position of a run that had started before the subscription, with its `parts` so far."""
_MAX_PENDING = 10_000
"""Maximum number of buffered unread events; later events are requested again once these are read."""
_MAX_ENDED = 1000
_subscribed_decoder = msgspec.json.Decoder(Subscribed)
_event_decoders = {name: msgspec.json.Decoder(kind) for name, kind in events.RUN_EVENTS.items()}
DEFAULT_URL = "http://127.0.0.1:18789"
_MIN_BACKOFF, _MAX_BACKOFF = 0.1, 2.0
_MAX_ATTEMPTS = 5
_POST_RESULTS = "chat.postResults"
_server_event_decoders = {name: msgspec.json.Decoder(kind) for name, kind in events.SERVER_EVENTS.items()}
OnConnectionChange: TypeAlias = Callable[[str], None]
"""Called with a message when the connection is lost, and with an empty string when it is restored."""
OnWireEvent: TypeAlias = Callable[[str, msgspec.Raw], None]
OnResult: TypeAlias = Callable[[msgspec.Raw], None]
_HEARTBEAT_INTERVAL = 20.0
_CONNECT_TIMEOUT = 15.0
_MAX_MESSAGE = 64 * 1024 * 1024
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
        socket: ClientConnection,
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
        self._over = asyncio.Event()
        self.stopping = False
        """Whether the gateway has announced that it shuts down: it accepts no turns any more."""
        self._tasks = BackgroundTasks("gateway connection")
        self._tasks.spawn(self._read())

    @property
    def ended(self) -> bool:
        return self._end_reason is not None

    async def wait_for_end(self, seconds: float) -> bool:
        """Wait until the connection has ended; False if it has not after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()
        return self.ended

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
            await self._socket.send(frame)
            return await pending.future
        except ConnectionClosed as error:
            raise ConnectionLost(str(error), sent=True) from error
        finally:
            self._pending.pop(id, None)

    async def close(self) -> None:
        await self._socket.close()
        await self._tasks.close()

    async def _read(self) -> None:
        try:
            while True:
                self._handle_frame(_frame_decoder.decode(await self._socket.recv(decode=False)))
        except ConnectionClosed as error:
            self._end(_describe_close(error))
        except msgspec.DecodeError as error:
            self._end(f"invalid frame from the gateway: {error}")
        finally:
            self._end("the client was closed")

    def _handle_frame(self, frame: Frame) -> None:
        if frame.event is not None:
            self.stopping = self.stopping or frame.event == events.ServerShutdown.event
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
        self._over.set()
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(ConnectionLost(reason, sent=True))
        self._on_end(self)


async def open_link(
    url: str, token: str, name: str, on_event: OnWireEvent, on_end: Callable[[WebSocketLink], None]
) -> WebSocketLink:
    """Connect and authenticate; raises Unreachable, or Unauthorized if the token is rejected."""
    try:
        async with asyncio.timeout(_CONNECT_TIMEOUT):
            socket = await open_websocket(
                _websocket_url(url),
                ping_interval=_HEARTBEAT_INTERVAL,
                ping_timeout=_HEARTBEAT_INTERVAL,
                max_size=_MAX_MESSAGE,
                compression=None,
                proxy=None,
                user_agent_header=None,
            )
            try:
                await socket.send(_encoder.encode(AuthFrame("auth", token, PROTOCOL, Client(name, package_version()))))
                return WebSocketLink(socket, _decode_welcome(await socket.recv(decode=False), url), on_event, on_end)
            except BaseException:
                await socket.close()
                raise
    except InvalidStatus as error:
        status = error.response.status_code
        raise Unreachable(f"{url} rejected the WebSocket connection: HTTP {status}", retryable=status == 503) from error
    except ConnectionClosed as error:
        raise Unreachable(f"the gateway at {url} closed the connection") from error
    except TimeoutError as error:
        raise Unreachable(f"the gateway at {url} does not respond") from error
    except (WebSocketException, OSError) as error:
        raise Unreachable(f"cannot connect to a gateway at {url}") from error


def _decode_welcome(first: bytes, url: str) -> WelcomeFrame:
    try:
        welcome = _welcome_decoder.decode(first)
    except msgspec.DecodeError:
        try:
            reason = _auth_error_decoder.decode(first).error
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


def _describe_close(error: ConnectionClosed) -> str:
    if error.rcvd is None:
        return f"the connection was lost: {error.__cause__ or error}"
    return f"the gateway closed the connection ({error.rcvd.code})"


def _to_error(body: ErrorBody) -> GatewayError:
    after = body.data.retry_after_ms
    return GatewayError(
        body.message, body.data.kind, retryable=body.data.retryable, retry_after=after / 1000 if after else None
    )


class _EventPosition(WireStruct, frozen=True):
    """Identifies an event of a run."""

    run_id: str
    session_key: str
    seq: int


_position_decoder = msgspec.json.Decoder(_EventPosition)


class SendRequest(Protocol):
    """Sends a request, if necessary again over a new connection."""

    def __call__(self, method: str, params: dict[str, Any], on_result: OnResult | None = None) -> Awaitable[Any]: ...


class SessionFeed:
    """Events of one session, from `client.follow`: `async for event in feed`, and `feed.send` to send a message.

    `messages` is the history at the time of the subscription.
    """

    def __init__(self, session_key: str, request: SendRequest, unsubscribe: Callable[[str], Awaitable[None]]) -> None:
        self.session_key = session_key
        """Key of the session."""
        self.session: SessionShape | None = None
        """The session at the time of the subscription; None if it does not exist yet."""
        self.messages: tuple[MessageShape, ...] = ()
        """The history at the time of the subscription."""
        self.positions: dict[str, int] = {}
        """The last event number received of each open run."""
        self._request = request
        self._unsubscribe = unsubscribe
        self._pending: deque[SessionEvent] = deque()
        self._changed = asyncio.Event()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._last_message: str | None = None
        self._subscribing = asyncio.Lock()
        self._subscribed = False
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.subscribe()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionEvent:
        while not self._pending:
            if self._closed:
                raise StopAsyncIteration
            if not self._subscribed:
                await self.subscribe()
                continue
            self._changed.clear()
            await self._changed.wait()
        return self._pending.popleft()

    async def subscribe(self) -> SessionShape | None:
        """Subscribe to the session, and receive the missed events of known runs."""
        async with self._subscribing:
            if not self._subscribed and not self._closed:
                known_positions = dict(self.positions)
                params: dict[str, Any] = {"sessionKey": self.session_key, "runs": known_positions}
                if self._last_message is not None:
                    params["afterMessageId"] = self._last_message
                await self._request(
                    "sessions.subscribe", params, lambda result: self._handle_subscribed(result, known_positions)
                )
        return self.session

    async def send(
        self,
        message: str | list[dict[str, Any]],
        *,
        agent_id: str | None = None,
        when_busy: Literal["queue", "steer", "reject", "interrupt"] | None = None,
        idempotency_key: str | None = None,
        untrusted: str | None = None,
        settings: Mapping[str, Any] | None = None,
        budget: Mapping[str, float] | None = None,
        pinned: bool = False,
        channel: str | None = None,
        client_tools: Mapping[str, Any] | None = None,
    ) -> Sent:
        """Send a message exactly once, even if the connection is lost meanwhile. The answer arrives as events.

        `untrusted` names the source of a message that someone else wrote, such as `mail: ana@example.org`. `settings`
        are model settings such as `{"effort": "high"}`; see `TurnSettings` in the protocol. `budget` limits this turn,
        for example `{"tokens": 20_000, "seconds": 60}`; see `TurnLimits` in the protocol. A `pinned` message is always
        sent to the model, however long the session gets. `channel` names the messenger that a person wrote it in.
        `client_tools` are tools that you run, such as `{"tools": [{"name": "clock"}]}`; see `ClientToolsShape` in the
        protocol. The event `tool.pending` names their calls; post each result with `client.post_result`.
        """
        await self.subscribe()
        params = {
            "sessionKey": self.session_key,
            "message": message,
            "agentId": agent_id,
            "whenBusy": when_busy,
            "idempotencyKey": idempotency_key or new_id(),
            "untrusted": untrusted,
            "settings": settings or None,
            "budget": budget or None,
            "pinned": pinned or None,
            "channel": channel,
            "clientTools": client_tools,
        }
        answer = await self._request("chat.send", {key: value for key, value in params.items() if value is not None})
        sent = msgspec.convert(answer, Sent)
        if sent.run_id not in self.positions and sent.run_id not in self._ended:
            self.positions[sent.run_id] = 0
            if sent.status in ("in_flight", "done"):  # sent over an earlier connection: receive it from its beginning
                self.mark_lost()
        return sent

    async def run_events(
        self, run_id: str, on_other: Callable[[SessionEvent], None] | None = None
    ) -> AsyncGenerator[SessionEvent, None]:
        """Yield the events of one run up to its terminal event; those of other runs are passed to `on_other`.

        For a steering message, the events of the run that it entered follow.
        """
        async for event in self:
            if isinstance(event, events.ChatMessage) and event.message.metadata.get(STEERING_RUN) == run_id:
                run_id = event.run_id
            if event.run_id != run_id:
                if on_other is not None:
                    on_other(event)
            else:
                yield event
                if isinstance(event, events.ChatFinal) and event.entered_run_id is not None:
                    run_id = event.entered_run_id
                elif isinstance(event, events.ChatFinal | events.ChatError):
                    return

    async def close(self) -> None:
        """End the feed and unsubscribe."""
        self.end()
        await self._unsubscribe(self.session_key)

    def end(self) -> None:
        """Internal: end the feed: iteration stops."""
        self._closed = True
        self._subscribed = False
        self._changed.set()

    def mark_lost(self) -> None:
        """Internal: subscribe again before the next event: the connection was lost, or events were dropped."""
        self._subscribed = False
        self._changed.set()

    def receive(self, name: str, data: msgspec.Raw) -> None:
        """Internal: handle an event; ignore it if it belongs to another session or comes before the subscription."""
        if not self._subscribed:
            return
        position = _position_decoder.decode(data)
        if position.session_key != self.session_key or position.run_id in self._ended:
            return
        if position.seq <= self.positions.get(position.run_id, 0):
            return
        if len(self._pending) >= _MAX_PENDING:
            self.mark_lost()
            return
        self.positions[position.run_id] = position.seq
        if (decoder := _event_decoders.get(name)) is not None:
            self._append(decoder.decode(data))
        if name in events.TERMINAL_EVENTS:
            self._close_run(position.run_id)

    def _handle_subscribed(self, result: msgspec.Raw, known_positions: dict[str, int]) -> None:
        """Handle the response of a subscription. Called before any later event, so none is missed or received twice."""
        found = _subscribed_decoder.decode(result)
        first = self.session is None
        self.session = found.session
        self._subscribed = True
        if first:
            self.messages = found.messages
        for message in found.messages:
            self._last_message = message.id
            if not first and message.run_id not in known_positions and message.run_id not in self._ended:
                self._append(events.ChatMessage(message.run_id, message))
        for run in found.runs:
            if run.mode == "snapshot" and run.run_id not in self._ended:
                self.positions[run.run_id] = run.seq
                self._append(run)
        for run_id in known_positions.keys() - {run.run_id for run in found.runs}:
            self.positions.pop(run_id, None)  # the session was deleted

    def _append(self, event: SessionEvent) -> None:
        if isinstance(event, events.ChatMessage):
            self._last_message = event.message.id
        self._pending.append(event)
        self._changed.set()

    def _close_run(self, run_id: str) -> None:
        self.positions.pop(run_id, None)
        self._ended[run_id] = None
        if len(self._ended) > _MAX_ENDED:
            self._ended.popitem(last=False)


class GatewayAddress(msgspec.Struct, frozen=True):
    """The URL of a gateway, and a token for it.

    Attributes:
        url: Address, such as `ws://127.0.0.1:18789`.
        token: Token that authenticates the client.
    """

    url: str
    token: str

    def __repr__(self) -> str:
        return f"GatewayAddress({self.url!r}, …)"


FindGateway: TypeAlias = Callable[[], Awaitable[GatewayAddress]]
"""Returns the address of the gateway; called before each connection attempt, because it may change."""


class GatewayClient:
    """`async with GatewayClient(url, token) as client`: call methods, follow sessions.

    A lost connection is reopened. A request that only reads, or that has an idempotency key, is then repeated; for any
    other request `Unreachable` is raised with `unclear=True`, because it may have been executed. A request that a
    gateway refuses during shutdown is sent to the next one.

    Args:
        url: WebSocket address of the gateway.
        token: Token to authenticate with.
        find: Function that returns the address and token, called at every connection attempt.
        reconnect_timeout: Seconds to retry a lost connection before `Unreachable` is raised, and to wait for the end
            of a gateway that shuts down.
        name: Name of this client in the gateway's log.
        on_connection_change: Called with a message when the connection is lost, and with "" when it is restored.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token: str = "",
        *,
        find: FindGateway | None = None,
        reconnect_timeout: float = 30.0,
        name: str = "atlas-client",
        on_connection_change: OnConnectionChange = lambda message: None,
    ) -> None:
        self._address = GatewayAddress(url, token)
        self._find = find
        self._reconnect_timeout = reconnect_timeout
        self._name = name
        self._on_connection_change = on_connection_change
        self._link: WebSocketLink | None = None
        self._connecting = asyncio.Lock()
        self._feeds: dict[str, SessionFeed] = {}
        self._listeners: set[asyncio.Queue[events.ServerEvent | None]] = set()
        self._closed = False
        self._was_lost = False

    async def __aenter__(self) -> Self:
        try:
            await self.connect()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def connect(self) -> WelcomeFrame:
        """Connect if needed, and return the gateway's welcome: its version, its limits and the owner of the token."""
        return (await self._connected_link()).welcome

    async def call(self, method: str, /, **params: Any) -> Any:
        """Call a method and return its result as decoded JSON; GatewayError with its kind if it fails.

        `session_key=` and `sessionKey=` mean the same; parameters that are None are omitted.
        """
        return await self.request(
            method, {_wire_name(key): value for key, value in params.items() if value is not None}
        )

    async def request(self, method: str, params: dict[str, Any], on_result: OnResult | None = None) -> Any:
        """Like `call`, with the parameters as given. `on_result` receives the result before any later event."""
        repeatable = True
        last_loss = ConnectionLost("", sent=False)
        for _ in range(_MAX_ATTEMPTS):
            link = await self._connected_link()
            try:
                return await link.request(method, params, on_result)
            except ConnectionLost as loss:
                last_loss, repeatable = loss, "idempotencyKey" in params or _is_repeatable(method)
                if loss.sent and not repeatable:
                    break
            except GatewayError as refusal:
                refused = refusal.kind == "UNAVAILABLE" and link.stopping
                if not refused or not await link.wait_for_end(self._reconnect_timeout):
                    raise
                last_loss = ConnectionLost(str(refusal), sent=False)
        raise Unreachable(f"{method}: {last_loss.reason}", unclear=last_loss.sent and not repeatable)

    async def post_result(self, call_id: str, result: Any, *, error: bool = False) -> None:
        """Post the result of a tool call that this client ran; with `error`, why it failed. The first result counts."""
        posted = {"callId": call_id, "result": result, "error": error}
        await self.request(_POST_RESULTS, {"results": [posted]})

    def follow(self, session_key: str) -> SessionFeed:
        """Return a feed of the session's events; it subscribes when it is entered or first read."""
        if session_key in self._feeds:
            raise GatewayError(f"this client already follows session {session_key!r}", "CONFLICT")
        feed = self._feeds[session_key] = SessionFeed(session_key, self.request, self._unsubscribe)
        return feed

    async def server_events(self) -> AsyncGenerator[events.ServerEvent, None]:
        """Yield events that belong to no followed session: changed sessions, audit records, server shutdown. Ends when
        the connection is lost; then read the current state again."""
        await self._connected_link()
        queue: asyncio.Queue[events.ServerEvent | None] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._listeners.discard(queue)

    async def close(self) -> None:
        """Close the connection and end all feeds."""
        self._closed = True
        for feed in list(self._feeds.values()):
            feed.end()
        self._feeds.clear()
        if self._link is not None:
            await self._link.close()

    async def _connected_link(self) -> WebSocketLink:
        async with self._connecting:
            if self._closed:
                raise Unreachable("this client is closed", retryable=False)
            if self._link is None or self._link.ended:
                self._link = await self._open_link()
                if self._was_lost:
                    self._was_lost = False
                    self._on_connection_change("")
            return self._link

    async def _open_link(self) -> WebSocketLink:
        """Connect, retrying with backoff up to `reconnect_timeout`. The first attempt at a fixed URL is not retried."""
        loop = asyncio.get_running_loop()
        deadline, attempt = loop.time() + self._reconnect_timeout, 0
        while True:
            delay = backoff(attempt, _MIN_BACKOFF, _MAX_BACKOFF)
            try:
                if self._find is not None:
                    self._address = await self._find()
                url, token = self._address.url, self._address.token
                return await open_link(url, token, self._name, self._receive, self._ended)
            except Unreachable as error:
                if not error.retryable or loop.time() + delay > deadline or (self._link is None and self._find is None):
                    raise
            await asyncio.sleep(delay)
            attempt += 1

    def _receive(self, name: str, data: msgspec.Raw) -> None:
        if (decoder := _server_event_decoders.get(name)) is not None:
            event = decoder.decode(data)
            for queue in self._listeners:
                queue.put_nowait(event)
            return
        for feed in list(self._feeds.values()):
            feed.receive(name, data)

    def _ended(self, link: WebSocketLink) -> None:
        if self._closed:
            return
        self._was_lost = True
        self._on_connection_change("the connection to the gateway was lost")
        for feed in list(self._feeds.values()):
            feed.mark_lost()
        for queue in list(self._listeners):
            queue.put_nowait(None)

    async def _unsubscribe(self, session_key: str) -> None:
        if self._feeds.pop(session_key, None) is not None and self._link is not None and not self._link.ended:
            await self.request("sessions.unsubscribe", {"sessionKey": session_key})


def _is_repeatable(method: str) -> bool:
    """Return whether calling a method again is safe: it has no side effects, or is idempotent.

    The table of methods takes long to import, and is rarely needed.
    """
    from atlas_agents.gateway.protocol.methods import METHODS

    return method == _POST_RESULTS or (method in METHODS and METHODS[method].scope == "read")


def _wire_name(name: str) -> str:
    """`session_key` → `sessionKey`; `from_` → `from`."""
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name).rstrip("_")
