"""Writes of a turn as statements that need no answers in between: Postgres gets a group of commits in one message.

Each statement checks by itself what `writes` checks step by step. If one finds something else than expected, `finish`
raises `NotPipelined`: the group is rolled back and repeated with the steps of `writes`, which decide and explain. So
this module may give up at any time, but must never accept what the steps would reject.

The transaction shares the lock of its tenant with others of this kind, while the steps hold it exclusively. Rows that
others may change are locked in a fixed order: sessions by key, then the rows of runs by id, then the audit chain.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from atlas_agents.core import store
from atlas_agents.storage.hash_chain import START, audit_row, journal_row
from atlas_agents.storage.sql import statements as sql
from atlas_agents.storage.sql import tables
from atlas_agents.storage.sql.tables import Query, Row, WriteContext, clean_text
from atlas_agents.storage.sql.writes import MAX_RESERVED_EVENTS, bind_session, run_values

Rows: TypeAlias = list[Row]
_MAX_JOURNALS = 8192


class NotPipelined(Exception):
    """The group cannot be written this way: repeat it step by step."""


class JournalEnds:
    """Cache of the last step of each journal that this process writes, so that it is not read before each step.

    Statements verify what is cached: a wrong entry costs a repetition, never a wrong row.
    """

    def __init__(self) -> None:
        self._ends: OrderedDict[tuple[str, str], tuple[int, str]] = OrderedDict()

    def get(self, tenant: str, run_id: str) -> tuple[int, str] | None:
        return self._ends.get((tenant, run_id))

    def put(self, tenant: str, run_id: str, seq: int, hash: str) -> None:
        self._ends[tenant, run_id] = seq, hash
        self._ends.move_to_end((tenant, run_id))
        if len(self._ends) > _MAX_JOURNALS:
            self._ends.popitem(last=False)

    def drop(self, tenant: str, run_id: str) -> None:
        self._ends.pop((tenant, run_id), None)

    def drop_all(self, tenant: str, writes: Sequence[store.Write]) -> None:
        """Forget the journals that a commit continues."""
        for write in writes:
            if isinstance(write, store.AddJournal | store.ClaimRun):
                self.drop(tenant, write.run_id)


def is_pipelined(writes: Sequence[store.Write]) -> bool:
    """Return whether all writes of a commit are of the kinds that this module knows."""
    return all(type(write) in _PLANS or type(write) in _COLLECTED for write in writes)


def unknown_journals(tenant: str, commits: Sequence[Sequence[store.Write]], journals: JournalEnds) -> Query | None:
    """Return the query for the ends of journals that the commits continue and that are not known yet."""
    runs = {write.run_id for writes in commits for write in writes if isinstance(write, store.AddJournal)}
    unknown = sorted(run_id for run_id in runs if journals.get(tenant, run_id) is None)
    return tables.bind(tenant, sql.POSTGRES_JOURNAL_ENDS, run_ids=unknown) if unknown else None


class Batch:
    """The statements of a group of commits: first `queries`; after `finish`, `final_queries` and the COMMIT."""

    def __init__(
        self, context: WriteContext, commits: Sequence[Sequence[store.Write]], journals: JournalEnds, chain_lock: int
    ) -> None:
        self.queries: list[Query] = []
        self.final_queries: list[Query] = []
        self.results: list[list[Any]] = [[None] * len(writes) for writes in commits]
        self.context = context
        self._commits = commits
        self._journals = journals
        self._finishers: list[tuple[int, Callable[[Rows], Any]]] = []
        self._steps: dict[str, list[store.JournalRow]] = {}
        self._ended: dict[str, int] = {}
        self._claimed: dict[str, int] = {}
        self._plan(chain_lock)

    def finish(self, answers: Sequence[Rows]) -> None:
        """Check the answers to `queries`, and set `results` and `final_queries`."""
        for index, finisher in self._finishers:
            finisher(answers[index])

    def note_committed(self) -> None:
        """Remember the ends of the journals; call it once the transaction is committed."""
        tenant = self.context.tenant
        for run_id, epoch in self._claimed.items():
            self._journals.drop(tenant, run_id)
            if epoch == 1:  # its first owner begins the journal
                self._journals.put(tenant, run_id, 0, START)
        for run_id, steps in self._steps.items():
            self._journals.put(tenant, run_id, steps[-1].seq, steps[-1].hash)
        for run_id in self._ended:
            self._journals.drop(tenant, run_id)

    def add(self, query: Query, finisher: Callable[[Rows], Any] | None = None) -> None:
        """Send a query; `finisher` gets its rows."""
        if finisher is not None:
            self._finishers.append((len(self.queries), finisher))
        self.queries.append(query)

    def claimed(self, run_id: str, epoch: int) -> None:
        self._claimed[run_id] = epoch

    def _plan(self, chain_lock: int) -> None:
        """Order of the statements: locks, rows of sessions and runs, journals, ends of runs, events, audit chain.

        `_check_order` makes sure that this order gives the same result as the order of the writes.
        """
        written = [
            (number, place, write) for number, writes in enumerate(self._commits) for place, write in enumerate(writes)
        ]
        self._check_order(written)
        self._lock_sessions([write for _, _, write in written])
        for number, place, write in written:
            if (plan := _PLANS.get(type(write))) is not None and not isinstance(write, store.SetRun):
                plan(self, write, self._setter(number, place))
        self._add_journals(
            [(number, place, write) for number, place, write in written if isinstance(write, store.AddJournal)]
        )
        for number, place, write in written:
            if isinstance(write, store.SetRun):
                _set_run(self, write, self._setter(number, place))
        self._add_events([write for _, _, write in written if isinstance(write, store.AddEvents)])
        self._add_audit(
            [(number, place, write) for number, place, write in written if isinstance(write, store.AddAudit)],
            chain_lock,
        )

    def _setter(self, number: int, place: int) -> Callable[[Any], None]:
        def put(result: Any) -> None:
            self.results[number][place] = result

        return put

    def _check_order(self, written: Sequence[tuple[int, int, store.Write]]) -> None:
        """Reject groups in which a run is journaled, claimed or set again after it was claimed or ended, unless the
        claim comes first in the same commit; and commits that accept a run after another ended, or that reserve events
        after they added some."""
        done = set[tuple[int, type[store.Write]]]()
        for number, _, write in written:
            done.add((number, type(write)))
            if isinstance(write, store.AcceptRun) and (number, store.SetRun) in done:
                raise NotPipelined
            if isinstance(write, store.ReserveEvents) and (number, store.AddEvents) in done:
                raise NotPipelined
            if not isinstance(write, store.AddJournal | store.SetRun | store.ClaimRun):
                continue
            if write.run_id in self._ended or self._claimed.get(write.run_id, number) != number:
                raise NotPipelined
            if isinstance(write, store.ClaimRun):
                if write.run_id in self._claimed or write.run_id in self._steps:
                    raise NotPipelined
                self._claimed[write.run_id] = number
            elif isinstance(write, store.AddJournal):
                self._steps[write.run_id] = []
            elif write.status not in store.OPEN:
                self._ended[write.run_id] = number
        self._claimed.clear()
        self._steps.clear()

    def _lock_sessions(self, writes: Sequence[store.Write]) -> None:
        sessions, runs = set[str](), set[str]()
        for write in writes:
            match write:
                case store.PutSession(key=key):
                    sessions.add(key)
                case store.AddMessage(session=key) | store.AcceptRun(session=key):
                    sessions.add(key)
                case store.AddUsage(usage=usage):
                    sessions.add(usage.session)
                case store.AddJournal(run_id=id) | store.SetRun(run_id=id) | store.ClaimRun(run_id=id):
                    runs.add(id)
                case _:
                    pass
        if sessions or runs:
            self.add(self.context.bind(sql.POSTGRES_LOCK_SESSIONS, sessions=sorted(sessions), run_ids=sorted(runs)))

    def _add_journals(self, written: Sequence[tuple[int, int, store.AddJournal]]) -> None:
        """Add the steps of all journals in one statement. The first new step of each run must follow its last one."""
        if not written:
            return
        rows: list[tuple[store.JournalRow, int, bool]] = []
        for number, place, write in written:
            steps = self._steps.setdefault(write.run_id, [])
            first = not steps
            end = (steps[-1].seq, steps[-1].hash) if steps else self._journals.get(self.context.tenant, write.run_id)
            if end is None:
                raise NotPipelined
            seq, previous = end
            now = self.context.now
            step = journal_row(write.run_id, seq + 1, write.kind, write.key, now, previous, write.payload)
            steps.append(step)
            rows.append((step, write.epoch, first))
            self.results[number][place] = step
        columns: dict[str, list[Any]] = {name: [getattr(step, name) for step, _, _ in rows] for name in _STEP_COLUMNS}
        columns["epoch"] = [epoch for _, epoch, _ in rows]
        columns["is_first"] = [first for _, _, first in rows]

        def check(added: Rows) -> None:
            if len(added) != len(rows):
                for step, _, _ in rows:
                    self._journals.drop(self.context.tenant, step.run_id)
                raise NotPipelined

        self.add(self.context.bind(sql.POSTGRES_ADD_JOURNALS, **columns), check)

    def _add_events(self, writes: Sequence[store.AddEvents]) -> None:
        """Add the events of all runs in one statement, which then locks the rows of the runs and reads their epochs."""
        if not writes:
            return
        events = [(write.run_id, seq, body) for write in writes for seq, body in write.events]
        run_ids = sorted({write.run_id for write in writes})
        values = {
            "ids": run_ids,
            "run_ids": [run_id for run_id, _, _ in events],
            "seqs": [seq for _, seq, _ in events],
            "bodies": [body for _, _, body in events],
        }

        def check(rows: Rows) -> None:
            owned = {id: (reserved, epoch) for id, reserved, epoch in rows}
            for write in writes:
                reserved, epoch = owned.get(write.run_id, (0, -1))
                if epoch == -1 or (write.epoch is not None and write.epoch != epoch):
                    raise NotPipelined
                if any(not 0 < seq <= reserved for seq, _ in write.events):
                    raise NotPipelined

        self.add(self.context.bind(sql.POSTGRES_ADD_EVENTS_OF_RUNS, **values), check)

    def _add_audit(self, written: Sequence[tuple[int, int, store.AddAudit]], chain_lock: int) -> None:
        """Lock the chain and read its end, last of all; the rows follow after `finish`."""
        if not written:
            return

        def chain(rows: Rows) -> None:
            seq, previous = rows[0] if rows else (0, START)
            if self.context.audit_key is None and previous.startswith("hmac:"):
                raise NotPipelined
            for number, place, write in written:
                row = audit_row(seq + 1, previous, write.entry, self.context.audit_key)
                self.results[number][place] = row
                self.final_queries.append(self.context.bind(sql.ADD_AUDIT, **tables.AUDIT.values(row)))
                seq, previous = row.seq, row.hash

        self.add(Query(sql.POSTGRES_LOCK_CHAIN, {"lock": chain_lock}))
        self.add(self.context.bind(sql.AUDIT_END), chain)


Put: TypeAlias = Callable[[Any], None]
_STEP_COLUMNS = ("run_id", "seq", "kind", "key", "payload", "at", "previous", "hash")


def _only_row(rows: Rows) -> Row:
    if len(rows) != 1:
        raise NotPipelined
    return rows[0]


def _put_session(batch: Batch, write: store.PutSession, put: Put) -> None:
    batch.add(bind_session(batch.context, write), lambda rows: put(tables.SESSIONS.decode(_only_row(rows))))


def _accept_run(batch: Batch, write: store.AcceptRun, put: Put) -> None:
    """A repeated idempotency key violates a unique index."""

    def check(rows: Rows) -> None:
        run = tables.RUNS.decode(_only_row(rows))
        if write.at_once and run.status == "queued":
            raise NotPipelined
        put(run)

    batch.add(batch.context.bind(sql.POSTGRES_ACCEPT_RUN, **run_values(batch.context, write)), check)


def _claim_run(batch: Batch, write: store.ClaimRun, put: Put) -> None:
    def check(rows: Rows) -> None:
        (epoch,) = _only_row(rows)
        batch.claimed(write.run_id, epoch)
        put(epoch)

    batch.add(batch.context.bind(sql.CLAIM_RUN, run_id=write.run_id), check)


def _set_run(batch: Batch, write: store.SetRun, put: Put) -> None:
    """A second active run of a session violates a unique index."""
    if write.status == "queued":
        raise NotPipelined
    ends = write.status not in store.OPEN
    values = {"status": write.status, "error": clean_text(write.error), "ended_at": batch.context.now if ends else None}
    batch.add(batch.context.bind(sql.POSTGRES_SET_OWN_RUN, run_id=write.run_id, epoch=write.epoch, **values), _only_row)
    if ends:
        query = batch.context.bind(sql.POSTGRES_START_NEXT_OF_RUN, run_id=write.run_id)
        batch.add(query, lambda rows: put(next((id for (id,) in rows), None)))


def _add_message(batch: Batch, write: store.AddMessage, put: Put) -> None:
    new = store.StoredMessage(write.session, 0, write.id, write.run_id, write.body)

    def check(rows: Rows) -> None:
        seq, run_id, body = _only_row(rows)
        found = (write.run_id, write.body) if body is None else (run_id, body)
        put(store.StoredMessage(write.session, seq, write.id, *found))

    batch.add(batch.context.bind(sql.POSTGRES_ADD_NEW_MESSAGE, **tables.MESSAGES.values(new)), check)


def _reserve_events(batch: Batch, write: store.ReserveEvents, put: Put) -> None:
    if not 0 <= write.count <= MAX_RESERVED_EVENTS:
        raise NotPipelined

    def check(rows: Rows) -> None:
        last, epoch = _only_row(rows)
        if write.epoch is not None and epoch != write.epoch:
            raise NotPipelined
        put(last)

    values = {"run_id": write.run_id, "count": write.count, "taken": int(write.takes)}
    batch.add(batch.context.bind(sql.RESERVE_EVENTS, **values), check)


def _add_usage(batch: Batch, write: store.AddUsage, put: Put) -> None:
    batch.add(batch.context.bind(sql.ADD_USAGE, **tables.USAGE.values(write.usage)))


def _release_budgets(batch: Batch, write: store.ReleaseBudgets, put: Put) -> None:
    batch.add(batch.context.bind(sql.RELEASE_BUDGETS, run_id=write.run_id))
    if write.ended:
        batch.add(batch.context.bind(sql.DROP_TURN_BUDGET, key=f"turn/{write.run_id}", run_id=write.run_id))


_PLANS: dict[type, Callable[[Batch, Any, Put], None]] = {
    store.PutSession: _put_session,
    store.AcceptRun: _accept_run,
    store.ClaimRun: _claim_run,
    store.SetRun: _set_run,
    store.AddMessage: _add_message,
    store.ReserveEvents: _reserve_events,
    store.AddUsage: _add_usage,
    store.ReleaseBudgets: _release_budgets,
}
_COLLECTED = (store.AddJournal, store.AddEvents, store.AddAudit)
