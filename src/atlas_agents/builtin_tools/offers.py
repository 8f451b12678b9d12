"""Tools that a model is told of only when they are wanted: an interceptor of requests leaves the others out.

What is not offered can still be called, and is judged as every call is: this spares the model a choice, it is no lock.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from atlas_agents.core.messages import Message
from atlas_agents.providers.base import Request


def offered_on(words: Mapping[str, Sequence[str]]) -> Callable[[Request], Awaitable[Request | None]]:
    """For `Interceptor(request=…)`: each of these tools is offered when the user's message has one of its words, or
    when the conversation has a call of it already. A tool without words is never offered."""
    patterns = {
        name: re.compile("|".join(rf"\b{re.escape(word)}\b" for word in each), re.IGNORECASE) if each else None
        for name, each in words.items()
    }

    async def choose(request: Request) -> Request | None:
        held = [spec.name for spec in request.tools if spec.name in patterns]
        if not held:
            return None
        said = _last_words(request.messages)
        left = {name for name in held if not _wanted(patterns[name], said)} - _called(request.messages)
        if not left:
            return None
        return msgspec.structs.replace(request, tools=tuple(spec for spec in request.tools if spec.name not in left))

    return choose


def _wanted(pattern: re.Pattern[str] | None, said: str) -> bool:
    return pattern is not None and pattern.search(said) is not None


def _last_words(messages: Sequence[Message]) -> str:
    return next((message.text for message in reversed(messages) if message.role == "user"), "")


def _called(messages: Sequence[Message]) -> set[str]:
    """A vendor may refuse a history that calls tools which it is not told of."""
    return {call.name for message in messages for call in message.tool_calls}
