"""Each write of the port on dictionaries, with a way back: what a failing commit has changed is undone."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from atlas_agents.core.errors import Conflict, Fenced, LimitSpent, NotStored, StoreError
from atlas_agents.core.json import encode
from atlas_agents.core.store import (
    OPEN,
    AcceptRun,
    AddAudit,
    AddJournal,
    AddMessage,
    AddUsage,
    AnswerApproval,
    ApprovalRow,
    AuditRow,
    ClaimRun,
    DropSession,
    JournalRow,
    PutApproval,
    PutSession,
    Release,
    Reserve,
    RunRow,
    Session,
    SetRun,
    StoredMessage,
    UsageRow,
    Write,
)
from atlas_agents.stores.chain import START, audit_row, journal_row
from atlas_agents.stores.query import Place, cleaned, query

K = TypeVar("K")
V = TypeVar("V")
_ABSENT = object()


class Desk:
    """All that one tenant has. Rows are frozen, so putting the old ones back is a way back."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.messages: dict[tuple[str, int], StoredMessage] = {}
        self.message_ids: dict[tuple[str, str], int] = {}
        self.runs: dict[str, RunRow] = {}
        self.accepted: dict[tuple[str, str], str] = {}
        self.journal: dict[tuple[str, int], JournalRow] = {}
        self.journal_keys: dict[tuple[str, str, str], int] = {}
        self.audit: dict[int, AuditRow] = {}
        self.approvals: dict[str, ApprovalRow] = {}
        self.counters: dict[tuple[str, str], int] = {}
        self.usage: dict[tuple[str, ...], UsageRow] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self.undone: list[tuple[dict[Any, Any], Any, Any]] = []

    def put(self, table: dict[K, V], key: K, value: V) -> V:
        self.undone.append((table, key, table.get(key, _ABSENT)))
        table[key] = value
        return value

    def drop(self, table: dict[K, V], belongs: Callable[[K, V], bool]) -> None:
        """Remove rows; should that be undone, all of the table is put back, in its order."""
        kept = {key: value for key, value in table.items() if not belongs(key, value)}
        self.undone.append((table, _ABSENT, dict(table)))
        table.clear()
        table.update(kept)

    def undo(self) -> None:
        while self.undone:
            table, key, old = self.undone.pop()
            if key is _ABSENT:
                table.clear()
                table.update(old)
            elif old is _ABSENT:
                del table[key]
            else:
                table[key] = old

    def touch(self, place: Place, key: str) -> int:
        """When it changes now: later than every other change, whatever the clock says."""
        if key not in self.sessions:
            raise NotStored(f"there is no session {key!r}")
        changed = self.tick(place)
        self.put(self.sessions, key, msgspec.structs.replace(self.sessions[key], updated_at=changed))
        return changed

    def tick(self, place: Place) -> int:
        latest = max((session.updated_at for session in self.sessions.values()), default=0)
        return place.now if place.now > latest else latest + 1

    def owned(self, run_id: str, epoch: int) -> RunRow:
        run = self.known(run_id)
        if run.epoch != epoch:
            raise Fenced(f"the run {run_id!r} has a new owner: its epoch is {run.epoch}, not {epoch}")
        if run.status not in OPEN:
            raise Conflict(f"the run {run_id!r} has ended")
        return run

    def known(self, run_id: str) -> RunRow:
        if run_id not in self.runs:
            raise NotStored(f"there is no run {run_id!r}")
        return self.runs[run_id]

    def of_session(self, session: str, *statuses: str) -> list[RunRow]:
        return [run for run in self.runs.values() if run.session == session and run.status in statuses]


def carry_out(desk: Desk, place: Place, writes: Sequence[Write]) -> list[Any]:
    """All writes of one commit, or the run that was accepted before and nothing else."""
    for index, write in enumerate(writes):
        if isinstance(write, AcceptRun) and (write.session, write.idempotency_key) in desk.accepted:
            known = desk.runs[desk.accepted[write.session, write.idempotency_key]]
            if known.request != write.request:
                raise Conflict(f"the idempotency key {write.idempotency_key!r} was used before, for another request")
            return [known if i == index else None for i in range(len(writes))]
    return [_carry_out(desk, place, write) for write in writes]


def _carry_out(desk: Desk, place: Place, write: Write) -> Any:
    act = _ACTS.get(type(write))
    if act is None:
        raise StoreError(f"a store cannot write a {type(write).__name__}")
    row = write.approval if isinstance(write, PutApproval) else write.usage if isinstance(write, AddUsage) else write
    texts = {name: value for name, value in msgspec.structs.asdict(row).items() if name not in ("label", "error")}
    query(place.tenant, "", **{name: value for name, value in texts.items() if name != "tenant"})
    return act(desk, place, write)


def _put_session(desk: Desk, place: Place, write: PutSession) -> Session:
    old = desk.sessions.get(write.key) or Session(write.key, created_at=place.now)
    new = msgspec.structs.replace(
        old,
        agent_id=old.agent_id if write.agent_id is None else write.agent_id,
        label=old.label if write.label is None else cleaned(write.label),
        archived=old.archived if write.archived is None else write.archived,
        metadata=old.metadata if write.metadata is None else _plain(write.metadata),
        updated_at=desk.tick(place),
    )
    return desk.put(desk.sessions, write.key, new)


def _plain(metadata: dict[str, Any]) -> dict[str, Any]:
    """As it would come back from a disk, and not the caller's own object."""
    try:
        return msgspec.json.decode(encode(metadata), type=dict[str, Any])
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"the metadata cannot be written as JSON: {error}") from error


def _drop_session(desk: Desk, place: Place, write: DropSession) -> None:
    key = write.key
    if desk.of_session(key, *OPEN):
        raise Conflict(f"the session {key!r} has an open run: cancel it first")
    if key not in desk.sessions:
        raise NotStored(f"there is no session {key!r}")
    runs = {run.id for run in desk.runs.values() if run.session == key}
    desk.drop(desk.journal, lambda k, _: k[0] in runs)
    desk.drop(desk.journal_keys, lambda k, _: k[0] in runs)
    desk.drop(desk.counts, lambda k, _: k == ("m", key) or (k[0] == "j" and k[1] in runs))
    desk.drop(desk.messages, lambda k, _: k[0] == key)
    desk.drop(desk.message_ids, lambda k, _: k[0] == key)
    desk.drop(desk.accepted, lambda k, _: k[0] == key)
    desk.drop(desk.approvals, lambda _, row: row.session == key)
    desk.drop(desk.runs, lambda k, _: k in runs)
    desk.drop(desk.sessions, lambda k, _: k == key)


def _add_message(desk: Desk, place: Place, write: AddMessage) -> StoredMessage:
    known = desk.message_ids.get((write.session, write.id))
    if known is not None:
        return desk.messages[write.session, known]
    desk.touch(place, write.session)
    seq = desk.put(desk.counts, ("m", write.session), desk.counts.get(("m", write.session), 0) + 1)
    desk.put(desk.message_ids, (write.session, write.id), seq)
    row = StoredMessage(write.session, seq, write.id, write.run_id, write.body)
    return desk.put(desk.messages, (write.session, seq), row)


def _accept_run(desk: Desk, place: Place, write: AcceptRun) -> RunRow:
    desk.touch(place, write.session)
    if write.id in desk.runs or (write.session, write.idempotency_key) in desk.accepted:
        raise Conflict(f"there is a run {write.id!r} already")
    run = RunRow(
        write.id,
        write.session,
        write.agent_id,
        "queued" if desk.of_session(write.session, *OPEN) else "running",
        user=write.user,
        idempotency_key=write.idempotency_key,
        request=write.request,
        created_at=place.now,
        tenant=place.tenant,
    )
    if write.idempotency_key:
        desk.put(desk.accepted, (write.session, write.idempotency_key), write.id)
    return desk.put(desk.runs, write.id, run)


def _claim_run(desk: Desk, place: Place, write: ClaimRun) -> int:
    run = desk.owned(write.run_id, desk.known(write.run_id).epoch)
    return desk.put(desk.runs, run.id, msgspec.structs.replace(run, epoch=run.epoch + 1)).epoch


def _set_run(desk: Desk, place: Place, write: SetRun) -> str | None:
    run = desk.owned(write.run_id, write.epoch)
    ends = write.status not in OPEN
    if write.status == "queued":
        raise Conflict(f"the run {run.id!r} cannot go back into the queue")
    if run.status == "queued" and not ends and desk.of_session(run.session, "running", "waiting"):
        raise Conflict(f"the session {run.session!r} has an active run: {run.id!r} must wait")
    error = run.error if write.error is None else cleaned(write.error)
    ended_at = place.now if ends else None
    desk.put(desk.runs, run.id, msgspec.structs.replace(run, status=write.status, error=error, ended_at=ended_at))
    queued = desk.of_session(run.session, "queued")
    if not ends or not queued or desk.of_session(run.session, "running", "waiting"):
        return None
    return desk.put(desk.runs, queued[0].id, msgspec.structs.replace(queued[0], status="running")).id


def _add_journal(desk: Desk, place: Place, write: AddJournal) -> JournalRow:
    desk.owned(write.run_id, write.epoch)
    if (write.run_id, write.kind, write.key) in desk.journal_keys:
        raise Conflict(f"the journal of the run {write.run_id!r} has {write.kind} {write.key!r} already")
    last = desk.counts.get(("j", write.run_id), 0)
    previous = desk.journal[write.run_id, last].hash if last else START
    row = journal_row(write.run_id, last + 1, write.kind, write.key, place.now, previous, write.payload)
    desk.put(desk.counts, ("j", write.run_id), row.seq)
    desk.put(desk.journal_keys, (write.run_id, write.kind, write.key), row.seq)
    return desk.put(desk.journal, (write.run_id, row.seq), row)


def _add_audit(desk: Desk, place: Place, write: AddAudit) -> AuditRow:
    last = len(desk.audit)
    row = audit_row(last + 1, desk.audit[last].hash if last else START, write.entry)
    return desk.put(desk.audit, row.seq, row)


def _reserve(desk: Desk, place: Place, write: Reserve) -> int:
    used = desk.counters.get((write.agent_id, write.day), 0)
    if used >= write.limit:
        raise LimitSpent(f"the agent {write.agent_id!r} has used its {write.limit} calls of {write.day}")
    return desk.put(desk.counters, (write.agent_id, write.day), used + 1)


def _release(desk: Desk, place: Place, write: Release) -> int:
    used = desk.counters.get((write.agent_id, write.day), 0)
    return desk.put(desk.counters, (write.agent_id, write.day), max(used - 1, 0))


def _put_approval(desk: Desk, place: Place, write: PutApproval) -> ApprovalRow:
    asked = write.approval
    known = desk.approvals.get(asked.id)
    if known is None:
        return desk.put(desk.approvals, asked.id, asked)
    if (known.run_id, known.call_id, known.binding) != (asked.run_id, asked.call_id, asked.binding):
        raise Conflict(f"the approval {asked.id!r} was asked before, about something else")
    return known


def _answer_approval(desk: Desk, place: Place, write: AnswerApproval) -> ApprovalRow:
    known = desk.approvals.get(write.id)
    if known is None:
        raise NotStored(f"there is no approval {write.id!r}")
    if known.answer is not None:
        raise Conflict(f"the approval {write.id!r} was answered before")
    answered = msgspec.structs.replace(known, answer=write.answer, answered_at=place.now)
    return desk.put(desk.approvals, write.id, answered)


def _add_usage(desk: Desk, place: Place, write: AddUsage) -> None:
    new = write.usage
    names = (new.day, new.session, new.agent_id, new.model)
    old = desk.usage.get(names, UsageRow(*names))
    row = UsageRow(
        *names,
        old.input_tokens + new.input_tokens,
        old.output_tokens + new.output_tokens,
        old.cached_tokens + new.cached_tokens,
        old.cost_microcents + new.cost_microcents,
        old.turns + new.turns,
    )
    desk.put(desk.usage, names, row)


_ACTS: dict[type, Callable[[Desk, Place, Any], Any]] = {
    PutSession: _put_session,
    DropSession: _drop_session,
    AddMessage: _add_message,
    AcceptRun: _accept_run,
    ClaimRun: _claim_run,
    SetRun: _set_run,
    AddJournal: _add_journal,
    AddAudit: _add_audit,
    Reserve: _reserve,
    Release: _release,
    PutApproval: _put_approval,
    AnswerApproval: _answer_approval,
    AddUsage: _add_usage,
}
