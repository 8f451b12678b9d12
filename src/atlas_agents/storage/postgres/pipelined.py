"""Pipelined writes: a Postgres function that receives a group of commits of turns in one message.

The function (`write_turns.sql`) writes each table once for all commits, and checks what `writes`
checks step by step. If it finds anything unexpected, it fails, and the group is repeated with the steps of `writes`,
which decide and explain. So this module may give up at any time (`NotPipelined`), but must never accept a commit that
the steps would reject.

The transaction shares the lock of its tenant with others of this kind, while the steps hold it exclusively. All rows of
a session, including those of its runs, are written under the advisory lock of the session. Locks are taken in a fixed
order: sessions by the hash of their key, then the audit chain. A lock of a row, and the ON CONFLICT of an INSERT, would
write a further record to the WAL for each row.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from atlas_agents.core import store
from atlas_agents.core.json import encode
from atlas_agents.storage.hash_chain import START, ChainEnds, audit_row, journal_row
from atlas_agents.storage.postgres import statements as sql
from atlas_agents.storage.sql import tables
from atlas_agents.storage.sql.tables import Query, Row, WriteContext, clean_text, pack_bodies, pack_value
from atlas_agents.storage.sql.writes import FIRST_OWNER, MAX_RESERVED_EVENTS, changed_fields, new_run

_MIN_PACKED = 64
"""Minimum size in bytes of events that are compressed."""


class NotPipelined(Exception):
    """The group cannot be written this way: repeat it step by step."""


class WrittenTurns(msgspec.Struct, frozen=True):
    """Result of the function: the last message of each session, the status of each accepted run, epoch and number of
    events of each changed run, the run that each ended run started, and the end of the audit chain."""

    sessions: dict[str, int] = {}
    accepted: dict[str, store.RunStatus] = {}
    runs: dict[str, tuple[int, int]] = {}
    started: dict[str, str] = {}
    chain: tuple[int, str] | None = None


Put: TypeAlias = Callable[[Any], None]
Finisher: TypeAlias = Callable[[WrittenTurns], None]


def is_pipelined(writes: Sequence[store.Write]) -> bool:
    """Return whether all writes of a commit are of the kinds that this module knows."""
    return all(type(write) in _PLANS for write in writes)


def content_size(writes: Sequence[store.Write]) -> int:
    """Return the bytes of messages, steps, events, audit entries and requests in a commit."""
    size = 0
    for write in writes:
        match write:
            case store.AddMessage(body=content) | store.AddJournal(payload=content):
                size += len(content)
            case store.AddAudit(entry=content) | store.AcceptRun(request=content):
                size += len(content)
            case store.AddEvents(events=events):
                size += sum([len(body) for _, body in events])
            case _:
                pass
    return size


def unknown_journals(tenant: str, commits: Sequence[Sequence[store.Write]], journals: ChainEnds) -> Query | None:
    """Return the query for the ends of journals that the commits continue and that are not known yet."""
    writes = [write for commit in commits for write in commit]
    claimed = {write.run_id for write in writes if isinstance(write, store.ClaimRun)}
    steps = [write for write in writes if isinstance(write, store.AddJournal)]
    runs = {step.run_id for step in steps if not (step.epoch == FIRST_OWNER and step.run_id in claimed)}
    unknown = sorted(run_id for run_id in runs if journals.get(tenant, run_id) is None)
    keys = [*map(tables.run_key, unknown)]
    return tables.bind(tenant, sql.JOURNAL_ENDS, run_ids=unknown, run_keys=keys) if unknown else None


class Batch:
    """A group of commits as the argument of the function; after `finish`, `final_queries` follow before the COMMIT."""

    def __init__(
        self, context: WriteContext, commits: Sequence[Sequence[store.Write]], journals: ChainEnds, chain_lock: int
    ) -> None:
        if not context.tenant:
            raise NotPipelined
        self.final_queries: list[Query] = []
        self.is_chained_by_server = False
        """Whether `final_queries` return the end of the audit log, which is not signed."""
        self.results: list[list[Any]] = [[None] * len(writes) for writes in commits]
        self.context = context
        self.rows: dict[str, list[Any]] = {}
        """Rows for the function, by table."""
        self.sessions: dict[str, dict[str, Any]] = {}
        """Changes of sessions, and of runs that stay open, by key and id."""
        self.runs: dict[str, dict[str, Any]] = {}
        self.usage: dict[tuple[str, ...], dict[str, Any]] = {}
        self.events: dict[str, dict[int, bytes]] = {}
        """New events by run and number."""
        self.found: dict[str, store.Session] = {}
        """Current rows of the sessions that were put."""
        self._journals = journals
        self._chain_lock = chain_lock
        self._finishers: list[Finisher] = []
        self._entries: list[tuple[Put, bytes]] = []
        self._steps: dict[str, store.JournalRow] = {}
        self._step_rows: dict[str, list[tuple[store.JournalRow, dict[str, Any]]]] = {}
        """New steps of each run, and their rows for the function."""
        self._step_keys: set[tuple[str, str, str]] = set()
        self._claimed: dict[str, int] = {}
        self._messages: set[tuple[str, str]] = set()
        self._plan(commits)

    def queries(self, token: dict[str, Any]) -> list[Query]:
        """Return the call of the function and, if needed, the query for the sessions that it has put."""
        rows = {name: rows for name, rows in self.rows.items() if rows}
        if self.sessions:
            rows["changed_sessions"] = list(self.sessions.values())
        if self.runs:
            rows["changed_runs"] = list(self.runs.values())
        if self.usage:
            rows["usage"] = list(self.usage.values())
        if self.events:
            rows["events"] = [pack for run_id, events in self.events.items() for pack in _pack_events(run_id, events)]
        chain = {"chain": self._chain_lock} if self._entries and self.context.audit_key else {}
        given = {"tenant": self.context.tenant, "now": self.context.now} | token | rows | self._locks() | chain
        queries = [Query(sql.WRITE_TURNS, {"given": encode(given).decode()})]
        if put := [key for key, session in self.sessions.items() if session["put"]]:
            queries.append(tables.bind(self.context.tenant, sql.SESSIONS_BY_KEY, key=put))
        return queries

    def finish(self, answers: Sequence[list[Row]]) -> None:
        """Read the answers to `queries`, and set `results` and `final_queries`."""
        answer = msgspec.json.decode(answers[0][0][0], type=WrittenTurns)
        sessions = [tables.SESSIONS.decode(row[1:]) for rows in answers[1:] for row in rows]
        self.found = {session.key: session for session in sessions}
        for finisher in self._finishers:
            finisher(answer)
        if self._entries and self.context.audit_key:
            rows = [tables.AUDIT.values(row) for row in self._chain(*(answer.chain or (0, START)))]
            self.final_queries.append(self._bind(sql.ADD_AUDIT_ROWS, rows=encode(rows).decode()))
        elif self._entries:
            entries = encode([entry for _, entry in self._entries]).decode()
            self.is_chained_by_server = True
            self.final_queries.append(self._bind(sql.CHAIN_AUDIT, chain=self._chain_lock, entries=entries))

    def finish_audit(self, answers: Sequence[list[Row]]) -> None:
        """Read the answer to `final_queries` if the server chained the entries: the previous end of the log."""
        for rows in answers:
            for (start,) in rows:
                self._chain(*msgspec.json.decode(start, type=tuple[int, str]))

    def find_audit(self, rows: Sequence[store.AuditRow]) -> None:
        """Find the entries among the last rows of the audit log, after a commit whose answers were lost."""
        entries = [entry for _, entry in self._entries]
        for place in range(len(rows) - len(entries), -1, -1):
            if entries and [row.entry for row in rows[place : place + len(entries)]] == entries:
                self._chain(rows[place].seq - 1, rows[place].previous)
                return

    def note_committed(self) -> None:
        """Remember the ends of the journals; call it once the transaction is committed."""
        tenant = self.context.tenant
        for run_id, epoch in self._claimed.items():
            self._journals.drop(tenant, run_id)
            if epoch == FIRST_OWNER:
                self._journals.put(tenant, run_id, 0, START)
        for run_id, step in self._steps.items():
            self._journals.put(tenant, run_id, step.seq, step.hash)
        for ended in self.rows.get("ended", ()):
            self._journals.drop(tenant, ended["id"])

    def add(self, name: str, row: Any) -> None:
        self.rows.setdefault(name, []).append(row)

    def when_answered(self, finisher: Finisher) -> None:
        self._finishers.append(finisher)

    def session(self, key: str) -> dict[str, Any]:
        """Return the mutable changes of a session."""
        return self.sessions.setdefault(key, {"key": key, "put": False, "runs": 0, "messages": 0, "moves": False})

    def run(self, id: str, epoch: int | None, *, is_open: bool) -> dict[str, Any]:
        """Return the mutable changes of a run. An epoch must be the one after the changes."""
        new = {"id": id, "claims": 0, "epoch": epoch, "reserves": 0, "says": False, "is_open": is_open}
        run = self.runs.setdefault(id, new)
        if None not in (epoch, run["epoch"]) and epoch != run["epoch"]:
            raise NotPipelined
        run["epoch"] = run["epoch"] if epoch is None else epoch
        run["is_open"] = run["is_open"] or is_open
        return run

    def add_step(self, write: store.AddJournal) -> store.JournalRow:
        """Add a step to a journal. The first new step of a run must follow its last one."""
        last = self._steps.get(write.run_id)
        end = (last.seq, last.hash) if last else self._journals.get(self.context.tenant, write.run_id)
        if end is None and write.epoch == FIRST_OWNER and self.runs.get(write.run_id, {}).get("claims"):
            end = 0, START
        step_key = write.run_id, write.kind, write.key
        if end is None or step_key in self._step_keys:
            raise NotPipelined
        self._step_keys.add(step_key)
        seq, previous = end
        step = journal_row(write.run_id, seq + 1, write.kind, write.key, self.context.now, previous, write.payload)
        self._steps[write.run_id] = step
        stored = {"run_key": tables.run_key(write.run_id), "hash": tables.pack_hash(step.hash)}
        checked = {"previous": tables.pack_hash(previous), "epoch": write.epoch, "is_first": last is None, "after": seq}
        self._step_rows.setdefault(write.run_id, []).append((step, tables.JOURNAL.values(step) | stored | checked))
        return step

    def _join_last_steps(self) -> None:
        """Join the last two steps of a run that ends into one row: the last reply is written with the end. No step can
        follow, so only the function has to look for the kind and the key of both."""
        for ended in self.rows.get("ended", ()):
            if len(steps := self._step_rows.get(ended["id"], [])) > 1:
                (first, row), (last, last_row) = steps[-2:]
                if row["epoch"] == last_row["epoch"] and (payload := tables.pack_steps(first, last)) is not None:
                    checked = {name: row[name] for name in ("previous", "is_first", "after")}
                    other = {"other_kind": first.kind, "other_key": first.key}
                    steps[-2:] = [(last, last_row | checked | other | {"payload": payload})]
        if self._step_rows:
            self.rows["steps"] = [row for steps in self._step_rows.values() for _, row in steps]

    def require_new(self, session: str, id: str) -> None:
        """Reject a group that adds a message twice."""
        if (session, id) in self._messages:
            raise NotPipelined
        self._messages.add((session, id))

    def add_entry(self, write: store.AddAudit, put: Put) -> None:
        self._entries.append((put, write.entry))

    def claimed(self, run_id: str, epoch: int) -> None:
        self._claimed[run_id] = epoch

    def _plan(self, commits: Sequence[Sequence[store.Write]]) -> None:
        """Collect the rows. The function writes sessions, runs, messages, journals, ends of runs and events, in this
        order."""
        order = _WriteOrder()
        for number, writes in enumerate(commits):
            for place, write in enumerate(writes):
                order.check(number, write)
                _PLANS[type(write)](self, write, self._setter(number, place))
        accepted = Counter[str]()
        for run in self.rows.get("accepted", ()):
            accepted[run["session"]] += 1
            run["queued"] = accepted[run["session"]] > 1
            run["later"] = self.sessions[run["session"]]["runs"] - accepted[run["session"]]
        self._join_last_steps()

    def _setter(self, number: int, place: int) -> Put:
        def put(result: Any) -> None:
            self.results[number][place] = result

        return put

    def _locks(self) -> dict[str, list[str]]:
        """Return the sessions that are locked, and the runs whose sessions are locked."""
        ended = {run["id"] for run in self.rows.get("ended", ())}
        locks = {
            "sessions": set(self.sessions) | {usage["session"] for usage in self.usage.values()},
            "runs": ended | set(self.runs) | set(self._steps) | set(self.events),
        }
        return {name: sorted(found) for name, found in locks.items() if found}

    def _chain(self, seq: int, previous: str) -> list[store.AuditRow]:
        """Return the rows of the entries after the end of the audit chain, and set their results."""
        rows: list[store.AuditRow] = []
        for put, entry in self._entries:
            row = audit_row(seq + 1, previous, entry, self.context.audit_key)
            put(row)
            rows.append(row)
            seq, previous = row.seq, row.hash
        return rows

    def _bind(self, statement: str, **values: Any) -> Query:
        return tables.bind(self.context.tenant, statement, **values)


class _WriteOrder:
    """Rejects groups for which the order of the function would give another result than the order of the writes.

    These are groups in which a run is journaled, claimed or set again after it was claimed or ended, unless the claim
    comes first in the same commit; in which a session or run is used before it is created; in which a run is used
    before it is claimed; and commits that accept a run after another ended.
    """

    def __init__(self) -> None:
        self._put = set[str]()
        self._used = set[tuple[str, str]]()
        self._claimed: dict[str, int] = {}
        self._ended: dict[str, int] = {}

    def check(self, number: int, write: store.Write) -> None:
        """Check the next write, which is one of the commit of this number."""
        match write:
            case store.PutSession(key=key):
                self._require(key in self._put or ("session", key) not in self._used)
                self._put.add(key)
            case store.AcceptRun(id=id, session=session):
                self._require(number not in self._ended.values() and ("run", id) not in self._used)
                self._used.add(("session", session))
            case store.AddMessage(session=session):
                self._used.add(("session", session))
            case store.AddJournal() | store.SetRun() | store.ClaimRun():
                self._check_run(number, write)
            case store.ReserveEvents(run_id=id) | store.AddEvents(run_id=id):
                self._used.add(("run", id))
            case _:
                pass

    def _check_run(self, number: int, write: store.AddJournal | store.SetRun | store.ClaimRun) -> None:
        id = write.run_id
        self._require(id not in self._ended and self._claimed.get(id, number) == number)
        if isinstance(write, store.ClaimRun):
            self._require(("run", id) not in self._used)
            self._claimed[id] = number
        elif isinstance(write, store.SetRun) and write.status not in store.OPEN:
            self._ended[id] = number
        self._used.add(("run", id))

    def _require(self, is_ordered: bool) -> None:
        if not is_ordered:
            raise NotPipelined


def _put_session(batch: Batch, write: store.PutSession, put: Put) -> None:
    given, known = changed_fields(write), batch.sessions.get(write.key)
    if known is not None and any(known.get(name) != value for name, value in given.items()):
        raise NotPipelined
    batch.session(write.key).update(given, put=True, moves=True)
    batch.when_answered(lambda _: put(batch.found[write.key]))


def _accept_run(batch: Batch, write: store.AcceptRun, put: Put) -> None:
    """A repeated idempotency key violates a unique index."""
    run = new_run(batch.context, write)
    session = batch.session(write.session)
    session["runs"] += 1
    session["moves"] = True
    batch.add("accepted", tables.RUNS.values(run))

    def check(answer: WrittenTurns) -> None:
        status = answer.accepted[write.id]
        if write.at_once and status == "queued":
            raise NotPipelined
        put(msgspec.structs.replace(run, status=status))

    batch.when_answered(check)


def _claim_run(batch: Batch, write: store.ClaimRun, put: Put) -> None:
    batch.run(write.run_id, None, is_open=True)["claims"] = 1

    def note(answer: WrittenTurns) -> None:
        epoch, _ = answer.runs[write.run_id]
        batch.claimed(write.run_id, epoch)
        put(epoch)

    batch.when_answered(note)


def _set_run(batch: Batch, write: store.SetRun, put: Put) -> None:
    """The function does not start a run that is queued: the session may have an active one."""
    error = clean_text(write.error)
    if write.status == "queued":
        raise NotPipelined
    if write.status in store.OPEN:
        run = batch.run(write.run_id, write.epoch, is_open=True)
        run["status"] = write.status
        run["error"] = run.get("error") if error is None else error
    else:
        batch.add("ended", {"id": write.run_id, "epoch": write.epoch, "status": write.status, "error": error})
        batch.when_answered(lambda answer: put(answer.started.get(write.run_id)))


def _add_message(batch: Batch, write: store.AddMessage, put: Put) -> None:
    """The function fails if an id is repeated."""
    batch.require_new(write.session, write.id)
    session = batch.session(write.session)
    session["messages"] += 1
    session["moves"] = session["moves"] or not write.run_id
    number = session["messages"]
    row = {"session": write.session, "id": write.id, "run_id": write.run_id, "body": pack_value(write.body)}
    id_number = tables.message_number(batch.context.tenant, write.session, write.id)
    batch.add("messages", row | {"number": number, "id_number": id_number})

    def note(answer: WrittenTurns) -> None:
        seq = answer.sessions[write.session] - session["messages"] + number
        put(store.StoredMessage(write.session, seq, write.id, write.run_id, write.body))

    batch.when_answered(note)


def _reserve_events(batch: Batch, write: store.ReserveEvents, put: Put) -> None:
    if write.takes or not 0 <= write.count <= MAX_RESERVED_EVENTS:
        raise NotPipelined
    run = batch.run(write.run_id, write.epoch, is_open=False)
    run["says"] = True
    run["reserves"] += write.count
    so_far = run["reserves"]
    for owner in batch.rows.get("event_owners", ()):
        if owner["run_id"] == write.run_id:  # its events must not need this reservation
            owner["last"] += write.count

    def note(answer: WrittenTurns) -> None:
        _, events = answer.runs[write.run_id]
        last = events - run["reserves"] + so_far
        if last > MAX_RESERVED_EVENTS:
            raise NotPipelined
        put(last)

    batch.when_answered(note)


def _add_events(batch: Batch, write: store.AddEvents, put: Put) -> None:
    seqs = [seq for seq, _ in write.events]
    owner = {"run_id": write.run_id, "epoch": write.epoch, "first": min(seqs, default=1), "last": max(seqs, default=0)}
    batch.add("event_owners", owner)
    events = batch.events.setdefault(write.run_id, {})
    for seq, body in write.events:
        if seq in events:
            raise NotPipelined
        events[seq] = body


def _pack_events(run_id: str, events: dict[int, bytes]) -> list[dict[str, Any]]:
    """Return the rows of the new events of a run: one for each range of numbers without a gap, unless it is tiny."""
    ranges: list[list[int]] = []
    for seq in sorted(events):
        if ranges and ranges[-1][-1] == seq - 1:
            ranges[-1].append(seq)
        else:
            ranges.append([seq])
    rows: list[dict[str, Any]] = []
    keys = {"run_id": run_id, "run_key": tables.run_key(run_id)}
    for seqs in ranges:
        bodies = [events[seq] for seq in seqs]
        if sum(map(len, bodies)) < _MIN_PACKED:
            rows += [keys | {"seq": seq, "body": body} for seq, body in zip(seqs, bodies, strict=True)]
        else:
            rows.append(keys | {"seq": seqs[-1], "first": seqs[0], "body": pack_bodies(bodies)})
    return rows


def _add_usage(batch: Batch, write: store.AddUsage, put: Put) -> None:
    row = tables.USAGE.values(write.usage)
    known = batch.usage.setdefault(tuple(row[name] for name in tables.USAGE_KEY), row)
    if known is not row:
        for name in row.keys() - set(tables.USAGE_KEY):
            known[name] += row[name]


def _release_budgets(batch: Batch, write: store.ReleaseBudgets, put: Put) -> None:
    batch.add("released", write.run_id)
    if write.ended:
        batch.add("dropped_budgets", write.run_id)


_PLANS: dict[type, Callable[[Batch, Any, Put], None]] = {
    store.PutSession: _put_session,
    store.AcceptRun: _accept_run,
    store.ClaimRun: _claim_run,
    store.SetRun: _set_run,
    store.AddMessage: _add_message,
    store.ReserveEvents: _reserve_events,
    store.AddEvents: _add_events,
    store.AddUsage: _add_usage,
    store.ReleaseBudgets: _release_budgets,
    store.AddJournal: lambda batch, write, put: put(batch.add_step(write)),
    store.AddAudit: Batch.add_entry,
}
