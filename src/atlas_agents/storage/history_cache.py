"""Read-through cache of conversation histories: a turn reads only the messages that are new.

Cached rows are always verified. Messages of a session are only appended, or deleted with their session; so each read
asks the database, in one statement, for the messages after the last cached one, for that message itself, and for the
creation time of the session. If the last two differ from the cache, the whole history is read.
"""

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import msgspec

from atlas_agents.core.errors import Conflict
from atlas_agents.core.store import PutRecord, Store, StoredMessage
from atlas_agents.storage.sql import statements as sql
from atlas_agents.storage.sql import tables
from atlas_agents.storage.sql.tables import Query, Row, bind

Fetch: TypeAlias = Callable[[Query], Awaitable[list[Row]]]
Rows: TypeAlias = tuple[StoredMessage, ...]
_ROW_SIZE = 300
"""Approximate size in bytes of a message besides its body."""
_SHARED_TENANT = "default"
"""Tenant of the secret: there is one for the whole database, whichever tenant a cached history belongs to."""


class SharedCache(Protocol):
    """Histories shared with other processes. Entries are authenticated with a secret that only these processes know."""

    async def open(self, secret: Callable[[], Awaitable[bytes]]) -> None: ...

    async def close(self) -> None: ...

    async def get(self, tenant: str, session: str, created_at: int) -> Rows:
        """Return the cached messages from the first one on; empty if there are none or the cache is unavailable."""
        ...

    def put(self, tenant: str, session: str, created_at: int, rows: Rows, cached: int) -> None:
        """Store the messages after the first `cached` ones, in the background."""
        ...

    def drop(self, tenant: str, session: str) -> None: ...


class _Entry(msgspec.Struct, frozen=True):
    """The messages of a session and their approximate size, 0 if it has not been summed."""

    created_at: int
    rows: Rows
    size: int


class HistoryCache:
    """LRU cache of up to `max_bytes` bytes, with an optional shared cache behind it."""

    def __init__(self, shared: SharedCache | None = None, *, max_bytes: int = 64 << 20) -> None:
        self.shared = shared
        self._max_bytes = max_bytes
        self._size = 0
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()

    async def read(self, fetch: Fetch, tenant: str, session: str) -> list[StoredMessage]:
        """Return all messages of a session, as they are in the database now."""
        entry = self._entries.get((tenant, session))
        if entry is None and self.shared is not None:
            entry = await self._read_shared(self.shared, fetch, tenant, session)
        cached = entry.rows if entry is not None else ()
        created_at, found = await _read_since(fetch, tenant, session, cached[-1].seq if cached else 0)
        if cached and (entry is None or entry.created_at != created_at or found[:1] != cached[-1:]):
            cached = ()
            created_at, found = await _read_since(fetch, tenant, session, 0)
        rows = (*cached, *found[1:]) if cached else found
        if created_at is None:
            self.evict(tenant, session)
        else:
            known = entry.size if entry is not None and cached else 0
            added = rows[len(cached) :] if known else rows
            size = known + sum([len(row.body) + _ROW_SIZE for row in added])
            self._put((tenant, session), _Entry(created_at, rows, size))
            if self.shared is not None and len(rows) > len(cached):
                self.shared.put(tenant, session, created_at, rows, len(cached))
        return list(rows)

    def evict(self, tenant: str, session: str) -> None:
        """Remove a session from this process's cache."""
        entry = self._entries.pop((tenant, session), None)
        self._size -= entry.size if entry is not None else 0

    def drop(self, tenant: str, session: str) -> None:
        """Remove a deleted session from both caches."""
        self.evict(tenant, session)
        if self.shared is not None:
            self.shared.drop(tenant, session)

    async def _read_shared(self, shared: SharedCache, fetch: Fetch, tenant: str, session: str) -> _Entry | None:
        for created_at, last_message in await fetch(bind(tenant, sql.HISTORY_STATE, session=session)):
            if last_message:
                return _Entry(created_at, await shared.get(tenant, session, created_at), 0)
        return None

    def _put(self, key: tuple[str, str], entry: _Entry) -> None:
        self.evict(*key)
        if entry.size > self._max_bytes:
            return
        self._entries[key] = entry
        self._size += entry.size
        while self._size > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._size -= oldest.size


async def load_shared_secret(store: Store) -> bytes:
    """Return the secret that authenticates entries of the shared cache; the first caller creates and stores it."""
    while True:
        found = await store.record(_SHARED_TENANT, "seal", "copies")
        if found is not None:
            return bytes.fromhex(found.body.decode().strip('"'))
        new = PutRecord("seal", "copies", f'"{secrets.token_hex(32)}"'.encode(), version=0)
        try:
            await store.commit(_SHARED_TENANT, [new])
        except Conflict:  # another process was faster
            continue


async def _read_since(fetch: Fetch, tenant: str, session: str, seq: int) -> tuple[int | None, Rows]:
    """Return the creation time of a session and its messages from a number on; None if it does not exist."""
    found = await fetch(bind(tenant, sql.HISTORY, session=session, since=seq))
    columns = [row[1:] for row in found if row[1] is not None]  # a session without messages gives one row of NULLs
    return (found[-1][0] if found else None), tuple(await tables.MESSAGES.decode_all(columns))
