"""The audit log and the day's counts in a store."""

from collections.abc import Sequence

import msgspec

from atlas_agents.core.errors import LimitSpent
from atlas_agents.core.json import encode
from atlas_agents.core.store import AddAudit, AuditRow, Release, Reserve, Store
from atlas_agents.tools.audit import Entry, Record

_entries = msgspec.json.Decoder(Entry)


class StoreAudit:
    """Rows of a store, chained by it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def ready(self) -> None:
        return

    async def append(self, entry: Entry) -> Record:
        (row,) = await self._store.commit(entry.tenant_id, [AddAudit(encode(entry))])
        return _record(row)

    async def records(self, tenant: str = "default") -> Sequence[Record]:
        return [_record(row) for row in await self._store.audit(tenant)]


class StoreCounter:
    """A day's calls, exact over processes and restarts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def reserve(self, tenant: str, agent_id: str, day: str, limit: int) -> bool:
        try:
            await self._store.commit(tenant, [Reserve(agent_id, day, limit)])
        except LimitSpent:
            return False
        return True

    async def release(self, tenant: str, agent_id: str, day: str) -> None:
        await self._store.commit(tenant, [Release(agent_id, day)])


def _record(row: AuditRow) -> Record:
    return Record(row.seq, _entries.decode(row.entry), row.previous, row.hash)
