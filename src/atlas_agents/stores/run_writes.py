"""The writes about a run as steps: accepting, claiming and ending it, its journal, its events."""

from typing import Any

from atlas_agents.core.errors import Conflict
from atlas_agents.core.store import (
    OPEN,
    AcceptRun,
    AddEvents,
    AddJournal,
    ClaimRun,
    JournalRow,
    ReserveEvents,
    RunRow,
    SetRun,
    StopRun,
)
from atlas_agents.stores import statements as sql
from atlas_agents.stores.chain import START, journal_row
from atlas_agents.stores.query import Place, Steps, cleaned
from atlas_agents.stores.refusals import (
    busy,
    check_count,
    check_fingerprint,
    check_numbers,
    check_owner,
    check_teller,
    ended,
    no_run,
    no_session,
)
from atlas_agents.stores.rows import run_of

_AT_ONCE = (64, 16, 4, 2, 1)
"""Events are added so many to a statement: few sizes, so that each stays prepared."""


def known_run(place: Place, write: AcceptRun) -> Steps[RunRow | None]:
    """The run that was accepted under this key before, if one was."""
    rows = yield place.ask(sql.KNOWN_RUN, session=write.session, idempotency_key=write.idempotency_key)
    if not rows:
        return None
    known = run_of(rows[0])
    check_fingerprint(known, write)
    return known


def accept_run(place: Place, write: AcceptRun) -> Steps[RunRow]:
    rows = yield place.ask(sql.NEXT_RUN, session=write.session)
    if not rows:
        raise no_session(write.session)
    rows = yield place.ask(
        sql.ADD_RUN,
        id=write.id,
        session=write.session,
        agent_id=write.agent_id,
        user_id=write.user,
        idempotency_key=write.idempotency_key,
        fingerprint=write.fingerprint,
        request=write.request,
        urgency=write.urgency,
        place=rows[0][0],
    )
    if not rows:
        raise Conflict(f"there is a run {write.id!r} already")
    run = run_of(rows[0])
    if write.at_once and run.status == "queued":
        raise busy(write.session)
    return run


def claim_run(place: Place, write: ClaimRun) -> Steps[int]:
    rows = yield place.ask(sql.CLAIM_RUN, run_id=write.run_id)
    if rows:
        return rows[0][0]
    known = yield place.ask(sql.RUN, run_id=write.run_id)
    raise ended(write.run_id) if known else no_run(write.run_id)


def set_run(place: Place, write: SetRun) -> Steps[str | None]:
    rows = yield place.ask(sql.RUN, run_id=write.run_id)
    if not rows:
        raise no_run(write.run_id)
    run = run_of(rows[0])
    check_owner(run.id, run.status, run.epoch, write.epoch)
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


def stop_run(place: Place, write: StopRun) -> Steps[RunRow]:
    rows = yield place.ask(sql.STOP_RUN, run_id=write.run_id)
    if rows:
        return run_of(rows[0])
    known = yield place.ask(sql.RUN, run_id=write.run_id)
    raise ended(write.run_id) if known else no_run(write.run_id)


def add_journal(place: Place, write: AddJournal) -> Steps[JournalRow]:
    rows = yield place.ask(sql.JOURNAL_END, run_id=write.run_id)
    if not rows:
        raise no_run(write.run_id)
    status, epoch, seq, previous = rows[0]
    check_owner(write.run_id, status, epoch, write.epoch)
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


def reserve_events(place: Place, write: ReserveEvents) -> Steps[int]:
    check_count(write)
    rows = yield place.ask(sql.RESERVE_EVENTS, run_id=write.run_id, count=write.count, taken=int(write.takes))
    if not rows:
        raise no_run(write.run_id)
    last, epoch = rows[0]
    check_teller(write, epoch)
    return last


def add_events(place: Place, write: AddEvents) -> Steps[None]:
    rows = yield place.ask(sql.RESERVED_EVENTS, run_id=write.run_id)
    if not rows:
        raise no_run(write.run_id)
    reserved, epoch = rows[0]
    check_teller(write, epoch)
    check_numbers(write, reserved)
    begin = 0
    for size in _AT_ONCE:
        while len(write.events) - begin >= size:
            values: dict[str, Any] = {}
            for n, (seq, body) in enumerate(write.events[begin : begin + size]):
                values[f"seq{n}"], values[f"body{n}"] = seq, body
            yield place.ask(sql.add_events(size), run_id=write.run_id, **values)
            begin += size
