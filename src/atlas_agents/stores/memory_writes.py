"""Each write of the port on dictionaries: a desk that knows the way back."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from atlas_agents.core.clock import days_ahead
from atlas_agents.core.errors import Conflict, LimitSpent, NotStored, StoreError
from atlas_agents.core.forgetting import Forget
from atlas_agents.core.jobs import AddJob, ClaimJob, RetryJob, SetJob, TellJob
from atlas_agents.core.json import encode
from atlas_agents.core.records import DropRecord, PutRecord, Record
from atlas_agents.core.shelves import AddPassages, DropDocument, PutDocument
from atlas_agents.core.store import (
    OPEN,
    AcceptRun,
    AddAudit,
    AddEvents,
    AddJournal,
    AddMessage,
    AddUsage,
    AnswerApproval,
    ApprovalRow,
    AuditRow,
    ClaimRun,
    DropSession,
    EventRow,
    JournalRow,
    PutApproval,
    PutSession,
    Release,
    Reserve,
    ReserveEvents,
    RunRow,
    Session,
    SetRun,
    StopRun,
    StoredMessage,
    UsageRow,
    Write,
)
from atlas_agents.stores.chain import START, audit_row, journal_row
from atlas_agents.stores.memory_desk import Desk
from atlas_agents.stores.memory_forgetting import forget
from atlas_agents.stores.memory_jobs import add_job, claim_job, retry_job, set_job, tell_job
from atlas_agents.stores.memory_shelves import add_passages, drop_document, put_document
from atlas_agents.stores.query import Place, cleaned, query
from atlas_agents.stores.record_writes import check_version, no_record
from atlas_agents.stores.refusals import (
    busy,
    check_count,
    check_fingerprint,
    check_numbers,
    check_teller,
    no_session,
)

_SHOWN = ("label", "error", "title", "task", "result")
"""Text that is only shown: cleaned, and not refused."""


def carry_out(desk: Desk, place: Place, writes: Sequence[Write]) -> list[Any]:
    """All writes of one commit, or the run that was accepted before and nothing else."""
    for index, write in enumerate(writes):
        if isinstance(write, AcceptRun) and write.idempotency_key in desk.accepted.get(write.session, {}):
            known = desk.runs[desk.accepted[write.session][write.idempotency_key]]
            check_fingerprint(known, write)
            return [known if i == index else None for i in range(len(writes))]
    return [_carry_out(desk, place, write) for write in writes]


def _carry_out(desk: Desk, place: Place, write: Write) -> Any:
    act = _ACTS.get(type(write))
    if act is None:
        raise StoreError(f"a store cannot write a {type(write).__name__}")
    texts = {name: value for name, value in msgspec.structs.asdict(_row(write)).items() if name not in _SHOWN}
    query(place.tenant, "", **{name: value for name, value in texts.items() if name != "tenant"})
    return act(desk, place, write)


def _row(write: Write) -> msgspec.Struct:
    """What a write keeps."""
    match write:
        case PutApproval(approval=row) | AddUsage(usage=row) | PutDocument(document=row) | AddJob(job=row):
            return row
        case _:
            return write


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
    if desk.open_of.get(key):
        raise Conflict(f"the session {key!r} has an open run: cancel it first")
    if key not in desk.sessions:
        raise no_session(key)
    for run_id in desk.runs_of.get(key, {}):
        desk.drop_run(run_id)
    for id in desk.approvals_of.get(key, {}):
        desk.drop_approval(id)
    tables = (desk.runs_of, desk.open_of, desk.approvals_of, desk.accepted, desk.messages, desk.message_ids)
    for table in (*tables, desk.sessions):
        desk.remove(table, key)


def _add_message(desk: Desk, place: Place, write: AddMessage) -> StoredMessage:
    known = desk.message_ids.get(write.session, {}).get(write.id)
    if known is not None:
        return desk.messages[write.session][known]
    desk.touch(place, write.session)
    seq = len(desk.messages.get(write.session, {})) + 1
    desk.put_in(desk.message_ids, write.session, write.id, seq)
    row = StoredMessage(write.session, seq, write.id, write.run_id, write.body)
    return desk.put_in(desk.messages, write.session, seq, row)


def _accept_run(desk: Desk, place: Place, write: AcceptRun) -> RunRow:
    desk.touch(place, write.session)
    if write.id in desk.runs or write.idempotency_key in desk.accepted.get(write.session, {}):
        raise Conflict(f"there is a run {write.id!r} already")
    waits = bool(desk.open_of.get(write.session))
    if waits and write.at_once:
        raise busy(write.session)
    run = RunRow(
        write.id,
        write.session,
        write.agent_id,
        "queued" if waits else "running",
        user=write.user,
        idempotency_key=write.idempotency_key,
        request=write.request,
        created_at=place.now,
        tenant=place.tenant,
        fingerprint=write.fingerprint,
        urgency=write.urgency,
    )
    if write.idempotency_key:
        desk.put_in(desk.accepted, write.session, write.idempotency_key, write.id)
    desk.put_in(desk.runs_of, write.session, write.id, None)
    return desk.put_run(run)


def _claim_run(desk: Desk, place: Place, write: ClaimRun) -> int:
    run = desk.owned(write.run_id, desk.known(write.run_id).epoch)
    return desk.put_run(msgspec.structs.replace(run, epoch=run.epoch + 1)).epoch


def _set_run(desk: Desk, place: Place, write: SetRun) -> str | None:
    run = desk.owned(write.run_id, write.epoch)
    ends = write.status not in OPEN
    if write.status == "queued":
        raise Conflict(f"the run {run.id!r} cannot go back into the queue")
    if run.status == "queued" and not ends and desk.is_active(run.session):
        raise Conflict(f"the session {run.session!r} has an active run: {run.id!r} must wait")
    error = run.error if write.error is None else cleaned(write.error)
    ended_at = place.now if ends else None
    desk.put_run(msgspec.structs.replace(run, status=write.status, error=error, ended_at=ended_at))
    queue = desk.open_of.get(run.session)
    if not ends or not queue or desk.is_active(run.session):
        return None
    return desk.put_run(msgspec.structs.replace(desk.runs[queue[0]], status="running")).id


def _stop_run(desk: Desk, place: Place, write: StopRun) -> RunRow:
    run = desk.owned(write.run_id, desk.known(write.run_id).epoch)
    if run.status == "queued":
        run = msgspec.structs.replace(run, status="cancelled", ended_at=place.now)
    return desk.put_run(msgspec.structs.replace(run, stop=True))


def _add_journal(desk: Desk, place: Place, write: AddJournal) -> JournalRow:
    desk.owned(write.run_id, write.epoch)
    if (write.kind, write.key) in desk.journal_keys.get(write.run_id, {}):
        raise Conflict(f"the journal of the run {write.run_id!r} has {write.kind} {write.key!r} already")
    rows = desk.journal.get(write.run_id, {})
    previous = rows[len(rows)].hash if rows else START
    row = journal_row(write.run_id, len(rows) + 1, write.kind, write.key, place.now, previous, write.payload)
    desk.put_in(desk.journal_keys, write.run_id, (write.kind, write.key), row.seq)
    return desk.put_in(desk.journal, write.run_id, row.seq, row)


def _reserve_events(desk: Desk, place: Place, write: ReserveEvents) -> int:
    check_count(write)
    run = desk.known(write.run_id)
    check_teller(write, run.epoch)
    desk.put(desk.said_at, run.id, place.now)
    taken = msgspec.structs.replace(run, events=run.events + write.count, epoch=run.epoch + write.takes)
    return desk.put_run(taken).events


def _add_events(desk: Desk, place: Place, write: AddEvents) -> None:
    run = desk.known(write.run_id)
    check_teller(write, run.epoch)
    check_numbers(write, run.events)
    for seq, body in write.events:
        if seq not in desk.events.get(write.run_id, {}):
            desk.put_in(desk.events, write.run_id, seq, EventRow(write.run_id, seq, body))


def _add_audit(desk: Desk, place: Place, write: AddAudit) -> AuditRow:
    last = len(desk.audit)
    row = audit_row(last + 1, desk.audit[last].hash if last else START, write.entry)
    return desk.put(desk.audit, row.seq, row)


def _reserve(desk: Desk, place: Place, write: Reserve) -> int:
    key = _day(desk, write)
    used = desk.counters.get(key, 0)
    if used >= write.limit:
        raise LimitSpent(f"the agent {write.agent_id!r} has used its {write.limit} calls of {write.day}")
    return desk.put(desk.counters, key, used + 1)


def _release(desk: Desk, place: Place, write: Release) -> int:
    key = _day(desk, write)
    return desk.put(desk.counters, key, max(desk.counters.get(key, 0) - 1, 0))


def _day(desk: Desk, write: Reserve | Release) -> tuple[str, str]:
    """Whose day it is: the latest that was counted, should the clock have been put back."""
    agent, (next_day, last_day) = write.agent_id, days_ahead(write.day)
    return agent, next((day for day in (last_day, next_day) if (agent, day) in desk.counters), write.day)


def _put_approval(desk: Desk, place: Place, write: PutApproval) -> ApprovalRow:
    asked = write.approval
    known = desk.approvals.get(asked.id)
    if known is None:
        desk.put_in(desk.approvals_of, asked.session, asked.id, None)
        return desk.put_approval(asked)
    if (known.run_id, known.call_id, known.binding) != (asked.run_id, asked.call_id, asked.binding):
        raise Conflict(f"the approval {asked.id!r} was asked before, about something else")
    return known


def _answer_approval(desk: Desk, place: Place, write: AnswerApproval) -> ApprovalRow:
    known = desk.approvals.get(write.id)
    if known is None:
        raise NotStored(f"there is no approval {write.id!r}")
    if known.answer is not None:
        raise Conflict(f"the approval {write.id!r} was answered before")
    return desk.put_approval(
        msgspec.structs.replace(known, answer=write.answer, answered_at=place.now, grants=write.grants)
    )


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


def _put_record(desk: Desk, place: Place, write: PutRecord) -> Record:
    name = (write.kind, write.key)
    version = desk.records[name].version if name in desk.records else 0
    check_version(write, version)
    return desk.put(desk.records, name, Record(write.kind, write.key, write.body, version + 1))


def _drop_record(desk: Desk, place: Place, write: DropRecord) -> None:
    if (write.kind, write.key) not in desk.records:
        raise no_record(write)
    desk.remove(desk.records, (write.kind, write.key))


_ACTS: dict[type, Callable[[Desk, Place, Any], Any]] = {
    PutSession: _put_session,
    DropSession: _drop_session,
    AddMessage: _add_message,
    AcceptRun: _accept_run,
    ClaimRun: _claim_run,
    SetRun: _set_run,
    StopRun: _stop_run,
    AddJournal: _add_journal,
    AddAudit: _add_audit,
    Reserve: _reserve,
    Release: _release,
    PutApproval: _put_approval,
    AnswerApproval: _answer_approval,
    ReserveEvents: _reserve_events,
    AddEvents: _add_events,
    AddUsage: _add_usage,
    PutDocument: put_document,
    AddPassages: add_passages,
    DropDocument: drop_document,
    AddJob: add_job,
    ClaimJob: claim_job,
    SetJob: set_job,
    RetryJob: retry_job,
    TellJob: tell_job,
    PutRecord: _put_record,
    DropRecord: _drop_record,
    Forget: forget,
}
