"""What an MCP client is offered besides the tools and the agents: prompts, and whatever can be read."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from atlas_agents.engine.agent import Agent
from atlas_agents.workspace.prompts import Prompt


class Readable(msgspec.Struct, frozen=True):
    """Something that can be read by its address."""

    uri: str
    name: str
    description: str = ""
    media_type: str = "text/plain"
    size: int | None = None


class Reader(msgspec.Struct, frozen=True):
    """Who reads: a token's owner, with the rights of an agent."""

    agent: Agent
    user: str


class Library(Protocol):
    """Knows what a reader may read."""

    async def list(self, reader: Reader, cursor: str = "") -> tuple[Sequence[Readable], str]:
        """Some of it, and where to go on; nothing if that was all."""
        ...

    async def read(self, uri: str, reader: Reader) -> tuple[str, str]:
        """The text and its media type; a ConfigError if there is none that this reader may read."""
        ...


class Offers:
    """Filled in by whoever makes the gateway, before it runs."""

    def __init__(self) -> None:
        self.prompts: Callable[[], Sequence[Prompt]] = tuple
        self.library: Library | None = None
