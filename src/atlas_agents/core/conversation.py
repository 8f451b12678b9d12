"""A conversation: messages in order, that can be forked at any of them."""

from collections.abc import Iterable
from typing import Any

from atlas_agents.core.ids import new_id
from atlas_agents.core.messages import Message


class Conversation:
    """An ordered list of messages with a name of its own. Turns append to it; nothing is ever changed in it."""

    __slots__ = ("__weakref__", "id", "messages", "metadata")

    def __init__(
        self, messages: Iterable[Message] = (), *, id: str | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        self.id = id or new_id()
        self.messages = list(messages)
        self.metadata: dict[str, Any] = dict(metadata or {})

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        return f"Conversation({self.id!r}, {len(self.messages)} messages)"

    def fork(self, at: Message | str | None = None) -> "Conversation":
        """A new conversation with all messages up to and with `at` (a message or its id); with none, all of them."""
        if at is None:
            kept = self.messages
        else:
            wanted = at if isinstance(at, str) else at.id
            ends = [place for place, message in enumerate(self.messages) if message.id == wanted]
            if not ends:
                raise KeyError(f"conversation {self.id!r} has no message {wanted!r}")
            kept = self.messages[: ends[0] + 1]
        return Conversation(kept, metadata={**self.metadata, "forked_from": self.id})
