"""What happens in one session: each event once and in its order, also over a line that breaks.

Every event of a run has a number. Whoever was cut off names the last one it has of each run, and is told the rest.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias

import msgspec

from atlas_agents.client.link import OnAnswer
from atlas_agents.core.ids import new_id
from atlas_agents.gateway.protocol.chat import Sent
from atlas_agents.gateway.protocol.events import LAST_WORDS, RUN_EVENTS, ChatError, ChatFinal, ChatMessage, RunEvent
from atlas_agents.gateway.protocol.sessions import RunPosition, Subscribed
from atlas_agents.gateway.protocol.shapes import MessageShape, SessionShape, Wire

SessionEvent: TypeAlias = RunEvent | RunPosition
"""An event of a run; or, of one that was under way before anybody looked, where it stands: its `parts` so far."""
_MOST_WAITING = 10_000
"""Events that nobody has taken yet; what comes beyond is fetched again once there is room."""
_MOST_ENDED = 1000
_subscribed = msgspec.json.Decoder(Subscribed)
_events = {name: msgspec.json.Decoder(kind) for name, kind in RUN_EVENTS.items()}


class _Place(Wire, frozen=True):
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
