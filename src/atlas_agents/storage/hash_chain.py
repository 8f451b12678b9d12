"""Hash chains of the audit log and the journals: changing, removing or moving a row breaks the chain."""

import hashlib
from collections.abc import Iterable

from atlas_agents.core.json import encode
from atlas_agents.core.store import AuditRow, JournalKind, JournalRow

START = ""
"""The hash before the first row."""


def audit_row(seq: int, previous: str, entry: bytes) -> AuditRow:
    """Chain an entry: SHA-256 over the previous hash, the number and the entry, separated by newlines."""
    return AuditRow(seq, entry, previous, hashlib.sha256(f"{previous}\n{seq}\n".encode() + entry).hexdigest())


def journal_row(
    run_id: str, seq: int, kind: JournalKind, key: str, at: int, previous: str, payload: bytes
) -> JournalRow:
    """Chain a step. The hash covers every field of the row, including the run id."""
    head = encode([previous, seq, run_id, kind, key, at])
    digest = hashlib.sha256(head + b"\n" + payload).hexdigest()
    return JournalRow(run_id, seq, kind, key, payload, at, previous, digest)


def find_audit_break(rows: Iterable[AuditRow]) -> int | None:
    """Return the number of the first row that does not follow from the one before it; `rows` start at the first row."""
    previous = START
    for seq, row in enumerate(rows, 1):
        if row != audit_row(seq, previous, row.entry):
            return seq
        previous = row.hash
    return None


def find_journal_break(rows: Iterable[JournalRow]) -> int | None:
    """Return the number of the first row of a journal that does not follow from the one before it."""
    previous = START
    for seq, row in enumerate(rows, 1):
        if row != journal_row(row.run_id, seq, row.kind, row.key, row.at, previous, row.payload):
            return seq
        previous = row.hash
    return None
