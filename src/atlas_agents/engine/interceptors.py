"""Interceptors: a user's functions that see messages and requests on their way, and may change or refuse them."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from atlas_agents.core.calling import call
from atlas_agents.core.errors import ConfigError
from atlas_agents.core.messages import Message
from atlas_agents.providers.base import Request
from atlas_agents.tools.permissions import Actor

T = TypeVar("T")
OnMessage: TypeAlias = Callable[[Message], Any]
OnRequest: TypeAlias = Callable[[Request], Any]
OnTurn: TypeAlias = Callable[[Message, Actor], Any]


class Interceptor(msgspec.Struct, frozen=True):
    """Up to four functions, sync or async.

    Each may return None (leave it), a changed value, or for messages a list: those before the last are added to the
    conversation in front of it. Raise `Refused` to stop the turn; any other error stops it too. `before` is shown the
    message as it will be sent and whose turn it is, and may give one message to stand in front of it.
    """

    outgoing: OnMessage | None = None
    incoming: OnMessage | None = None
    request: OnRequest | None = None
    before: OnTurn | None = None


class Interceptors:
    """All of an Atlas's, in the order they were given."""

    def __init__(self, interceptors: Sequence[Interceptor] = ()) -> None:
        for item in interceptors:
            if not isinstance(cast(object, item), Interceptor):
                raise ConfigError(f"an interceptor is an Interceptor(outgoing=…, incoming=…, request=…), not {item!r}")
        self._outgoing = [item.outgoing for item in interceptors if item.outgoing]
        self._incoming = [item.incoming for item in interceptors if item.incoming]
        self._request = [item.request for item in interceptors if item.request]
        self._before = [item.before for item in interceptors if item.before]

    async def outgoing(self, message: Message, actor: Actor) -> list[Message]:
        """The user's message as it will be sent, and before it what was added."""
        *added, message = await _through(self._outgoing, message)
        for function in self._before:
            given = await call(function, message, actor)
            if given is not None:
                added.append(_must_be(Message, given, function))
        return [*added, message]

    async def incoming(self, message: Message) -> list[Message]:
        """A model's message as it will be kept, and before it what was added."""
        return await _through(self._incoming, message)

    async def request(self, request: Request) -> Request:
        for function in self._request:
            changed = await call(function, request)
            if changed is not None:
                request = _must_be(Request, changed, function)
        return request

    @property
    def watches_incoming(self) -> bool:
        return bool(self._incoming)


async def _through(functions: Sequence[OnMessage], message: Message) -> list[Message]:
    added: list[Message] = []
    for function in functions:
        changed = await call(function, message)
        if changed is None:
            continue
        *before, message = [_must_be(Message, item, function) for item in _listed(changed, function)]
        added += before
    return [*added, message]


def _listed(changed: Any, function: Callable[..., Any]) -> list[Any]:
    if not isinstance(changed, list | tuple):
        return [changed]
    if not changed:
        raise ConfigError(f"the interceptor {function!r} returned no message; raise Refused to stop a turn")
    return [*changed]


def _must_be(kind: type[T], value: Any, function: Callable[..., Any]) -> T:
    if not isinstance(value, kind):
        raise ConfigError(f"the interceptor {function!r} returned {value!r}, which is no {kind.__name__}")
    return value
