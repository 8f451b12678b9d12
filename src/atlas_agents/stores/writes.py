"""Each write of the port as steps: what is asked, what is checked, what is written. The database serialises them."""

from collections.abc import Callable, Sequence
from typing import Any

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
    Write,
)
from atlas_agents.stores import statements as sql
from atlas_agents.stores.chain import START, audit_row, journal_row
from atlas_agents.stores.query import Place, Steps, cleaned
from atlas_agents.stores.rows import approval_of, message_of, run_of, session_of


def carry_out(place: Place, writes: Sequence[Write]) -> Steps[list[Any]]:
    """All writes of one commit, or the run that was accepted before and nothing else."""
    for index, write in enumerate(writes):
        if isinstance(write, AcceptRun) and write.idempotency_key:
            known = yield from _known_run(place, write)
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
        raise _no_session(write.key)


def _add_message(place: Place, write: AddMessage) -> Steps[StoredMessage]:
    known = yield place.ask(sql.MESSAGE_OF_ID, session=write.session, id=write.id)
    if known:
        return message_of(known[0])
    rows = yield place.ask(sql.NEXT_MESSAGE, session=write.session)
    if not rows:
        raise _no_session(write.session)
    message = StoredMessage(write.session, rows[0][0], write.id, write.run_id, write.body)
    yield place.ask(
        sql.ADD_MESSAGE, session=write.session, seq=message.seq, id=write.id, run_id=write.run_id, body=write.body
    )
    return message


def _known_run(place: Place, write: AcceptRun) -> Steps[RunRow | None]:
    rows = yield place.ask(sql.KNOWN_RUN, session=write.session, idempotency_key=write.idempotency_key)
    if not rows:
        return None
    known = run_of(rows[0])
    if known.request != write.request:
        raise Conflict(f"the idempotency key {write.idempotency_key!r} was used before, for another request")
    return known


def _accept_run(place: Place, write: AcceptRun) -> Steps[RunRow]:
    rows = yield place.ask(sql.NEXT_RUN, session=write.session)
    if not rows:
        raise _no_session(write.session)
    rows = yield place.ask(
        sql.ADD_RUN,
        id=write.id,
        session=write.session,
        agent_id=write.agent_id,
        user_id=write.user,
        idempotency_key=write.idempotency_key,
        request=write.request,
        place=rows[0][0],
    )
    if not rows:
        raise Conflict(f"there is a run {write.id!r} already")
    return run_of(rows[0])


def _claim_run(place: Place, write: ClaimRun) -> Steps[int]:
    rows = yield place.ask(sql.CLAIM_RUN, run_id=write.run_id)
    if rows:
        return rows[0][0]
    known = yield place.ask(sql.RUN, run_id=write.run_id)
    raise _ended(write.run_id) if known else _no_run(write.run_id)


def _set_run(place: Place, write: SetRun) -> Steps[str | None]:
    rows = yield place.ask(sql.RUN, run_id=write.run_id)
    if not rows:
        raise _no_run(write.run_id)
    run = run_of(rows[0])
    _check_owner(run.id, run.status, run.epoch, write.epoch)
    ends = write.status not in OPEN
    if write.status == "queued":
        raise Conflict(f"the run {run.id!r} cannot go back into the queue")
    if run.status == "queued" and not ends and (yield place.ask(sql.ACTIVE_RUN, session=run.session)):
        raise Conflict(f"the session {run.session!r} has an active run: {run.id!r} must wait")
    yield place.ask(
        sql.SET_RUN,
        run_id=run.id,
        status=write.status,
        error=cleaned(write.error),
        ended_at=place.now if ends else None,
    )
    started = (yield place.ask(sql.START_NEXT, session=run.session)) if ends else []
    return started[0][0] if started else None


def _add_journal(place: Place, write: AddJournal) -> Steps[JournalRow]:
    rows = yield place.ask(sql.JOURNAL_END, run_id=write.run_id)
    if not rows:
        raise _no_run(write.run_id)
    status, epoch, seq, previous = rows[0]
    _check_owner(write.run_id, status, epoch, write.epoch)
    row = journal_row(write.run_id, (seq or 0) + 1, write.kind, write.key, place.now, previous or START, write.payload)
    written = yield place.ask(
        sql.ADD_JOURNAL,
        run_id=row.run_id,
        seq=row.seq,
        kind=row.kind,
        key=row.key,
        payload=row.payload,
        at=row.at,
        previous=row.previous,
        hash=row.hash,
    )
    if not written:
        raise Conflict(f"the journal of the run {write.run_id!r} has {write.kind} {write.key!r} already")
    return row


def _add_audit(place: Place, write: AddAudit) -> Steps[AuditRow]:
    rows = yield place.ask(sql.AUDIT_END)
    seq, previous = rows[0] if rows else (0, START)
    row = audit_row(seq + 1, previous, write.entry)
    yield place.ask(sql.ADD_AUDIT, seq=row.seq, entry=row.entry, previous=row.previous, hash=row.hash)
    return row


def _reserve(place: Place, write: Reserve) -> Steps[int]:
    rows = []
    if write.limit > 0:
        rows = yield place.ask(sql.RESERVE, agent_id=write.agent_id, day=write.day, limit=write.limit)
    if not rows:
        raise LimitSpent(f"the agent {write.agent_id!r} has used its {write.limit} calls of {write.day}")
    return rows[0][0]


def _release(place: Place, write: Release) -> Steps[int]:
    rows = yield place.ask(sql.RELEASE, agent_id=write.agent_id, day=write.day)
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
    )
    if rows:
        return approval_of(rows[0])
    known = approval_of((yield place.ask(sql.APPROVAL, id=asked.id))[0])
    if (known.run_id, known.call_id, known.binding) != (asked.run_id, asked.call_id, asked.binding):
        raise Conflict(f"the approval {asked.id!r} was asked before, about something else")
    return known


def _answer_approval(place: Place, write: AnswerApproval) -> Steps[ApprovalRow]:
    rows = yield place.ask(sql.ANSWER_APPROVAL, id=write.id, answer=write.answer)
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


def _check_owner(run_id: str, status: str, epoch: int, claimed: int) -> None:
    if epoch != claimed:
        raise Fenced(f"the run {run_id!r} has a new owner: its epoch is {epoch}, not {claimed}")
    if status not in OPEN:
        raise _ended(run_id)


def _json(metadata: dict[str, Any]) -> bytes:
    try:
        return encode(metadata)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"the metadata cannot be written as JSON: {error}") from error


def _no_session(key: str) -> NotStored:
    return NotStored(f"there is no session {key!r}")


def _no_run(run_id: str) -> NotStored:
    return NotStored(f"there is no run {run_id!r}")


def _ended(run_id: str) -> Conflict:
    return Conflict(f"the run {run_id!r} has ended")


_STEPS: dict[type, Callable[[Place, Any], Steps[Any]]] = {
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
