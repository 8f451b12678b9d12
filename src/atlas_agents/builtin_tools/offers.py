"""Request interceptor that offers a tool to the model only when the conversation asks for it.

A tool that is not offered can still be called, and the call is checked as usual: this is not access control.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from atlas_agents.providers.base import Request


def offered_on(keywords: Mapping[str, Sequence[str]]) -> Callable[[Request], Awaitable[Request | None]]:
    """Return a function for `Interceptor(request=…)` that offers each tool only if it is wanted.

    A tool is offered if the user's last message contains one of its keywords, or if the conversation already has a call
    of it, because a provider may reject a history with calls of unknown tools. Without keywords it is never offered.
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
