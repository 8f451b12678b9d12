"""Conversations that were read before, so that a turn reads only what is new in them, however long they are.

What is kept is never believed. A session's messages are only ever added to, or gone with their session; so each read
asks the store, in one statement, for what follows the last message that is known, for that message again, and for when
the session was made. If that does not fit, everything is read.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from atlas_agents.core.store import StoredMessage
from atlas_agents.stores import statements as sql
from atlas_agents.stores.query import Query, Row, query

Fetch: TypeAlias = Callable[[Query], Awaitable[list[Row]]]
Rows: TypeAlias = tuple[StoredMessage, ...]
_ROW = 300
"""Bytes that a message takes besides its body, about."""


class SharedCopies(Protocol):
    """What other processes have read, where they share it."""

    async def open(self, seal: Callable[[], Awaitable[bytes]]) -> None: ...

    async def close(self) -> None: ...

    async def get(self, tenant: str, session: str, created_at: int) -> Rows:
        """From the first message on, as far as it is known; nothing, if nothing can be told."""
        ...

    def put(self, tenant: str, session: str, created_at: int, rows: Rows, known: int) -> None:
        """Share what comes after the first `known` messages, some time soon."""
        ...

    def drop(self, tenant: str, session: str) -> None: ...


class _Kept(msgspec.Struct, frozen=True):
    created_at: int
    rows: Rows
    size: int


class Histories:
    """Those that were read last, up to `most` bytes of them."""

    def __init__(self, shared: SharedCopies | None = None, *, most: int = 64 << 20) -> None:
        self.shared = shared
        self._most = most
        self._size = 0
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()

    async def read(self, fetch: Fetch, tenant: str, session: str) -> list[StoredMessage]:
        """All messages of a session, as they are in the store now."""
        kept = self._kept.get((tenant, session))
        if kept is None and self.shared is not None:
            kept = await self._from_others(self.shared, fetch, tenant, session)
        known = kept.rows if kept is not None else ()
        created_at, found = await _since(fetch, tenant, session, known[-1].seq if known else 0)
        if known and (kept is None or kept.created_at != created_at or found[:1] != known[-1:]):
            known = ()
            created_at, found = await _since(fetch, tenant, session, 0)
        rows = (*known, *found[1:]) if known else found
        if created_at is None:
            self.forget(tenant, session)
        else:
            self._keep((tenant, session), _Kept(created_at, rows, _size(rows)))
            if self.shared is not None and len(rows) > len(known):
                self.shared.put(tenant, session, created_at, rows, len(known))
        return list(rows)

    def forget(self, tenant: str, session: str) -> None:
        gone = self._kept.pop((tenant, session), None)
        self._size -= gone.size if gone is not None else 0

    def drop(self, tenant: str, session: str) -> None:
        """The session is gone."""
        self.forget(tenant, session)
        if self.shared is not None:
            self.shared.drop(tenant, session)

    async def _from_others(self, shared: SharedCopies, fetch: Fetch, tenant: str, session: str) -> _Kept | None:
        begun = await fetch(query(tenant, sql.BEGUN, session=session))
        if not begun or not begun[0][1]:
            return None
        created_at: int = begun[0][0]
        return _Kept(created_at, await shared.get(tenant, session, created_at), 0)

    def _keep(self, key: tuple[str, str], kept: _Kept) -> None:
        self.forget(*key)
        if kept.size > self._most:
            return
        self._kept[key] = kept
        self._size += kept.size
        while self._size > self._most:
            _, gone = self._kept.popitem(last=False)
            self._size -= gone.size


async def _since(fetch: Fetch, tenant: str, session: str, seq: int) -> tuple[int | None, Rows]:
    """When the session was made, and its messages from this number on; None if there is no such session."""
    found = await fetch(query(tenant, sql.HISTORY, session=session, since=seq))
    rows = (StoredMessage(session, row[1], row[2], row[3], row[4]) for row in found if row[1] is not None)
    return (found[0][0] if found else None), tuple(rows)


def _size(rows: Sequence[StoredMessage]) -> int:
    return sum(len(row.body) + _ROW for row in rows)
