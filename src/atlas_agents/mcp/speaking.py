"""A few words of a model, without an agent."""

import msgspec

from atlas_agents.core.events import Usage
from atlas_agents.core.messages import Message
from atlas_agents.providers.base import DoneChunk, Request, TextChunk, complete
from atlas_agents.providers.failover import Route


class Spoken(msgspec.Struct, frozen=True):
    """What a model said, which one it was, and the tokens it took."""

    text: str
    model: str
    usage: Usage


async def say(route: Route, messages: list[Message], system: str, most: int) -> Spoken:
    """One reply of a model, without tools; ProviderError if there is none."""
    request = Request(messages=tuple(messages), system=system, max_tokens=most, model=route.model)
    chunks = await complete(route.provider, request)
    text = "".join(chunk.text for chunk in chunks if isinstance(chunk, TextChunk))
    done = next((chunk for chunk in reversed(chunks) if isinstance(chunk, DoneChunk)), DoneChunk())
    return Spoken(text, done.model or route.model or route.provider.id, done.usage)
