"""Database of one case: a SQLite file or a Postgres schema, and its rows afterwards.

The rows are read with plain SQL, independent of the store under test, and then decompressed.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from atlas_agents.core.aio import Clock
from atlas_agents.core.store import AuditRow, JournalKind, JournalRow, RunStatus, Store
from atlas_agents.storage.sql.tables import run_key, unpack_hash, unpack_steps, unpack_value
from atlas_agents.storage.sqlite.files import OpenOptions, open_writer
from crash.faulty_store import FaultyStore

Rows: TypeAlias = Sequence[Sequence[Any]]
QUERIES = (
    "SELECT id, session, status, epoch, idempotency_key, error, agent_id FROM runs ORDER BY session, place",
    "SELECT run_id, seq, kind, key, payload, at, coalesce(lag(hash) OVER (PARTITION BY run_id ORDER BY seq), ''), hash"
    " FROM journal ORDER BY run_id, seq",
    "SELECT session, seq, id, run_id, body FROM messages ORDER BY session, seq",
    "SELECT seq, entry, previous, hash FROM audit ORDER BY seq",
    "SELECT id, run_id, call_id, question, answer, expires_at, answered_at FROM approvals ORDER BY id",
    "SELECT agent_id, day, used FROM counters ORDER BY agent_id, day",
    "SELECT session, input_tokens, output_tokens, turns FROM usage_sums ORDER BY session, day, model",
    "SELECT key, run_id, tokens, requests, tool_calls FROM budgets ORDER BY key, period, run_id",
    "SELECT id, seq, agent_id, task, session, state, asker_run, asker_call, asker_session, attempts, result, notified"
    " FROM jobs ORDER BY seq",
)


class RunRecord(msgspec.Struct, frozen=True):
    """A row of `runs`."""

    id: str
    session: str
    status: RunStatus
    epoch: int
    key: str
    error: str | None
    agent: str


class JobRecord(msgspec.Struct, frozen=True):
    """A row of `jobs`."""

    id: str
    seq: int
    agent: str
    task: str
    session: str
    state: str
    asker_run: str
    asker_call: str
    asker_session: str
    attempts: int
    result: str | None
    notified: bool | int


class MessageRecord(msgspec.Struct, frozen=True):
    """A row of `messages`."""

    session: str
    seq: int
    id: str
    run: str
    body: bytes


class ApprovalRecord(msgspec.Struct, frozen=True):
    """A row of `approvals`; question and answer are JSON."""

    id: str
    run: str
    call: str
    question: bytes
    answer: bytes | None
    expires_at: int
    answered_at: int | None


class Tables(msgspec.Struct, frozen=True):
    """All rows of the tables that concern turns."""

    runs: list[RunRecord]
    journal: list[JournalRow]
    messages: list[MessageRecord]
    audit: list[AuditRow]
    approvals: list[ApprovalRecord]
    counters: list[tuple[str, str, int]]
    usage: list[tuple[str, int, int, int]]
    budgets: list[tuple[str, str, int, int, int]]
    jobs: list[JobRecord]


class Database(Protocol):
    """The database of a case."""

    def store(self, clock: Clock) -> Store: ...

    def rows(self) -> Tables: ...


class SqliteDatabase:
    """A SQLite file."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "atlas.db"

    def store(self, clock: Clock) -> Store:
        return FaultyStore(self.path, clock=clock)

    def rows(self) -> Tables:
        with closing(sqlite3.connect(self.path)) as database:
            try:
                return tables([database.execute(query).fetchall() for query in QUERIES])
            except sqlite3.OperationalError:  # killed before the first table was created
                return tables([()] * len(QUERIES))


def make(path: Path) -> None:
    """Create a database with empty tables, without starting a thread."""
    open_writer(OpenOptions(path, must_exist=False, max_pages=None, busy_timeout=5.0)).close()


def tables(found: Sequence[Rows]) -> Tables:
    runs, journal, messages, audit, approvals, counters, usage, budgets, jobs = found
    ids = {run_key(row[0]): row[0] for row in runs}
    return Tables(
        [RunRecord(*row) for row in runs],
        unpack_steps([_step(ids.get(row[0], row[0]), *row[1:]) for row in journal]),
        [MessageRecord(row[0], row[1], row[2], row[3], unpack_value(bytes(row[4]))) for row in messages],
        [AuditRow(row[0], bytes(row[1]), row[2], row[3]) for row in audit],
        [_approval(*row) for row in approvals],
        [(row[0], row[1], row[2]) for row in counters],
        [(row[0], row[1], row[2], row[3]) for row in usage],
        [(row[0], row[1], row[2], row[3], row[4]) for row in budgets],
        [JobRecord(*row) for row in jobs],
    )


def _step(
    run: str, seq: int, kind: JournalKind, key: str, payload: bytes, at: int, previous: str, digest: str
) -> JournalRow:
    hashes = unpack_hash(previous), unpack_hash(digest)
    return JournalRow(run, seq, kind, key, unpack_value(bytes(payload)), at, *hashes)


def _approval(
    id: str, run: str, call: str, question: bytes, answer: bytes | None, expires_at: int, answered_at: int | None
) -> ApprovalRecord:
    return ApprovalRecord(id, run, call, bytes(question), answer and bytes(answer), expires_at, answered_at)
