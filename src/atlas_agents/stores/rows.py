"""Rows as the database gives them, turned into the values of the port."""

from typing import Any

import msgspec

from atlas_agents.core.jobs import JobRow
from atlas_agents.core.store import (
    ApprovalRow,
    AuditRow,
    EventRow,
    JournalRow,
    RunRow,
    Session,
    StoredMessage,
    UsageRow,
)
from atlas_agents.stores.query import Row

_metadata = msgspec.json.Decoder(dict[str, Any])
_chain = msgspec.json.Decoder(tuple[str, ...])


def session_of(row: Row) -> Session:
    """Its columns stand in the order of the struct, here and below."""
    key, agent_id, label, archived, metadata, created_at, updated_at = row
    return Session(key, agent_id, label, bool(archived), _metadata.decode(metadata), created_at, updated_at)


def message_of(row: Row) -> StoredMessage:
    return StoredMessage(*row)


def run_of(row: Row) -> RunRow:
    return RunRow(*row[:-1], stop=bool(row[-1]))


def journal_of(row: Row) -> JournalRow:
    return JournalRow(*row)


def audit_of(row: Row) -> AuditRow:
    """An entry that is text was changed by hand: it is read all the same, so that this can be said."""
    seq, entry, previous, hash = row
    return AuditRow(seq, entry.encode() if isinstance(entry, str) else entry, previous, hash)


def approval_of(row: Row) -> ApprovalRow:
    return ApprovalRow(*row)


def event_of(row: Row) -> EventRow:
    return EventRow(*row)


def usage_of(row: Row) -> UsageRow:
    return UsageRow(*row)


def job_of(row: Row) -> JobRow:
    values = list(row)
    values[9], values[22] = _chain.decode(row[9]), bool(row[22])
    return JobRow(*values)
