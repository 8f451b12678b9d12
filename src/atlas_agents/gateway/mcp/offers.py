"""What an MCP client is offered besides the tools and the agents: prompts, and whatever can be read."""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from atlas_agents.workspace.prompts import Prompt


class Readable(msgspec.Struct, frozen=True):
    """Something that can be read by its address."""

    uri: str
    name: str
    description: str = ""
    media_type: str = "text/plain"


class Library(Protocol):
    """Knows what a user may read."""

    async def list(self, user: str) -> Sequence[Readable]: ...

    async def read(self, uri: str, user: str) -> str:
        """The text; a ConfigError if there is none that this user may read."""
        ...


class Offers:
    """Filled in by whoever makes the gateway, before it runs."""

    def __init__(self) -> None:
        self.prompts: Callable[[], Sequence[Prompt]] = tuple
        self.library: Library | None = None
