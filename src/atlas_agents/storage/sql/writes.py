"""Writes of the store port, each as a generator of queries that reads, checks and writes.

The database runs these commits of a tenant one at a time, so a check still holds when the write follows. On Postgres,
most commits of a turn use the faster `pipelined` module, and fall back to this one in unexpected cases.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from atlas_agents.core import store
from atlas_agents.core.aio import days_ahead, utc_day
from atlas_agents.core.budgets import TENANT, BudgetCount, add_amounts, grant
from atlas_agents.core.errors import Conflict, DailyLimitExceeded, NotFound, SessionBusy, StaleOwner, StoreError
from atlas_agents.storage.hash_chain import START, audit_row, journal_row
from atlas_agents.storage.sql import statements as sql
from atlas_agents.storage.sql import tables
from atlas_agents.storage.sql.derived import refresh_indexes
from atlas_agents.storage.sql.tables import (
    Steps,
    Vector,
    WriteContext,
    clean_text,
    pack_value,
    split_batches,
)
from atlas_agents.storage.sql.text_search import owner_words

MAX_RESERVED_EVENTS = tables.MAX_SEQ
"""Maximum number of events that a run may reserve."""
FIRST_OWNER = 1
"""Epoch of the first owner of a run, which begins its journal."""
_AUDIT_LOG = ""
"""Name of the audit log in `ChainEnds`, where a journal has the id of its run."""
_PASSAGE_BATCHES = (32, 8, 1)
_RUN_FIELDS = [name for name in store.AcceptRun.__struct_fields__ if name in store.RunRow.__struct_fields__]


def apply_writes(context: WriteContext, writes: Sequence[store.Write]) -> Steps[list[Any]]:
    """Apply the writes of one commit. If an `AcceptRun` repeats an idempotency key, nothing is written."""
    for index, write in enumerate(writes):
        if isinstance(write, store.AcceptRun) and write.idempotency_key:
            existing = yield from find_run_by_key(context, write)
            if existing is not None:
                return [existing if i == index else None for i in range(len(writes))]
    results: list[Any] = []
    while (place := len(results)) < len(writes):
        write = writes[place]
        if isinstance(write, store.AddMessage):
            results += yield from _add_messages_of(context, _messages_from(writes, place, write.session))
        elif isinstance(write, store.PutSession) and (accept := _accepted_with(writes, place, write.key)) is not None:
            is_claimed = [*writes[place + 2 : place + 3]] == [store.ClaimRun(accept.id)]
            results += yield from _put_and_accept(context, write, accept, is_claimed=is_claimed)
        elif (steps := _STEPS.get(type(write))) is not None:
            results.append((yield from steps(context, write)))
        else:
            raise StoreError(f"unknown write: {type(write).__name__}")
    return results


def _accepted_with(writes: Sequence[store.Write], place: int, session: str) -> store.AcceptRun | None:
    """Return the run of a session that is accepted after the write at a place, if that is the next write."""
    found = writes[place + 1] if place + 1 < len(writes) else None
    return found if isinstance(found, store.AcceptRun) and found.session == session else None


def _messages_from(writes: Sequence[store.Write], place: int, session: str) -> list[store.AddMessage]:
    """Return the messages of a session that follow each other from a place on."""
    found: list[store.AddMessage] = []
    for write in writes[place:]:
        if not isinstance(write, store.AddMessage) or write.session != session:
            break
        found.append(write)
    return found


# Sessions and messages


def _put_session(context: WriteContext, write: store.PutSession) -> Steps[store.Session]:
    session, _ = yield from _put_session_of(context, write, 0)
    return session


def _put_session_of(context: WriteContext, write: store.PutSession, runs: int) -> Steps[tuple[store.Session, int]]:
    """Create or change a session that gets a number of new runs; return it and the place of its last run."""
    given = _given_fields(write)
    values = _encode_session(store.Session(**given, created_at=context.now))
    new = {f"new_{name}": values[name] if name in given else None for name in write.__struct_fields__}
    ((*row, last_run),) = yield context.bind(context.dialect.PUT_SESSION, **values, **new, runs=runs)
    return tables.SESSIONS.decode(row), last_run


def changed_fields(write: store.PutSession) -> dict[str, Any]:
    """Return the columns that a write sets."""
    given = _given_fields(write)
    values = _encode_session(store.Session(**given))
    return {name: values[name] for name in given}


def _given_fields(write: store.PutSession) -> dict[str, Any]:
    given = {name: value for name in write.__struct_fields__ if (value := getattr(write, name)) is not None}
    if write.label is not None:
        given["label"] = clean_text(write.label)
    return given


def _encode_session(session: store.Session) -> dict[str, Any]:
    try:
        return tables.SESSIONS.values(session)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"the metadata of session {session.key!r} cannot be encoded as JSON: {error}") from error


def _set_session_metadata(context: WriteContext, write: store.SetSessionMetadata) -> Steps[store.Session]:
    session = tables.SESSIONS.first((yield context.bind(sql.SESSION, key=write.key)))
    if session is None:
        raise _not_found("session", write.key)
    kept = {key: value for key, value in session.metadata.items() if key not in write.deleted}
    changed = msgspec.structs.replace(session, metadata={**kept, **write.values})
    encoded = _encode_session(changed)["metadata"]
    (row,) = yield context.bind(context.dialect.SET_SESSION_METADATA, key=write.key, metadata=encoded, now=context.now)
    return tables.SESSIONS.decode(row)


def _name_session(context: WriteContext, write: store.NameSession) -> Steps[store.Session | None]:
    names = {"label": clean_text(write.label), "replaces": clean_text(write.replaces)}
    return tables.SESSIONS.first((yield context.bind(sql.NAME_SESSION, key=write.key, now=context.now, **names)))


def _drop_session(context: WriteContext, write: store.DropSession) -> Steps[None]:
    if (yield context.bind(sql.HAS_OPEN_RUN, session=write.key)):
        raise Conflict(f"session {write.key!r} has an open run: cancel it first")
    for statement in (*context.dialect.DROP_ROWS, *sql.DROP_SESSION_ROWS):
        yield context.bind(statement, session=write.key)
    if not (yield context.bind(sql.DROP_SESSION, session=write.key)):
        raise _not_found("session", write.key)


def _add_messages_of(context: WriteContext, writes: Sequence[store.AddMessage]) -> Steps[list[store.StoredMessage]]:
    """Add messages of one session."""
    found: list[store.StoredMessage] = []
    new: list[store.StoredMessage] = []
    for write in writes:
        number = tables.message_number(context.tenant, write.session, write.id)
        named = {"session": write.session, "id": write.id, "id_number": number}
        body, place = pack_value(write.body), len(new) + 1
        rows = yield context.bind(context.dialect.ADD_MESSAGE, **named, run_id=write.run_id, body=body, place=place)
        if rows:
            ((seq,),) = rows
            message = store.StoredMessage(write.session, seq, write.id, write.run_id, write.body)
            new.append(message)
        else:
            message = tables.MESSAGES.first((yield context.bind(sql.MESSAGE_OF_ID, **named)))
            if message is None:
                raise _not_found("session", write.session)
        found.append(message)
    if new:
        session = new[-1].session
        ((is_recent,),) = yield context.bind(context.dialect.SET_LAST_MESSAGE, session=session, seq=new[-1].seq)
        if not is_recent or not all([message.run_id for message in new]):
            yield context.bind(sql.SET_UPDATED_AT, session=session)
    return found


def _replace_message(context: WriteContext, write: store.ReplaceMessage) -> Steps[store.StoredMessage]:
    named = {"session": write.session, "seq": write.seq, "body": pack_value(write.body)}
    replaced = tables.MESSAGES.first((yield context.bind(sql.REPLACE_MESSAGE, **named)))
    if replaced is None:
        raise _not_found("message", str(write.seq))
    return replaced


def _add_messages(context: WriteContext, write: store.AddMessages) -> Steps[None]:
    rows = yield context.bind(sql.NEXT_MESSAGES, session=write.session, count=len(write.messages))
    if not rows:
        raise _not_found("session", write.session)
    ((seq,),) = rows
    for batch in split_batches(write.messages, tables.EVENT_BATCHES):
        numbers: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for n, (id, body) in enumerate(batch):
            seq += 1
            numbers[f"id_number{n}"] = tables.message_number(context.tenant, write.session, id)
            values |= {f"seq{n}": seq, f"id{n}": id, f"body{n}": pack_value(body)}
        known = yield context.bind(sql.known_messages(len(batch)), session=write.session, **numbers)
        counts = Counter([id for id, _ in batch]) + Counter({id for (id,) in known})
        for id, _ in batch:
            if counts[id] > 1:
                raise Conflict(f"session {write.session!r} already has message {id!r}")
        yield context.bind(sql.add_messages(len(batch)), session=write.session, **numbers, **values)


def _drop_messages(context: WriteContext, write: store.DropMessages) -> Steps[None]:
    if (yield context.bind(sql.HAS_OPEN_RUN, session=write.session)):
        raise Conflict(f"session {write.session!r} has an open run: cancel it first")
    yield context.bind(sql.DROP_MESSAGES, session=write.session, after=write.after)


# Runs


def find_run_by_key(context: WriteContext, write: store.AcceptRun) -> Steps[store.RunRow | None]:
    """Return the run that was accepted under the same idempotency key, if any."""
    rows = yield context.bind(sql.RUN_BY_KEY, session=write.session, idempotency_key=write.idempotency_key)
    existing = tables.RUNS.first(rows)
    if existing is not None and existing.fingerprint != write.fingerprint:
        raise Conflict(f"idempotency key {write.idempotency_key!r} was used before for another request")
    return existing


def _accept_run(context: WriteContext, write: store.AcceptRun) -> Steps[store.RunRow]:
    rows = yield context.bind(context.dialect.NEXT_RUN, session=write.session)
    if not rows:
        raise _not_found("session", write.session)
    ((place,),) = rows
    return (yield from _add_run(context, write, place, 0))


def _put_and_accept(
    context: WriteContext, put: store.PutSession, accept: store.AcceptRun, *, is_claimed: bool
) -> Steps[Sequence[Any]]:
    """Put a session, accept a run of it, and claim that if it starts in this process."""
    session, place = yield from _put_session_of(context, put, 1)
    run = yield from _add_run(context, accept, place, FIRST_OWNER if is_claimed else 0)
    if not is_claimed:
        return session, run
    context.note_end(run.id, 0, START)
    return session, run, FIRST_OWNER


def _add_run(context: WriteContext, write: store.AcceptRun, place: int, epoch: int) -> Steps[store.RunRow]:
    """Add a run at a place of its session, with an owner or 0; return it as it was accepted."""
    run = new_run(context, write)
    rows = yield context.bind(context.dialect.ADD_RUN, **tables.RUNS.values(run) | {"epoch": epoch}, place=place)
    if not rows:
        raise Conflict(f"run {write.id!r} already exists")
    ((status,),) = rows
    if write.at_once and status == "queued":
        raise SessionBusy(f"session {write.session!r} has a running turn: wait for it or cancel it")
    return msgspec.structs.replace(run, status=status)


def new_run(context: WriteContext, write: store.AcceptRun) -> store.RunRow:
    """Return the row of a new run; the database decides on its status."""
    given = {name: getattr(write, name) for name in _RUN_FIELDS}
    return store.RunRow(**given, status="queued", created_at=context.now, tenant=context.tenant)


def _claim_run(context: WriteContext, write: store.ClaimRun) -> Steps[int]:
    rows = yield context.bind(context.dialect.CLAIM_RUN, run_id=write.run_id)
    if not rows:
        yield from _raise_ended(context, write.run_id)
    ((epoch,),) = rows
    if epoch == FIRST_OWNER:
        context.note_end(write.run_id, 0, START)
    return epoch


def _set_run(context: WriteContext, write: store.SetRun) -> Steps[str | None]:
    ends = write.status not in store.OPEN
    error, ended_at = clean_text(write.error), context.now if ends else None
    named = {"run_id": write.run_id, "epoch": write.epoch, "status": write.status}
    rows: list[tables.Row] = []
    if write.status != "queued":
        rows = yield context.bind(context.dialect.SET_RUN, **named, error=error, ended_at=ended_at, ends=ends)
    if not rows:
        yield from _raise_not_set(context, write)
    ((session, has_queued),) = rows
    if ends:
        context.drop_end(write.run_id)
    started = (yield context.bind(context.dialect.START_NEXT, session=session)) if ends and has_queued else []
    return next((id for (id,) in started), None)


def _raise_not_set(context: WriteContext, write: store.SetRun) -> Steps[None]:
    run = tables.RUNS.first((yield context.bind(sql.RUN, run_id=write.run_id)))
    if run is None:
        raise _not_found("run", write.run_id)
    check_owner(run.id, run.status, run.epoch, write.epoch)
    if write.status == "queued":
        raise Conflict(f"run {run.id!r} is {run.status} and cannot return to the queue")
    raise SessionBusy(f"session {run.session!r} has an active run: {run.id!r} must wait")


def _merge_run(context: WriteContext, write: store.MergeRun) -> Steps[store.RunRow]:
    rows = yield context.bind(sql.MERGE_RUN, run_id=write.run_id)
    if not rows:
        existing = yield context.bind(sql.RUN, run_id=write.run_id)
        raise Conflict(f"run {write.run_id!r} is not queued") if existing else _not_found("run", write.run_id)
    return tables.RUNS.decode(rows[0])


def _stop_run(context: WriteContext, write: store.StopRun) -> Steps[store.RunRow]:
    rows = yield context.bind(sql.STOP_RUN, run_id=write.run_id)
    if not rows:
        yield from _raise_ended(context, write.run_id)
    return tables.RUNS.decode(rows[0])


def _raise_ended(context: WriteContext, run_id: str) -> Steps[None]:
    existing = yield context.bind(sql.RUN, run_id=run_id)
    raise _run_ended_error(run_id) if existing else _not_found("run", run_id)


def _add_journal(context: WriteContext, write: store.AddJournal) -> Steps[store.JournalRow]:
    """Append a step to the cached end of the journal; if the cache is outdated, read the end."""
    run_id, end = write.run_id, context.chain_end(write.run_id)
    owner = {"run_key": tables.run_key(run_id), "epoch": write.epoch}
    while True:
        seq, hash = end if end is not None else (yield from _read_journal_end(context, write))
        previous = tables.unpack_hash(hash)
        step = journal_row(run_id, seq + 1, write.kind, write.key, context.now, previous, write.payload)
        if (yield context.bind(context.dialect.ADD_JOURNAL, **tables.JOURNAL.values(step), **owner, end_hash=hash)):
            context.note_end(run_id, step.seq, step.hash)
            return step
        if end is None:
            raise Conflict(f"the journal of run {run_id!r} already has {write.kind} {write.key!r}")
        end = None


def _read_journal_end(context: WriteContext, write: store.AddJournal) -> Steps[tuple[int, str]]:
    """Return the last step of a journal as it is stored, if the run may be continued."""
    run_id = write.run_id
    rows = yield context.bind(context.dialect.JOURNAL_END, run_id=run_id, run_key=tables.run_key(run_id))
    if not rows:
        raise _not_found("run", run_id)
    ((status, epoch, seq, hash),) = rows
    check_owner(run_id, status, epoch, write.epoch)
    return seq or 0, hash or START


def _reserve_events(context: WriteContext, write: store.ReserveEvents) -> Steps[int]:
    if not 0 <= write.count <= MAX_RESERVED_EVENTS:
        raise StoreError(f"expected 0 to {MAX_RESERVED_EVENTS} events to reserve, got {write.count}")
    rows = yield context.bind(
        context.dialect.RESERVE_EVENTS, run_id=write.run_id, count=write.count, taken=int(write.takes)
    )
    if not rows:
        raise _not_found("run", write.run_id)
    ((last, epoch),) = rows
    _check_epoch("run", write.run_id, epoch, write.epoch)
    if last > MAX_RESERVED_EVENTS:
        raise StoreError(f"run {write.run_id!r} has reserved all of its {MAX_RESERVED_EVENTS} events")
    return last


def _add_events(context: WriteContext, write: store.AddEvents) -> Steps[None]:
    rows = yield context.bind(sql.RESERVED_EVENTS, run_id=write.run_id)
    if not rows:
        raise _not_found("run", write.run_id)
    ((reserved, epoch),) = rows
    _check_epoch("run", write.run_id, epoch, write.epoch)
    for seq, _ in write.events:
        if not 0 < seq <= reserved:
            raise Conflict(f"event {seq} of run {write.run_id!r} is not reserved: the last one is {reserved}")
    for batch in split_batches(write.events, tables.EVENT_BATCHES):
        values: dict[str, Any] = {"run_key": tables.run_key(write.run_id)}
        for n, (seq, body) in enumerate(batch):
            values[f"seq{n}"], values[f"body{n}"] = seq, body
        yield context.bind(context.dialect.add_events(len(batch)), run_id=write.run_id, **values)


# Audit log, limits, approvals, usage


def _add_audit(context: WriteContext, write: store.AddAudit) -> Steps[store.AuditRow]:
    """Append an entry to the cached end of the log. If another process has continued it, read the end."""
    end = context.chain_end(_AUDIT_LOG)
    while True:
        seq, hash = end if end is not None else (yield from _read_audit_end(context))
        if context.audit_key is None and hash.startswith("hmac:"):
            raise StoreError(
                "the audit log is signed, but this process has no key: set audit_key as in the other processes"
            )
        row = audit_row(seq + 1, hash, write.entry, context.audit_key)
        if (yield context.bind(context.dialect.ADD_AUDIT, **tables.AUDIT.values(row))):
            context.note_end(_AUDIT_LOG, row.seq, row.hash)
            return row
        if end is None:
            raise StoreError("the end of the audit log changed while an entry was added")
        end = None


def _read_audit_end(context: WriteContext) -> Steps[tuple[int, str]]:
    rows = yield context.bind(sql.AUDIT_END)
    seq, hash = rows[0] if rows else (0, START)
    return seq, hash


def _reserve(context: WriteContext, write: store.Reserve) -> Steps[int]:
    rows: list[tables.Row] = []
    if write.limit > 0:
        _, latest = days_ahead(write.day)
        rows = yield context.bind(sql.RESERVE, agent_id=write.agent_id, day=write.day, latest=latest, limit=write.limit)
    if not rows:
        raise DailyLimitExceeded(f"agent {write.agent_id!r} has used all of its {write.limit} calls on {write.day}")
    ((used,),) = rows
    return used


def _release(context: WriteContext, write: store.Release) -> Steps[int]:
    _, latest = days_ahead(write.day)
    rows = yield context.bind(sql.RELEASE, agent_id=write.agent_id, day=write.day, latest=latest)
    return next((used for (used,) in rows), 0)


def _reserve_budget(context: WriteContext, write: store.ReserveBudget) -> Steps[int]:
    counts: list[BudgetCount] = []
    for budget in write.budgets:
        rows = yield from _read_budget(context, budget)
        counts.append(BudgetCount.read(rows, write.run_id))
    granted = grant(write, counts)
    amounts = add_amounts(write.base, write.unit, granted)
    expires_at = context.now + write.lease if write.lease else None
    for budget in write.budgets:
        yield from _add_to_budget(context, budget, write.run_id, amounts, expires_at)
    return granted


def _read_budget(context: WriteContext, budget: store.BudgetLimit) -> Steps[list[store.BudgetRow]]:
    named = {"key": budget.key, "period": budget.period}
    rows = tables.BUDGETS.all((yield context.bind(sql.BUDGET_ROWS, **named)))
    if not rows and budget.key == TENANT:
        yield from _recount_budget(context, store.RecountBudget(budget.period))
        rows = tables.BUDGETS.all((yield context.bind(sql.BUDGET_ROWS, **named)))
    expired = [row for row in rows if row.expires_at is not None and row.expires_at <= context.now]
    if expired:
        yield context.bind(sql.DROP_EXPIRED, **named)
    return [row for row in rows if row not in expired]


def _add_to_budget(
    context: WriteContext, budget: store.BudgetLimit, run_id: str, amounts: store.Amounts, expires_at: int | None = None
) -> Steps[None]:
    row = store.BudgetRow(budget.key, budget.period, run_id, *amounts, expires_at=expires_at)
    yield context.bind(sql.ADD_TO_BUDGET, **tables.BUDGETS.values(row))


def _settle_budget(context: WriteContext, write: store.SettleBudget) -> Steps[None]:
    for budget in write.budgets:
        returned = store.BudgetRow(budget.key, budget.period, write.run_id, *write.reserved)
        yield context.bind(sql.RETURN_TO_BUDGET, **tables.BUDGETS.values(returned))
        yield from _add_to_budget(context, budget, "", write.used)


def _release_budgets(context: WriteContext, write: store.ReleaseBudgets) -> Steps[None]:
    yield context.bind(sql.RELEASE_BUDGETS, run_id=write.run_id)
    if write.ended:
        yield context.bind(sql.DROP_TURN_BUDGET, key=f"turn/{write.run_id}", run_id=write.run_id)


def _recount_budget(context: WriteContext, write: store.RecountBudget) -> Steps[None]:
    until = f"{write.period}~" if write.period else "9999"
    ((tokens, cost),) = yield context.bind(sql.USAGE_SO_FAR, since=write.period, until=until)
    rows = tables.BUDGETS.all((yield context.bind(sql.BUDGET_ROWS, key=TENANT, period=write.period)))
    counted = rows[0] if rows and not rows[0].run_id else store.BudgetRow(TENANT, write.period)
    missing = (max(0, int(tokens) - counted.tokens), 0, 0, max(0, int(cost) - counted.cost_microcents), 0)
    yield from _add_to_budget(context, store.BudgetLimit(TENANT, write.period, ()), "", missing)


def _put_approval(context: WriteContext, write: store.PutApproval) -> Steps[store.ApprovalRow]:
    new = write.approval
    stored = tables.APPROVALS.first((yield context.bind(sql.PUT_APPROVAL, **tables.APPROVALS.values(new))))
    if stored is not None:
        return stored
    (row,) = yield context.bind(sql.APPROVAL, id=new.id)
    existing = tables.APPROVALS.decode(row)
    if (existing.run_id, existing.call_id, existing.binding) != (new.run_id, new.call_id, new.binding):
        raise Conflict(f"approval {new.id!r} already exists for another call")
    return existing


def _answer_approval(context: WriteContext, write: store.AnswerApproval) -> Steps[store.ApprovalRow]:
    rows = yield context.bind(sql.ANSWER_APPROVAL, id=write.id, answer=write.answer, grants=write.grants)
    if rows:
        return tables.APPROVALS.decode(rows[0])
    if (yield context.bind(sql.APPROVAL, id=write.id)):
        raise Conflict(f"approval {write.id!r} is already answered")
    raise _not_found("approval", write.id)


def _add_usage(context: WriteContext, write: store.AddUsage) -> Steps[None]:
    yield context.bind(sql.ADD_USAGE, **tables.USAGE.values(write.usage))


# Jobs


def _add_job(context: WriteContext, write: store.AddJob) -> Steps[store.JobRow]:
    job = write.job
    existing = tables.JOBS.first((yield context.bind(sql.JOB, id=job.id)))
    if existing is not None:
        return existing
    if write.limit is not None:
        ((count,),) = yield context.bind(sql.COUNT_JOBS, root=job.root)
        if count >= write.limit:
            raise DailyLimitExceeded(f"limit of {write.limit} jobs per message reached: do the rest without delegating")
    new = msgspec.structs.replace(
        job,
        task=clean_text(job.task),
        state="queued",
        attempts=0,
        epoch=0,
        result=None,
        error=None,
        notified=not job.asker_session,
        created_at=context.now,
        ended_at=None,
    )
    (row,) = yield context.bind(sql.ADD_JOB, **tables.JOBS.values(new))
    return tables.JOBS.decode(row)


def _claim_job(context: WriteContext, write: store.ClaimJob) -> Steps[store.JobRow]:
    rows = yield context.bind(sql.CLAIM_JOB, id=write.id)
    if rows:
        return tables.JOBS.decode(rows[0])
    raise _job_ended_error((yield from _read_job(context, write.id)))


def _set_job(context: WriteContext, write: store.SetJob) -> Steps[store.JobRow]:
    job = yield from _read_job(context, write.id)
    _check_epoch("job", job.id, job.epoch, write.epoch)
    if job.state not in store.OPEN_JOB:
        raise _job_ended_error(job)
    (row,) = yield context.bind(
        sql.SET_JOB,
        id=write.id,
        state=write.state,
        epoch=job.epoch + (write.epoch is None),
        result=clean_text(write.result),
        error=clean_text(write.error),
        due_at=write.due_at,
        ended_at=None if write.state in store.OPEN_JOB else context.now,
    )
    return tables.JOBS.decode(row)


def _retry_job(context: WriteContext, write: store.RetryJob) -> Steps[store.JobRow]:
    job = yield from _read_job(context, write.id)
    if job.state in (*store.OPEN_JOB, "done"):
        raise Conflict(f"job {job.id!r} is {job.state} and cannot be retried")
    (row,) = yield context.bind(sql.RETRY_JOB, id=job.id, more=write.more, notified=not job.asker_session)
    return tables.JOBS.decode(row)


def _mark_job_notified(context: WriteContext, write: store.MarkJobNotified) -> Steps[None]:
    yield from _read_job(context, write.id)
    yield context.bind(sql.MARK_JOB_NOTIFIED, id=write.id, attempts=write.attempts)


def _read_job(context: WriteContext, id: str) -> Steps[store.JobRow]:
    job = tables.JOBS.first((yield context.bind(sql.JOB, id=id)))
    if job is None:
        raise _not_found("job", id)
    return job


# Records


def _put_record(context: WriteContext, write: store.PutRecord) -> Steps[store.StoredRecord]:
    if write.version is not None:
        existing = tables.RECORDS.first((yield context.bind(sql.RECORD, kind=write.kind, key=write.key)))
        version = existing.version if existing is not None else 0
        if write.version != version:
            raise Conflict(f"{write.kind} {write.key!r} was changed: expected version {write.version}, got {version}")
    (row,) = yield context.bind(sql.PUT_RECORD, kind=write.kind, key=write.key, body=write.body)
    return tables.RECORDS.decode(row)


def _drop_record(context: WriteContext, write: store.DropRecord) -> Steps[None]:
    if not (yield context.bind(sql.DROP_RECORD, kind=write.kind, key=write.key)):
        raise _not_found(write.kind, write.key)


# Documents


def _put_document(context: WriteContext, write: store.PutDocument) -> Steps[store.Document]:
    new = write.document
    yield from _remove_document(context, new.kind, new.id, None)
    count = len(write.passages)
    document = msgspec.structs.replace(new, title=clean_text(new.title), passages=count, created_at=context.now)
    yield context.bind(sql.PUT_DOCUMENT, **tables.DOCUMENTS.values(document))
    yield from _insert_passages(context, document, 0, write.passages)
    return document


def _add_passages(context: WriteContext, write: store.AddPassages) -> Steps[store.Document]:
    added = len(write.passages)
    rows = yield context.bind(sql.GROW_DOCUMENT, kind=write.kind, id=write.id, added=added, hash=write.hash)
    document = tables.DOCUMENTS.first(rows)
    if document is None:
        raise _not_found("document", write.id)
    yield from _insert_passages(context, document, document.passages - added, write.passages)
    return document


def _drop_document(context: WriteContext, write: store.DropDocument) -> Steps[None]:
    if not (yield from _remove_document(context, write.kind, write.id, write.collection)):
        raise _not_found("document", write.id)


def _remove_document(context: WriteContext, kind: str, id: str, collection: str | None) -> Steps[bool]:
    scope = {"kind": kind, "any": collection is None, "collection": collection or ""}
    dropped = yield context.bind(sql.DROP_DOCUMENT, id=id, **scope)
    for (model,) in dropped:
        ((vectors,),) = yield context.bind(sql.COUNT_VECTORS, kind=kind, id=id)
        yield context.bind(sql.DROP_PASSAGES, kind=kind, id=id)
        yield context.bind(sql.LIBRARY_CHANGED, kind=kind, model=model, vectors=-vectors)
    return bool(dropped)


def _insert_passages(
    context: WriteContext, document: store.Document, first: int, passages: Sequence[store.Passage]
) -> Steps[None]:
    shared = {
        "kind": document.kind,
        "document": document.id,
        "collection": document.collection,
        "owners": owner_words(context.tenant, document.kind, document.collection),
        "model": document.model,
    }
    for batch in split_batches(list(enumerate(passages, first)), _PASSAGE_BATCHES):
        values: dict[str, Any] = {}
        for n, (place, passage) in enumerate(batch):
            row = msgspec.structs.asdict(passage) | {
                "place": place,
                "heading": clean_text(passage.heading),
                "text": clean_text(passage.text),
                "vector": Vector(passage.vector) if passage.vector else None,
            }
            values |= {f"{name}{n}": value for name, value in row.items()}
        yield context.bind(sql.add_passages(len(batch)), **shared, **values)
    vectors = sum(1 for passage in passages if passage.vector)
    yield context.bind(sql.LIBRARY_CHANGED, kind=document.kind, model=document.model, vectors=vectors)


# Retention


def _prune(context: WriteContext, write: store.Prune) -> Steps[store.Pruned]:
    if write.what == "counters":
        return (yield from _prune_counters(context, write))
    found = yield context.bind(sql.PRUNABLE_RUNS[write.what], before=write.before, runs=write.runs)
    runs = rows = size = 0
    for (run_id,) in found:
        left = write.limit - rows
        if left <= 0:
            break
        keys = {"run_id": run_id, "run_key": tables.run_key(run_id)}
        dropped = yield context.bind(context.dialect.PRUNE_ROWS[write.what], **keys, limit=left)
        rows += sum([count for _, count in dropped])
        size += sum([length for length, _ in dropped])
        if len(dropped) < left:
            yield context.bind(sql.MARK_PRUNED[write.what], run_id=run_id)
            if write.what == "journal":
                yield context.bind(sql.DROP_BUDGET, key=f"turn/{run_id}")
            runs += 1
    return store.Pruned(runs, rows, size)


def _prune_counters(context: WriteContext, write: store.Prune) -> Steps[store.Pruned]:
    rows, day = 0, utc_day(write.before / 1000)
    for statement in sql.PRUNE_COUNTERS:
        rows += len((yield context.bind(statement, day=day, limit=write.limit - rows)))
    return store.Pruned(0, rows)


# Checks


def check_owner(run_id: str, status: str, epoch: int, claimed: int) -> None:
    _check_epoch("run", run_id, epoch, claimed)
    if status not in store.OPEN:
        raise _run_ended_error(run_id)


def _check_epoch(what: str, id: str, epoch: int, claimed: int | None) -> None:
    if claimed is not None and epoch != claimed:
        raise StaleOwner(f"{what} {id!r} has a new owner: its epoch is {epoch}, got {claimed}")


def _not_found(what: str, id: str) -> NotFound:
    return NotFound(f"not found: {what} {id!r}")


def _run_ended_error(run_id: str) -> Conflict:
    return Conflict(f"run {run_id!r} has ended")


def _job_ended_error(job: store.JobRow) -> Conflict:
    return Conflict(f"job {job.id!r} has ended: its state is {job.state!r}")


_STEPS: dict[type, Callable[[WriteContext, Any], Steps[Any]]] = {
    store.PutSession: _put_session,
    store.SetSessionMetadata: _set_session_metadata,
    store.NameSession: _name_session,
    store.DropSession: _drop_session,
    store.AddMessages: _add_messages,
    store.DropMessages: _drop_messages,
    store.ReplaceMessage: _replace_message,
    store.AcceptRun: _accept_run,
    store.ClaimRun: _claim_run,
    store.SetRun: _set_run,
    store.MergeRun: _merge_run,
    store.StopRun: _stop_run,
    store.AddJournal: _add_journal,
    store.AddAudit: _add_audit,
    store.Reserve: _reserve,
    store.Release: _release,
    store.ReserveBudget: _reserve_budget,
    store.SettleBudget: _settle_budget,
    store.ReleaseBudgets: _release_budgets,
    store.RecountBudget: _recount_budget,
    store.PutApproval: _put_approval,
    store.AnswerApproval: _answer_approval,
    store.ReserveEvents: _reserve_events,
    store.AddEvents: _add_events,
    store.AddUsage: _add_usage,
    store.PutDocument: _put_document,
    store.AddPassages: _add_passages,
    store.DropDocument: _drop_document,
    store.AddJob: _add_job,
    store.ClaimJob: _claim_job,
    store.SetJob: _set_job,
    store.RetryJob: _retry_job,
    store.MarkJobNotified: _mark_job_notified,
    store.PutRecord: _put_record,
    store.DropRecord: _drop_record,
    store.Prune: _prune,
    store.RefreshIndexes: refresh_indexes,
}
