"""Read-through cache of conversation histories: a turn reads only the messages that are new.

Cached rows are always verified. Messages of a session are only appended, or deleted with their session; so each read
asks the database, in one statement, for the messages after the last cached one, for that message itself, and for the
creation time of the session. If the last two differ from the cache, the whole history is read.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec

from atlas_agents.core.store import StoredMessage
from atlas_agents.storage.sql import statements as sql
from atlas_agents.storage.sql import tables
from atlas_agents.storage.sql.tables import Query, Row, bind

Fetch: TypeAlias = Callable[[Query], Awaitable[list[Row]]]
Rows: TypeAlias = tuple[StoredMessage, ...]
_ROW_SIZE = 300
"""Approximate size in bytes of a message besides its body."""


class _Entry(msgspec.Struct, frozen=True):
    """The messages of a session and their approximate size."""

    created_at: int
    rows: Rows
    size: int


_EMPTY = _Entry(0, (), 0)


class HistoryCache:
    """LRU cache of up to `max_bytes` bytes."""

    def __init__(self, *, max_bytes: int = 64 << 20) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()

    async def read(self, fetch: Fetch, tenant: str, session: str) -> list[StoredMessage]:
        """Return all messages of a session, as they are in the database now."""
        cached = self._entries.get((tenant, session)) or _EMPTY
        last = cached.rows[-1].seq if cached.rows else 0
        created_at, rows = await _read_since(fetch, tenant, session, last)
        if cached.rows and (cached.created_at != created_at or rows[:1] != cached.rows[-1:]):
            cached = _EMPTY
            created_at, rows = await _read_since(fetch, tenant, session, 0)
        if created_at is None:
            self.evict(tenant, session)
            return list(rows)
        added = rows[1:] if cached.rows else rows
        size = cached.size + sum([len(row.body) + _ROW_SIZE for row in added])
        entry = _Entry(created_at, (*cached.rows, *added), size)
        self._put((tenant, session), entry)
        return list(entry.rows)

    def evict(self, tenant: str, session: str) -> None:
        """Remove a session."""
        entry = self._entries.pop((tenant, session), None)
        self._size -= entry.size if entry is not None else 0

    def _put(self, key: tuple[str, str], entry: _Entry) -> None:
        self.evict(*key)
        if entry.size > self._max_bytes:
            return
        self._entries[key] = entry
        self._size += entry.size
        while self._size > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._size -= oldest.size


async def _read_since(fetch: Fetch, tenant: str, session: str, seq: int) -> tuple[int | None, Rows]:
    """Return the creation time of a session and its messages from a number on; None if it does not exist."""
    found = await fetch(bind(tenant, sql.HISTORY, session=session, since=seq))
    columns = [row[1:] for row in found if row[1] is not None]  # a session without messages gives one row of NULLs
    return (found[-1][0] if found else None), tuple(await tables.MESSAGES.decode_all(columns))
