"""One line per call, whatever came of it: redacted, numbered, and chained by hashes so that a change shows."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from atlas_agents.core.errors import DailyLimitExceeded
from atlas_agents.core.json import encode
from atlas_agents.core.store import AddAudit, AuditRow, Release, Reserve, Store
from atlas_agents.tools.policy import Actor, Policy

FIRST = ""
"""The hash before the first row."""
MAX_RESULT = 1000
MAX_NOTES, MAX_NOTE = 20, 200


class AuditEntry(msgspec.Struct, frozen=True, rename="camel"):
    """What is to be written down about one call."""

    tenant_id: str
    actor_external_id: str
    entity_id: str
    level: Literal["info", "warn", "error"]
    message: str
    success: bool
    meta: dict[str, Any]
    timestamp: int
    actor_type: str = "agent"
    action: str = "TOOL_CALL"
    entity_type: str = "tool"


class AuditRecord(msgspec.Struct, frozen=True, rename="camel"):
    """An entry in its place: `hash` covers the entry, its number and the hash before it."""

    seq: int
    entry: AuditEntry
    previous: str
    hash: str


class AuditLog(Protocol):
    """Keeps entries in order. What it cannot keep, it raises: a call that cannot be written down is not made."""

    async def ready(self) -> None:
        """Raise if nothing could be written now."""
        ...

    async def append(self, entry: AuditEntry) -> AuditRecord:
        """Write an entry and return its row in the chain."""
        ...

    async def records(self, tenant: str) -> Sequence[AuditRecord]:
        """Return all rows of a tenant, oldest first."""
        ...


class MemoryAudit:
    """An audit log in memory, a chain for each tenant."""

    def __init__(self) -> None:
        self._chains: dict[str, list[AuditRecord]] = {}

    async def ready(self) -> None:
        """Do nothing: memory can always be written."""
        return

    async def append(self, entry: AuditEntry) -> AuditRecord:
        """Add an entry to the chain of its tenant."""
        chain = self._chains.setdefault(entry.tenant_id, [])
        previous = chain[-1].hash if chain else FIRST
        record = AuditRecord(len(chain) + 1, entry, previous, digest(len(chain) + 1, entry, previous))
        chain.append(record)
        return record

    async def records(self, tenant: str = "default") -> Sequence[AuditRecord]:
        """Return all rows of a tenant, oldest first."""
        return tuple(self._chains.get(tenant, ()))


def digest(seq: int, entry: AuditEntry, previous: str) -> str:
    return hashlib.sha256(f"{previous}\n{seq}\n".encode() + encode(entry)).hexdigest()


def verify(records: Iterable[AuditRecord]) -> str | None:
    """None if the chain is whole; else a sentence that names the first row that was changed or is missing."""
    previous, expected = FIRST, 1
    for record in records:
        if record.seq != expected:
            return f"row {expected} is missing: row {record.seq} stands in its place"
        if record.previous != previous:
            return f"row {record.seq} does not follow the row before it: one of them was replaced"
        if digest(record.seq, record.entry, record.previous) != record.hash:
            return f"row {record.seq} was changed after it was written"
        previous, expected = record.hash, expected + 1
    return None


class PolicyChange(msgspec.Struct, frozen=True):
    """A recorded call that another policy would have judged otherwise."""

    seq: int
    tool: str
    agent_id: str
    before: str
    after: str
    rule: str


def what_if(records: Iterable[AuditRecord], policy: Policy) -> list[PolicyChange]:
    """Run another matrix over what was recorded, and list the calls whose verdict would change."""
    changes: list[PolicyChange] = []
    for record in records:
        entry, meta = record.entry, record.entry.meta
        if meta.get("verdict") is None:  # it never came to a verdict: unknown, or cancelled before
            continue
        actor = Actor(entry.actor_external_id, meta.get("role", ""), meta.get("user", ""), entry.tenant_id)
        after = policy.verdict(entry.entity_id, actor, needs=meta.get("needs", ()), acts=meta.get("acts", True))
        before = str(meta["verdict"])
        if after.cell != before:
            changes.append(PolicyChange(record.seq, entry.entity_id, actor.agent_id, before, after.cell, after.rule))
    return changes


_entries = msgspec.json.Decoder(AuditEntry)


class StoreAudit:
    """Rows of a store, chained by it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def ready(self) -> None:
        return

    async def append(self, entry: AuditEntry) -> AuditRecord:
        (row,) = await self._store.commit(entry.tenant_id, [AddAudit(encode(entry))])
        return _record(row)

    async def records(self, tenant: str = "default") -> Sequence[AuditRecord]:
        return [_record(row) for row in await self._store.audit(tenant)]


class StoreCounter:
    """A day's calls, exact over processes and restarts."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def reserve(self, tenant: str, agent_id: str, day: str, limit: int) -> bool:
        try:
            await self._store.commit(tenant, [Reserve(agent_id, day, limit)])
        except DailyLimitExceeded:
            return False
        return True

    async def release(self, tenant: str, agent_id: str, day: str) -> None:
        await self._store.commit(tenant, [Release(agent_id, day)])


def _record(row: AuditRow) -> AuditRecord:
    return AuditRecord(row.seq, _entries.decode(row.entry), row.previous, row.hash)
