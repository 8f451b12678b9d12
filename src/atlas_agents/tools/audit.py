"""Audit log: one redacted, numbered row per tool call, in a hash chain that reveals changes."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

import msgspec

from atlas_agents.core.errors import DailyLimitExceeded
from atlas_agents.core.json import encode
from atlas_agents.core.store import AddAudit, AuditRow, Release, Reserve, Store, audit_hash, describe_broken_row
from atlas_agents.tools.policy import Actor, Policy

_START = ""
"""The previous hash of the first row."""
TOOL_CALL = "TOOL_CALL"
"""The action of rows about tool calls."""
MAX_RESULT = 1000
MAX_NOTES, MAX_NOTE = 20, 200


class AuditEntry(msgspec.Struct, frozen=True, rename="camel"):
    """The audit data of one call."""

    tenant_id: str
    actor_external_id: str
    entity_id: str
    level: Literal["info", "warn", "error"]
    message: str
    success: bool
    meta: dict[str, Any]
    timestamp: int
    actor_type: str = "agent"
    action: str = TOOL_CALL
    entity_type: str = "tool"


class AuditRecord(msgspec.Struct, frozen=True, rename="camel"):
    """An entry in the chain: `hash` covers the entry, its number and the previous hash."""

    seq: int
    entry: AuditEntry
    previous: str
    hash: str


class AuditLog(Protocol):
    """Port for audit logs. An entry that cannot be stored raises: a call that cannot be audited is not made."""

    async def ready(self) -> None:
        """Raise if an entry could not be written now."""
        ...

    async def append(self, entry: AuditEntry) -> AuditRecord:
        """Append an entry to its tenant's chain and return its row."""
        ...

    async def records(self, tenant: str) -> Sequence[AuditRecord]:
        """Return all rows of a tenant, oldest first."""
        ...


class MemoryAudit:
    """Audit log in memory, with one chain per tenant."""

    def __init__(self) -> None:
        self._chains: dict[str, list[AuditRecord]] = {}

    async def ready(self) -> None:
        """Do nothing: memory can always be written."""
        return

    async def append(self, entry: AuditEntry) -> AuditRecord:
        """Append an entry to its tenant's chain."""
        chain = self._chains.setdefault(entry.tenant_id, [])
        previous = chain[-1].hash if chain else _START
        record = AuditRecord(len(chain) + 1, entry, previous, audit_hash(len(chain) + 1, previous, encode(entry)))
        chain.append(record)
        return record

    async def records(self, tenant: str = "default") -> Sequence[AuditRecord]:
        """Return all rows of a tenant, oldest first."""
        return tuple(self._chains.get(tenant, ()))


def verify(records: Iterable[AuditRecord], key: str | None = None) -> str | None:
    """Verify a chain from its first row; return None if it is intact, else a description of the first broken row.

    `key` is the key of rows that are signed. The rows do not show whether others are missing at the end: for a
    store with an `AuditSigner`, use `verify_audit` of the store.
    """
    previous, is_signed = _START, False
    for seq, record in enumerate(records, 1):
        if is_signed and not record.hash.startswith("hmac:"):
            return f"row {seq} is not signed, but rows before it were: the log was rewritten without the key"
        is_signed = record.hash.startswith("hmac:")
        if is_signed and key is None:
            return f"row {seq} is signed: pass the key of the audit log"
        row_key = key.encode() if key is not None and is_signed else None
        expected = audit_hash(seq, previous, encode(record.entry), row_key)
        if record != AuditRecord(seq, record.entry, previous, expected):
            return describe_broken_row(record, seq, previous)
        previous = record.hash
    return None


class PolicyChange(msgspec.Struct, frozen=True):
    """A recorded call for which another policy would give another verdict."""

    seq: int
    tool: str
    agent_id: str
    before: str
    after: str
    rule: str


def what_if(records: Iterable[AuditRecord], policy: Policy) -> list[PolicyChange]:
    """Apply another policy to recorded calls and return those whose verdict would change."""
    changes: list[PolicyChange] = []
    for record in records:
        entry, meta = record.entry, record.entry.meta
        if meta.get("verdict") is None:  # unknown tool, or cancelled before the policy was checked
            continue
        actor = Actor(entry.actor_external_id, meta.get("role", ""), meta.get("user", ""), entry.tenant_id)
        after = policy.verdict(entry.entity_id, actor, needs=meta.get("needs", ()), acts=meta.get("acts", True))
        before = str(meta["verdict"])
        if after.cell != before:
            changes.append(PolicyChange(record.seq, entry.entity_id, actor.agent_id, before, after.cell, after.rule))
    return changes


_entries = msgspec.json.Decoder(AuditEntry)


class StoreAudit:
    """Audit log in a store, which chains the rows."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def ready(self) -> None:
        return

    async def append(self, entry: AuditEntry) -> AuditRecord:
        (row,) = await self._store.commit(entry.tenant_id, [AddAudit(encode(entry))])
        return _record(row)

    async def records(
        self, tenant: str = "default", *, after: int = 0, limit: int | None = None
    ) -> Sequence[AuditRecord]:
        return [_record(row) for row in await self._store.audit(tenant, after=after, limit=limit)]


class StoreCounter:
    """Daily counts in a store, exact across processes and restarts."""

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
