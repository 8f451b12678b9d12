"""Each write of the port as steps: what is asked, what is checked, what is written. The database serialises them."""

from collections.abc import Callable, Sequence
from typing import Any

from atlas_agents.core.clock import days_ahead
from atlas_agents.core.errors import Conflict, LimitSpent, NotStored, StoreError
from atlas_agents.core.forgetting import Forget
from atlas_agents.core.jobs import AddJob, ClaimJob, RetryJob, SetJob, TellJob
from atlas_agents.core.json import encode
from atlas_agents.core.records import DropRecord, PutRecord
from atlas_agents.core.shelves import AddPassages, DropDocument, PutDocument
from atlas_agents.core.store import (
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
    PutApproval,
    PutSession,
    Release,
    Reserve,
    ReserveEvents,
    Session,
    SetRun,
    StopRun,
    StoredMessage,
    Write,
)
from atlas_agents.stores import statements as sql
from atlas_agents.stores.chain import START, audit_row
from atlas_agents.stores.forgetting_writes import forget
from atlas_agents.stores.job_writes import add_job, claim_job, retry_job, set_job, tell_job
from atlas_agents.stores.query import Place, Steps, cleaned
from atlas_agents.stores.record_writes import drop_record, put_record
from atlas_agents.stores.refusals import no_session
from atlas_agents.stores.rows import approval_of, message_of, session_of
from atlas_agents.stores.run_writes import (
    accept_run,
    add_events,
    add_journal,
    claim_run,
    known_run,
    reserve_events,
    set_run,
    stop_run,
)
from atlas_agents.stores.shelf_writes import add_passages, drop_document, put_document


def carry_out(place: Place, writes: Sequence[Write]) -> Steps[list[Any]]:
    """All writes of one commit, or the run that was accepted before and nothing else."""
    for index, write in enumerate(writes):
        if isinstance(write, AcceptRun) and write.idempotency_key:
            known = yield from known_run(place, write)
            if known is not None:
                return [known if i == index else None for i in range(len(writes))]
    results: list[Any] = []
    for write in writes:
        steps = _STEPS.get(type(write))
        if steps is None:
            raise StoreError(f"a store cannot write a {type(write).__name__}")
        results.append((yield from steps(place, write)))
    return results


def _put_session(place: Place, write: PutSession) -> Steps[Session]:
    rows = yield place.ask(
        sql.PUT_SESSION,
        key=write.key,
        agent_id=write.agent_id,
        label=cleaned(write.label),
        archived=write.archived,
        metadata=None if write.metadata is None else _json(write.metadata),
        empty=b"{}",
    )
    return session_of(rows[0])


def _drop_session(place: Place, write: DropSession) -> Steps[None]:
    if (yield place.ask(sql.HAS_OPEN_RUN, session=write.key)):
        raise Conflict(f"the session {write.key!r} has an open run: cancel it first")
    for statement in sql.DROP_ROWS:
        yield place.ask(statement, session=write.key)
    if not (yield place.ask(sql.DROP_SESSION, session=write.key)):
        raise no_session(write.key)


def _add_message(place: Place, write: AddMessage) -> Steps[StoredMessage]:
    known = yield place.ask(sql.MESSAGE_OF_ID, session=write.session, id=write.id)
    if known:
        return message_of(known[0])
    rows = yield place.ask(sql.NEXT_MESSAGE, session=write.session)
    if not rows:
        raise no_session(write.session)
    message = StoredMessage(write.session, rows[0][0], write.id, write.run_id, write.body)
    yield place.ask(
        sql.ADD_MESSAGE, session=write.session, seq=message.seq, id=write.id, run_id=write.run_id, body=write.body
    )
    return message


def _add_audit(place: Place, write: AddAudit) -> Steps[AuditRow]:
    rows = yield place.ask(sql.AUDIT_END)
    seq, previous = rows[0] if rows else (0, START)
    row = audit_row(seq + 1, previous, write.entry)
    yield place.ask(sql.ADD_AUDIT, seq=row.seq, entry=row.entry, previous=row.previous, hash=row.hash)
    return row


def _reserve(place: Place, write: Reserve) -> Steps[int]:
    rows = []
    if write.limit > 0:
        latest = days_ahead(write.day)[1]
        rows = yield place.ask(sql.RESERVE, agent_id=write.agent_id, day=write.day, latest=latest, limit=write.limit)
    if not rows:
        raise LimitSpent(f"the agent {write.agent_id!r} has used its {write.limit} calls of {write.day}")
    return rows[0][0]


def _release(place: Place, write: Release) -> Steps[int]:
    rows = yield place.ask(sql.RELEASE, agent_id=write.agent_id, day=write.day, latest=days_ahead(write.day)[1])
    return rows[0][0] if rows else 0


def _put_approval(place: Place, write: PutApproval) -> Steps[ApprovalRow]:
    asked = write.approval
    rows = yield place.ask(
        sql.PUT_APPROVAL,
        id=asked.id,
        run_id=asked.run_id,
        session=asked.session,
        call_id=asked.call_id,
        binding=asked.binding,
        question=asked.question,
        expires_at=asked.expires_at,
        created_at=asked.created_at,
        answer=asked.answer,
        answered_at=asked.answered_at,
        grants=asked.grants,
    )
    if rows:
        return approval_of(rows[0])
    known = approval_of((yield place.ask(sql.APPROVAL, id=asked.id))[0])
    if (known.run_id, known.call_id, known.binding) != (asked.run_id, asked.call_id, asked.binding):
        raise Conflict(f"the approval {asked.id!r} was asked before, about something else")
    return known


def _answer_approval(place: Place, write: AnswerApproval) -> Steps[ApprovalRow]:
    rows = yield place.ask(sql.ANSWER_APPROVAL, id=write.id, answer=write.answer, grants=write.grants)
    if rows:
        return approval_of(rows[0])
    if (yield place.ask(sql.APPROVAL, id=write.id)):
        raise Conflict(f"the approval {write.id!r} was answered before")
    raise NotStored(f"there is no approval {write.id!r}")


def _add_usage(place: Place, write: AddUsage) -> Steps[None]:
    used = write.usage
    yield place.ask(
        sql.ADD_USAGE,
        day=used.day,
        session=used.session,
        agent_id=used.agent_id,
        model=used.model,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        cached_tokens=used.cached_tokens,
        cost_microcents=used.cost_microcents,
        turns=used.turns,
    )


def _json(metadata: dict[str, Any]) -> bytes:
    try:
        return encode(metadata)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"the metadata cannot be written as JSON: {error}") from error


_STEPS: dict[type, Callable[[Place, Any], Steps[Any]]] = {
    PutSession: _put_session,
    DropSession: _drop_session,
    AddMessage: _add_message,
    AcceptRun: accept_run,
    ClaimRun: claim_run,
    SetRun: set_run,
    StopRun: stop_run,
    AddJournal: add_journal,
    AddAudit: _add_audit,
    Reserve: _reserve,
    Release: _release,
    PutApproval: _put_approval,
    AnswerApproval: _answer_approval,
    ReserveEvents: reserve_events,
    AddEvents: add_events,
    AddUsage: _add_usage,
    PutDocument: put_document,
    AddPassages: add_passages,
    DropDocument: drop_document,
    AddJob: add_job,
    ClaimJob: claim_job,
    SetJob: set_job,
    RetryJob: retry_job,
    TellJob: tell_job,
    PutRecord: put_record,
    DropRecord: drop_record,
    Forget: forget,
}
