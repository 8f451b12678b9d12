"""Who hears a session, and in which words."""

from collections.abc import Coroutine
from typing import Any, Protocol

import msgspec

from atlas_agents.gateway.protocol.events import full, plain
from atlas_agents.gateway.runlog import Entry
from atlas_agents.gateway.tokens import Grant

_encoder = msgspec.json.Encoder()


class Listener(Protocol):
    """A connection, as far as a channel knows one."""

    full: bool

    @property
    def who(self) -> Grant: ...

    def put(self, frame: bytes) -> bool: ...

    async def room(self) -> bool: ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None: ...


class Channel:
    """One session's listeners. Those that are `behind` in a run are fed from its log, and hear nothing live of it."""

    __slots__ = ("_keys", "behind", "listeners", "session")

    def __init__(self, session: str) -> None:
        self.session = session
        self.listeners: set[Listener] = set()
        self.behind: dict[tuple[Listener, str], object] = {}
        self._keys: dict[str, bytes] = {}

    def tell(self, run_id: str, entries: list[Entry]) -> None:
        """Send events of a run to all who are up to date; each frame is made once."""
        behind = self.behind
        for entry in entries:
            made: dict[str | None, bytes | None] = {}
            for listener in list(self.listeners):
                if behind and (listener, run_id) in behind:
                    continue
                way = listener.who.prefix if listener.full else None
                if way not in made:
                    made[way] = self.frame(entry, listener)
                frame = made[way]
                if frame is not None:
                    listener.put(frame)

    def frame(self, entry: Entry, listener: Listener) -> bytes | None:
        """An event as this listener sees it; None if it does not."""
        if not listener.full:
            return plain(entry.name, entry.body)
        prefix = listener.who.prefix
        key = self._keys.get(prefix)
        if key is None:
            key = self._keys[prefix] = _encoder.encode(self.session.removeprefix(prefix))
        return full(entry.body, key, entry.seq)
