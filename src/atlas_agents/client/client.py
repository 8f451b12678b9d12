"""The client: one line to a gateway, made again when it breaks."""

import asyncio
import logging
import random
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeAlias

import aiohttp
import msgspec

from atlas_agents.client.feed import SessionFeed
from atlas_agents.client.link import Link, Lost, OnAnswer, open_link
from atlas_agents.core.errors import GatewayError, Unreachable
from atlas_agents.gateway.protocol.events import HOUSE_EVENTS, HouseEvent
from atlas_agents.gateway.protocol.frames import Welcome
from atlas_agents.gateway.protocol.methods import METHODS

logger = logging.getLogger(__name__)
HERE = "http://127.0.0.1:18789"
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0
_TRIES = 5
_news = {name: msgspec.json.Decoder(kind) for name, kind in HOUSE_EVENTS.items()}


class Address(msgspec.Struct, frozen=True):
    """Where a gateway is, and the token that opens it."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"Address({self.url!r}, …)"


Find: TypeAlias = Callable[[], Awaitable[Address]]
"""Finds the gateway, each time anew: it may have moved."""
OnTrouble: TypeAlias = Callable[[str], None]
"""Is told that the line broke, and with an empty text that there is one again."""


class GatewayClient:
    """`async with GatewayClient(url, token) as client`: call methods, follow sessions.

    A line that breaks is made again, for `patience` seconds at most. A request that only reads, or that carries an
    idempotency key, is then sent again; of another one nobody knows whether it was done, and Unreachable says so.
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
        self._address = Address(url, token)
        self._find = find
        self._patience = patience
        self._name = name
        self._on_trouble = on_trouble
        self._http: aiohttp.ClientSession | None = None
        self._link: Link | None = None
        self._opening = asyncio.Lock()
        self._feeds: dict[str, SessionFeed] = {}
        self._listeners: set[asyncio.Queue[HouseEvent | None]] = set()
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

    async def connect(self) -> Welcome:
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
        lost = Lost("", sent=False)
        for _ in range(_TRIES):
            link = await self._linked()
            try:
                return await link.ask(method, params, on_answer)
            except Lost as loss:
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

    async def news(self) -> AsyncGenerator[HouseEvent, None]:
        """What is told unasked: sessions that change, lines of the audit log, the end of the server. Ends when the
        line breaks: what was told meanwhile is lost, and has to be looked up."""
        await self._linked()
        queue: asyncio.Queue[HouseEvent | None] = asyncio.Queue()
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

    async def _linked(self) -> Link:
        async with self._opening:
            if self._closed:
                raise Unreachable("this client is closed", retryable=False)
            if self._link is None or self._link.ended:
                self._link = await self._opened()
                if self._broken:
                    self._broken = False
                    self._tell("")
            return self._link

    async def _opened(self) -> Link:
        """Try until it succeeds, ever more slowly, as long as there is patience and a chance."""
        if self._http is None:
            self._http = aiohttp.ClientSession()
        loop = asyncio.get_running_loop()
        end, pause = loop.time() + self._patience, _FIRST_PAUSE
        while True:
            try:
                if self._find is not None:
                    self._address = await self._find()
                url, token = self._address.url, self._address.token
                return await open_link(self._http, url, token, self._name, self._hear, self._ended)
            except Unreachable as error:
                if not error.retryable or loop.time() + pause > end or (self._link is None and self._find is None):
                    raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _hear(self, name: str, data: msgspec.Raw) -> None:
        if (decoder := _news.get(name)) is not None:
            event = decoder.decode(data)
            for queue in self._listeners:
                queue.put_nowait(event)
            return
        for feed in list(self._feeds.values()):
            feed.hear(name, data)

    def _ended(self, link: Link) -> None:
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
