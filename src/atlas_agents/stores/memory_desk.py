"""All that one tenant has in memory, with a way back: what a failing commit has changed is undone.

What belongs to a session or a run hangs together, so that no write looks at what belongs to another.
"""

from typing import Any, TypeVar

import msgspec

from atlas_agents.core.jobs import JobRow
from atlas_agents.core.records import Record
from atlas_agents.core.shelves import Document, PassageRow
from atlas_agents.core.store import (
    OPEN,
    ApprovalRow,
    AuditRow,
    EventRow,
    JournalRow,
    RunRow,
    Session,
    StoredMessage,
    UsageRow,
)
from atlas_agents.stores.query import Place
from atlas_agents.stores.refusals import check_owner, no_run, no_session

K = TypeVar("K")
V = TypeVar("V")
L = TypeVar("L")
_ABSENT = object()


class KeptPassage(msgspec.Struct, frozen=True):
    """A passage with what the port does not give back of it."""

    kind: str
    row: PassageRow
    model: str
    vector: bytes


class Desk:
    """Rows are frozen, so putting the old ones back is a way back."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.messages: dict[str, dict[int, StoredMessage]] = {}
        self.message_ids: dict[str, dict[str, int]] = {}
        self.accepted: dict[str, dict[str, str]] = {}
        self.runs: dict[str, RunRow] = {}
        self.runs_of: dict[str, dict[str, None]] = {}
        self.open_of: dict[str, tuple[str, ...]] = {}
        self.journal: dict[str, dict[int, JournalRow]] = {}
        self.journal_keys: dict[str, dict[tuple[str, str], int]] = {}
        self.events: dict[str, dict[int, EventRow]] = {}
        self.said_at: dict[str, int] = {}
        self.audit: dict[int, AuditRow] = {}
        self.approvals: dict[str, ApprovalRow] = {}
        self.approvals_of: dict[str, dict[str, None]] = {}
        self.pending_of: dict[str, dict[str, None]] = {}
        self.granting: dict[str, dict[str, None]] = {}
        self.counters: dict[tuple[str, str], int] = {}
        self.usage: dict[tuple[str, ...], UsageRow] = {}
        self.documents: dict[tuple[str, str], Document] = {}
        self.passages: dict[int, KeptPassage] = {}
        self.passages_of: dict[tuple[str, str], dict[int, None]] = {}
        self.libraries: dict[tuple[str, str], tuple[int, int]] = {}
        self._last_passage = 0
        self.jobs: dict[str, JobRow] = {}
        self.records: dict[tuple[str, str], Record] = {}
        self._latest = 0
        self._undone: list[tuple[dict[Any, Any], Any, Any]] = []

    def put(self, table: dict[K, V], key: K, value: V) -> V:
        self._undone.append((table, key, table.get(key, _ABSENT)))
        table[key] = value
        return value

    def put_in(self, tables: dict[L, dict[K, V]], name: L, key: K, value: V) -> V:
        """Put it into one of several tables, which is made if it is missing."""
        table = tables.get(name)
        if table is None:
            table = self.put(tables, name, {})
        return self.put(table, key, value)

    def remove(self, table: dict[K, Any], key: K) -> None:
        """If undone it comes back, though as the last one of its table."""
        if key in table:
            self._undone.append((table, key, table.pop(key)))

    def keep(self) -> None:
        """The commit is done: there is no way back any more."""
        self._undone.clear()

    def undo(self) -> None:
        while self._undone:
            table, key, old = self._undone.pop()
            if old is _ABSENT:
                del table[key]
            else:
                table[key] = old

    def touch(self, place: Place, key: str) -> int:
        """When it changes now: later than every other change, whatever the clock says."""
        if key not in self.sessions:
            raise no_session(key)
        changed = self.tick(place)
        self.put(self.sessions, key, msgspec.structs.replace(self.sessions[key], updated_at=changed))
        return changed

    def tick(self, place: Place) -> int:
        self._latest = place.now if place.now > self._latest else self._latest + 1
        return self._latest

    def next_passage(self) -> int:
        """A number that no passage has had; one that was undone is not given again either."""
        self._last_passage += 1
        return self._last_passage

    def known(self, run_id: str) -> RunRow:
        if run_id not in self.runs:
            raise no_run(run_id)
        return self.runs[run_id]

    def owned(self, run_id: str, epoch: int) -> RunRow:
        run = self.known(run_id)
        check_owner(run.id, run.status, run.epoch, epoch)
        return run

    def put_run(self, run: RunRow) -> RunRow:
        """Keep a run, and its place among the open ones of its session."""
        before = self.open_of.get(run.session, ())
        after = before if run.id in before else (*before, run.id)
        if run.status not in OPEN:
            after = tuple(id for id in before if id != run.id)
        if not after:
            self.remove(self.open_of, run.session)
        elif after is not before:
            self.put(self.open_of, run.session, after)
        return self.put(self.runs, run.id, run)

    def is_active(self, session: str) -> bool:
        """Whether one of its runs is running or waiting for an answer."""
        return any(self.runs[id].status != "queued" for id in self.open_of.get(session, ()))

    def drop_run(self, run_id: str) -> None:
        for table in (self.runs, self.journal, self.journal_keys, self.events, self.said_at):
            self.remove(table, run_id)

    def put_approval(self, asked: ApprovalRow) -> ApprovalRow:
        """Keep a question among those that wait, or among those that allow something for longer."""
        if asked.answer is None:
            self.put_in(self.pending_of, asked.run_id, asked.id, None)
        else:
            self.remove(self.pending_of.get(asked.run_id, {}), asked.id)
            if asked.grants:
                self.put_in(self.granting, asked.grants, asked.id, None)
        return self.put(self.approvals, asked.id, asked)

    def drop_approval(self, id: str) -> None:
        asked = self.approvals[id]
        self.remove(self.pending_of.get(asked.run_id, {}), id)
        self.remove(self.granting.get(asked.grants, {}), id)
        self.remove(self.approvals, id)
