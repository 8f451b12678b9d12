"""The client: one line to a gateway, made again when it breaks."""

import asyncio
import logging
import re
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias

import aiohttp
import msgspec

from atlas_agents.client.connection import ConnectionLost, OnAnswer, WebSocketLink, open_link
from atlas_agents.core.errors import GatewayError, Unreachable
from atlas_agents.core.http import backoff, open_session
from atlas_agents.core.messages import new_id
from atlas_agents.gateway.protocol.chat import Sent
from atlas_agents.gateway.protocol.events import (
    LAST_WORDS,
    RUN_EVENTS,
    SERVER_EVENTS,
    ChatError,
    ChatFinal,
    ChatMessage,
    RunEvent,
    ServerEvent,
)
from atlas_agents.gateway.protocol.frames import WelcomeFrame
from atlas_agents.gateway.protocol.methods import METHODS
from atlas_agents.gateway.protocol.sessions import RunPosition, Subscribed
from atlas_agents.gateway.protocol.types import MessageShape, SessionShape, WireStruct

SessionEvent: TypeAlias = RunEvent | RunPosition
"""An event of a run; or, of one that was under way before anybody looked, where it stands: its `parts` so far."""
_MOST_WAITING = 10_000
"""Events that nobody has taken yet; what comes beyond is fetched again once there is room."""
_MOST_ENDED = 1000
_subscribed = msgspec.json.Decoder(Subscribed)
_events = {name: msgspec.json.Decoder(kind) for name, kind in RUN_EVENTS.items()}


class _Place(WireStruct, frozen=True):
    """Which event it is."""

    run_id: str
    session_key: str
    seq: int


_places = msgspec.json.Decoder(_Place)


class Ask(Protocol):
    """Sends a request, and again over a new line if need be."""

    def __call__(self, method: str, params: dict[str, Any], on_answer: OnAnswer | None = None) -> Awaitable[Any]: ...


class SessionFeed:
    """`async for event in feed`, and `feed.send` to say something. `messages` is what was said before."""

    def __init__(self, session_key: str, ask: Ask, leave: Callable[[str], Awaitable[None]]) -> None:
        self.session_key = session_key
        self.session: SessionShape | None = None
        self.messages: tuple[MessageShape, ...] = ()
        self.positions: dict[str, int] = {}
        """The last number that came of each run under way."""
        self._ask = ask
        self._leave = leave
        self._waiting: deque[SessionEvent] = deque()
        self._news = asyncio.Event()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._last_message: str | None = None
        self._joining = asyncio.Lock()
        self._live = False
        self._over = False

    async def __aenter__(self) -> Self:
        await self.join()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionEvent:
        while not self._waiting:
            if self._over:
                raise StopAsyncIteration
            if not self._live:
                await self.join()
                continue
            self._news.clear()
            await self._news.wait()
        return self._waiting.popleft()

    async def join(self) -> SessionShape | None:
        """Hear the session from now on, and of the runs that are known what was missed."""
        async with self._joining:
            if not self._live and not self._over:
                asked = dict(self.positions)
                params: dict[str, Any] = {"sessionKey": self.session_key, "runs": asked}
                if self._last_message is not None:
                    params["afterMessageId"] = self._last_message
                await self._ask("sessions.subscribe", params, lambda result: self._joined(result, asked))
        return self.session

    async def send(
        self,
        message: str | list[dict[str, Any]],
        *,
        agent_id: str | None = None,
        when_busy: Literal["queue", "reject", "interrupt"] | None = None,
        idempotency_key: str | None = None,
    ) -> Sent:
        """Say something. It is said once, whatever happens to the line; the answer follows as events."""
        await self.join()
        params = {
            "sessionKey": self.session_key,
            "message": message,
            "agentId": agent_id,
            "whenBusy": when_busy,
            "idempotencyKey": idempotency_key or new_id(),
        }
        answer = await self._ask("chat.send", {key: value for key, value in params.items() if value is not None})
        sent = msgspec.convert(answer, Sent)
        if sent.run_id not in self.positions and sent.run_id not in self._ended:
            self.positions[sent.run_id] = 0
            if sent.status in ("in_flight", "done"):  # it began over another line: hear it from its beginning
                self.lose()
        return sent

    async def of(self, run_id: str) -> AsyncGenerator[SessionEvent, None]:
        """The events of one run up to its last word; those of others are passed over."""
        async for event in self:
            if event.run_id == run_id:
                yield event
                if isinstance(event, ChatFinal | ChatError):
                    return

    async def close(self) -> None:
        """Hear it no more."""
        self.end()
        await self._leave(self.session_key)

    def end(self) -> None:
        """End the feed: iteration stops."""
        self._over = True
        self._live = False
        self._news.set()

    def lose(self) -> None:
        """The line broke, or what came is not to be had: join again before anything else is taken."""
        self._live = False
        self._news.set()

    def hear(self, name: str, data: msgspec.Raw) -> None:
        """An event from the line; of another session, or before we have joined, it is not for us."""
        if not self._live:
            return
        place = _places.decode(data)
        if place.session_key != self.session_key or place.run_id in self._ended:
            return
        if place.seq <= self.positions.get(place.run_id, 0):
            return
        if len(self._waiting) >= _MOST_WAITING:
            self.lose()
            return
        self.positions[place.run_id] = place.seq
        if (decoder := _events.get(name)) is not None:
            self._put(decoder.decode(data))
        if name in LAST_WORDS:
            self._close_run(place.run_id)

    def _joined(self, result: msgspec.Raw, asked: dict[str, int]) -> None:
        """Called before any event that follows: from here on nothing is missed, and nothing is told twice."""
        found = _subscribed.decode(result)
        first = self.session is None
        self.session = found.session
        self._live = True
        if first:
            self.messages = found.messages
        for message in found.messages:
            self._last_message = message.id
            if not first and message.run_id not in asked and message.run_id not in self._ended:
                self._put(ChatMessage(message.run_id, message))
        for run in found.runs:
            if run.mode == "snapshot" and run.run_id not in self._ended:
                self.positions[run.run_id] = run.seq
                self._put(run)
        for run_id in asked.keys() - {run.run_id for run in found.runs}:
            self.positions.pop(run_id, None)  # it is not there any more: the session was removed

    def _put(self, event: SessionEvent) -> None:
        if isinstance(event, ChatMessage):
            self._last_message = event.message.id
        self._waiting.append(event)
        self._news.set()

    def _close_run(self, run_id: str) -> None:
        self.positions.pop(run_id, None)
        self._ended[run_id] = None
        if len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)


logger = logging.getLogger(__name__)
HERE = "http://127.0.0.1:18789"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_TRIES = 5
_news = {name: msgspec.json.Decoder(kind) for name, kind in SERVER_EVENTS.items()}


class GatewayAddress(msgspec.Struct, frozen=True):
    """Where a gateway is, and the token that opens it."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"Address({self.url!r}, …)"


Find: TypeAlias = Callable[[], Awaitable[GatewayAddress]]
"""Finds the gateway, each time anew: it may have moved."""
OnTrouble: TypeAlias = Callable[[str], None]
"""Is told that the line broke, and with an empty text that there is one again."""


class GatewayClient:
    """`async with GatewayClient(url, token) as client`: call methods, follow sessions.

    A line that breaks is made again, for `patience` seconds at most. A request that only reads, or that carries an
    idempotency key, is then sent again; of another one nobody knows whether it was done, and Unreachable says so.

    Args:
        url: WebSocket address of the gateway.
        token: Token to authenticate with.
        find: Function that returns the address and token, called at every connection attempt.
        patience: Seconds to retry a lost connection before `Unreachable` is raised.
        name: Name of this client in the gateway's log.
        on_trouble: Called with a sentence when the connection is lost or restored.
    """

    def __init__(
        self,
        url: str = HERE,
        token: str = "",
        *,
        find: Find | None = None,
        patience: float = 30.0,
        name: str = "atlas-client",
        on_trouble: OnTrouble | None = None,
    ) -> None:
        self._address = GatewayAddress(url, token)
        self._find = find
        self._patience = patience
        self._name = name
        self._on_trouble = on_trouble
        self._http: aiohttp.ClientSession | None = None
        self._link: WebSocketLink | None = None
        self._opening = asyncio.Lock()
        self._feeds: dict[str, SessionFeed] = {}
        self._listeners: set[asyncio.Queue[ServerEvent | None]] = set()
        self._closed = False
        self._broken = False

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
        """Be let in, if that is not so yet; what the gateway says of itself and of the token's owner."""
        return (await self._linked()).welcome

    async def call(self, method: str, /, **params: Any) -> Any:
        """The result of a method, as it is on the wire; GatewayError with its kind if it has none.

        `session_key=` and `sessionKey=` mean the same; what is None is left out.
        """
        return await self.ask(method, {_wire_name(key): value for key, value in params.items() if value is not None})

    async def ask(self, method: str, params: dict[str, Any], on_answer: OnAnswer | None = None) -> Any:
        """The same with the params as they are; `on_answer` sees the result before any event that follows it."""
        again = (method in METHODS and METHODS[method].scope == "read") or "idempotencyKey" in params
        lost = ConnectionLost("", sent=False)
        for _ in range(_TRIES):
            link = await self._linked()
            try:
                return await link.ask(method, params, on_answer)
            except ConnectionLost as loss:
                lost = loss
                if loss.sent and not again:
                    break
        raise Unreachable(f"{method}: {lost.words}", unclear=lost.sent and not again)

    def follow(self, session_key: str) -> SessionFeed:
        """What happens in a session, from the moment of the first look on."""
        if session_key in self._feeds:
            raise GatewayError(f"this client follows {session_key!r} already", "CONFLICT")
        feed = self._feeds[session_key] = SessionFeed(session_key, self.ask, self._leave)
        return feed

    async def news(self) -> AsyncGenerator[ServerEvent, None]:
        """What is told unasked: sessions that change, lines of the audit log, the end of the server. Ends when the
        line breaks: what was told meanwhile is lost, and has to be looked up."""
        await self._linked()
        queue: asyncio.Queue[ServerEvent | None] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._listeners.discard(queue)

    async def close(self) -> None:
        """Let go of everything; feeds end."""
        self._closed = True
        for feed in list(self._feeds.values()):
            feed.end()
        self._feeds.clear()
        if self._link is not None:
            await self._link.close()
        if self._http is not None:
            await self._http.close()

    async def _linked(self) -> WebSocketLink:
        async with self._opening:
            if self._closed:
                raise Unreachable("this client is closed", retryable=False)
            if self._link is None or self._link.ended:
                self._link = await self._opened()
                if self._broken:
                    self._broken = False
                    self._tell("")
            return self._link

    async def _opened(self) -> WebSocketLink:
        """Try until it succeeds, ever more slowly, as long as there is patience and a chance."""
        if self._http is None:
            self._http = open_session()
        loop = asyncio.get_running_loop()
        end, attempt = loop.time() + self._patience, 0
        while True:
            pause = backoff(attempt, _FIRST_PAUSE, _LONGEST_PAUSE)
            try:
                if self._find is not None:
                    self._address = await self._find()
                url, token = self._address.url, self._address.token
                return await open_link(self._http, url, token, self._name, self._hear, self._ended)
            except Unreachable as error:
                if not error.retryable or loop.time() + pause > end or (self._link is None and self._find is None):
                    raise
            await asyncio.sleep(pause)
            attempt += 1

    def _hear(self, name: str, data: msgspec.Raw) -> None:
        if (decoder := _news.get(name)) is not None:
            event = decoder.decode(data)
            for queue in self._listeners:
                queue.put_nowait(event)
            return
        for feed in list(self._feeds.values()):
            feed.hear(name, data)

    def _ended(self, link: WebSocketLink) -> None:
        if self._closed:
            return
        self._broken = True
        self._tell("the line to the gateway broke")
        for feed in list(self._feeds.values()):
            feed.lose()
        for queue in list(self._listeners):
            queue.put_nowait(None)

    def _tell(self, words: str) -> None:
        if self._on_trouble is not None:
            self._on_trouble(words)

    async def _leave(self, session_key: str) -> None:
        if self._feeds.pop(session_key, None) is not None and self._link is not None and not self._link.ended:
            await self.ask("sessions.unsubscribe", {"sessionKey": session_key})


def _wire_name(name: str) -> str:
    """`session_key` → `sessionKey`; `from_` → `from`."""
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name).rstrip("_")
