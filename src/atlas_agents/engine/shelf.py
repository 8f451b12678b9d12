"""Conversations at hand: those in use, and the latest of the others."""

import weakref
from collections import OrderedDict

from atlas_agents.core.conversation import Conversation


class Shelf:
    """Holds all of them, or the `most` that were used last: a store has the rest."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._held: OrderedDict[str, Conversation] = OrderedDict()
        self._used: weakref.WeakValueDictionary[str, Conversation] = weakref.WeakValueDictionary()

    def take(self, session: str) -> Conversation:
        """One that somebody still holds is the same object, also when it has left the shelf."""
        found = self._used.get(session)
        if found is None:
            found = self._used[session] = Conversation(id=session)
        self._held[session] = found
        self._held.move_to_end(session)
        if self._most is not None and len(self._held) > self._most:
            self._held.popitem(last=False)
        return found

    def drop(self, session: str) -> None:
        """There is no such conversation any more: the next of that name begins anew."""
        self._held.pop(session, None)
        self._used.pop(session, None)
