"""Hooks: interceptors, which may change or refuse messages and requests, and event subscribers."""

import asyncio
import logging
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast, get_args

import msgspec

from atlas_agents.core.aio import BackgroundTasks, invoke
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.events import Event, EventName
from atlas_agents.core.messages import Message
from atlas_agents.providers.base import Request
from atlas_agents.tools.policy import Actor

logger = logging.getLogger(__name__)
T = TypeVar("T")
OnMessage: TypeAlias = Callable[[Message], Any]
OnRequest: TypeAlias = Callable[[Request], Any]
OnTurn: TypeAlias = Callable[[Message, Actor], Any]
FormatTrace: TypeAlias = Callable[[BaseException], str]
SUBSCRIBER_TIMEOUT = 1.0
DRAIN_TIMEOUT = 0.25
_EVENT_NAMES: tuple[str, ...] = get_args(EventName)
_hung = BackgroundTasks("subscriber that timed out")
"""References to tasks of subscribers that timed out, until they end."""


class Interceptor(msgspec.Struct, frozen=True):
    """Up to four functions, sync or async, that see messages and requests on their way.

    Each may return None (no change), a changed value, or for messages a list: all but the last are added to the
    conversation before it. Raise `Refused` to stop the turn; any other error stops it, too. `before` is called with
    the message as it will be sent and the actor of the turn, and may return one message to insert before it.
    """

    outgoing: OnMessage | None = None
    incoming: OnMessage | None = None
    request: OnRequest | None = None
    before: OnTurn | None = None


class Interceptors:
    """The interceptors of an Atlas, applied in the order in which they were given."""

    def __init__(self, interceptors: Sequence[Interceptor] = ()) -> None:
        for item in interceptors:
            if not isinstance(cast(object, item), Interceptor):
                raise ConfigError(f"expected an Interceptor(outgoing=…, incoming=…, request=…), got {item!r}")
        self._outgoing = [item.outgoing for item in interceptors if item.outgoing]
        self._incoming = [item.incoming for item in interceptors if item.incoming]
        self._request = [item.request for item in interceptors if item.request]
        self._before = [item.before for item in interceptors if item.before]

    async def outgoing(self, message: Message, actor: Actor) -> list[Message]:
        """Return the messages that were added, followed by the user's message as it will be sent."""
        *added, message = await _apply(self._outgoing, message)
        for function in self._before:
            inserted = await invoke(function, message, actor)
            if inserted is not None:
                added.append(_require(Message, inserted, function))
        return [*added, message]

    async def incoming(self, message: Message) -> list[Message]:
        """Return the messages that were added, followed by the model's message as it will be stored."""
        return await _apply(self._incoming, message)

    async def request(self, request: Request) -> Request:
        for function in self._request:
            changed = await invoke(function, request)
            if changed is not None:
                request = _require(Request, changed, function)
        return request

    @property
    def has_incoming(self) -> bool:
        return bool(self._incoming)


async def _apply(functions: Sequence[OnMessage], message: Message) -> list[Message]:
    added: list[Message] = []
    for function in functions:
        changed = await invoke(function, message)
        if changed is None:
            continue
        *before, message = [_require(Message, item, function) for item in _as_list(changed, function)]
        added += before
    return [*added, message]


def _as_list(changed: Any, function: Callable[..., Any]) -> list[Any]:
    if not isinstance(changed, list | tuple):
        return [changed]
    if not changed:
        raise ConfigError(f"interceptor {function!r} returned an empty list; raise Refused to stop a turn")
    return [*changed]


def _require(kind: type[T], value: Any, function: Callable[..., Any]) -> T:
    if not isinstance(value, kind):
        raise ConfigError(f"interceptor {function!r} returned {value!r}, expected a {kind.__name__}")
    return value


class _Subscriber:
    """One subscribed function, which receives one event at a time."""

    def __init__(
        self, function: Callable[[Any], Any], remove: Callable[["_Subscriber"], None], format_trace: FormatTrace
    ) -> None:
        self.function = function
        self._remove = remove
        self._format_trace = format_trace
        self._queue: deque[Event] = deque()
        self._task: asyncio.Task[None] | None = None

    def publish(self, event: Event) -> None:
        self._queue.append(event)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._deliver_queued())

    @property
    def running(self) -> "asyncio.Task[None] | None":
        return self._task if self._task and not self._task.done() else None

    async def _deliver_queued(self) -> None:
        while self._queue:
            event = self._queue.popleft()
            task = asyncio.create_task(self._deliver(event))
            await asyncio.wait({task}, timeout=SUBSCRIBER_TIMEOUT)
            if not task.done():  # it is cancelled but not awaited, because it may ignore the cancellation
                logger.warning(
                    "removed a subscriber that timed out: subscriber=%r event=%s timeout=%gs",
                    self.function,
                    event.type,
                    SUBSCRIBER_TIMEOUT,
                )
                self._queue.clear()
                self._remove(self)
                _hung.adopt(task)
                task.cancel()

    async def _deliver(self, event: Event) -> None:
        try:
            await invoke(self.function, event)
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - a user's function must not harm the turn, even with SystemExit
            trace = self._format_trace(error)
            logger.error("subscriber failed: subscriber=%r event=%s\n%s", self.function, event.type, trace)


class Subscribers:
    """Event subscribers of an Atlas, by event name: `atlas.on(name, function)`.

    Each subscriber has its own queue and its own task (a thread for a sync function), so one that raises, hangs or is
    slow delays neither the others nor the turn. `format_trace` formats an exception for the log.
    """

    def __init__(self, format_trace: FormatTrace) -> None:
        self._by_name: dict[str, list[_Subscriber]] = {}
        self._format_trace = format_trace

    def on(self, name: str, function: Callable[[Any], Any]) -> Callable[[], None]:
        """Call a function for each event of that name; call the result to unsubscribe."""
        _check_event_name(name)
        if not callable(function):
            raise ConfigError(f"expected a function that takes an event, got {function!r}")
        subscriber = _Subscriber(function, self._remove, self._format_trace)
        self._by_name.setdefault(name, []).append(subscriber)
        return lambda: self._remove(subscriber)

    def off(self, name: str, function: Callable[[Any], Any]) -> None:
        """Unsubscribe a function; one that is not subscribed is ignored."""
        _check_event_name(name)
        for subscriber in [item for item in self._by_name.get(name, ()) if item.function == function]:
            self._remove(subscriber)

    def publish(self, event: Event) -> None:
        if self._by_name:
            for subscriber in self._by_name.get(event.type, ()):
                subscriber.publish(event)

    async def drain(self) -> None:
        """Wait a short time until subscribers have received the queued events."""
        if not self._by_name:
            return
        running = [task for items in self._by_name.values() for item in items if (task := item.running)]
        if running:
            await asyncio.wait(running, timeout=DRAIN_TIMEOUT)

    def _remove(self, subscriber: _Subscriber) -> None:
        for name in list(self._by_name):
            remaining = [item for item in self._by_name[name] if item is not subscriber]
            if remaining:
                self._by_name[name] = remaining
            else:
                del self._by_name[name]


def _check_event_name(name: str) -> None:
    if name not in _EVENT_NAMES:
        raise ConfigError(f"unknown event {name!r}, expected one of {', '.join(_EVENT_NAMES)}")


def offered_on(keywords: Mapping[str, Sequence[str]]) -> Callable[[Request], Awaitable[Request | None]]:
    """Return a function for `Interceptor(request=…)` that offers each tool only if it is wanted.

    A tool is offered if the user's last message contains one of its keywords, or if the conversation already has a call
    of it, because a provider may reject a history with calls of unknown tools. Without keywords it is never offered.
    This is not access control: a call of a hidden tool is checked as any other.
    """
    patterns = {
        name: re.compile("|".join(rf"\b{re.escape(word)}\b" for word in words), re.IGNORECASE) if words else None
        for name, words in keywords.items()
    }

    async def filter_tools(request: Request) -> Request | None:
        text = next((message.text for message in reversed(request.messages) if message.role == "user"), "")
        called = {call.name for message in request.messages for call in message.tool_calls}

        def is_hidden(name: str) -> bool:
            if name not in patterns or name in called:
                return False
            pattern = patterns[name]
            return pattern is None or pattern.search(text) is None

        tools = tuple(spec for spec in request.tools if not is_hidden(spec.name))
        return msgspec.structs.replace(request, tools=tools) if len(tools) < len(request.tools) else None

    return filter_tools
