"""What the processes of a cluster tell each other: that something has happened, never what; the store has that."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.core.jobs import AddJob, ClaimJob, JobRow, RetryJob, SetJob
from atlas_agents.core.store import (
    OPEN,
    AcceptRun,
    AddAudit,
    AddEvents,
    AnswerApproval,
    ClaimRun,
    DropSession,
    PutApproval,
    PutSession,
    RunRow,
    SetRun,
    StopRun,
    Write,
)

Kind: TypeAlias = Literal["begun", "ended", "events", "stop", "asked", "answer", "job", "audit", "session"]
_LONGEST = 7900
"""Bytes; Postgres takes less than 8000."""


class Notice(msgspec.Struct, frozen=True, array_like=True):
    """`id` is a run's, a question's or a job's; of an audit line and of a session it is empty. Of events, `seq`
    is the number of the last one that is written. A session whose name is too long is left out; whoever wants to know
    it asks the store."""

    kind: Kind
    tenant: str
    id: str
    session: str = ""
    seq: int = 0


_decoder = msgspec.json.Decoder(Notice)


def to_json(notice: Notice) -> str:
    text = msgspec.json.encode(notice)
    if len(text) > _LONGEST:
        text = msgspec.json.encode(msgspec.structs.replace(notice, session=""))
    return text.decode()


def from_json(text: str) -> Notice | None:
    """None for what another version says, and this one does not know."""
    try:
        return _decoder.decode(text)
    except msgspec.MsgspecError:
        return None


def notices_of(tenant: str, writes: Sequence[Write], results: Sequence[Any]) -> list[Notice]:
    """What others should know of a commit."""
    pairs = zip(writes, results, strict=True)
    return [notice for write, result in pairs for notice in _notices(tenant, write, result)]


def _notices(tenant: str, write: Write, result: Any) -> Iterable[Notice]:
    match write:
        case AcceptRun(id=id) if _is_new(id, result):
            yield Notice("begun", tenant, id, write.session)
        case SetRun(run_id=id, status=status):
            if status not in OPEN:
                yield Notice("ended", tenant, id)
            if result is not None:
                yield Notice("begun", tenant, result)
        case StopRun(run_id=id) if result is not None:
            yield Notice("stop" if result.status in OPEN else "ended", tenant, id, result.session)
        case AnswerApproval(id=id) if result is not None:
            yield Notice("answer", tenant, id, result.session)
        case PutApproval(approval=asked):
            yield Notice("asked", tenant, asked.id, asked.session)
        case AddEvents(run_id=id, events=events) if events:
            yield Notice("events", tenant, id, seq=events[-1][0])
        case AddJob() | ClaimJob() | SetJob() | RetryJob() if isinstance(result, JobRow):
            yield Notice("job", tenant, result.id)
        case _:
            yield from _records(tenant, write)


def _records(tenant: str, write: Write) -> Iterable[Notice]:
    match write:
        case AddAudit():
            yield Notice("audit", tenant, "")
        case DropSession(key=key):
            yield Notice("session", tenant, "", key)
        case PutSession(key=key) if write != PutSession(key):
            yield Notice("session", tenant, "", key)
        case _:
            pass


def submitted_by(writes: Sequence[Write], results: Sequence[Any]) -> list[str]:
    """Runs whose turn has come by a commit, and that whoever wrote it does not begin itself."""
    claimed = {write.run_id for write in writes if isinstance(write, ClaimRun)}
    found: list[str] = []
    for write, result in zip(writes, results, strict=True):
        if isinstance(write, AcceptRun) and _is_new(write.id, result) and result.status == "running":
            found.append(write.id)
        elif isinstance(write, SetRun) and result is not None:
            found.append(result)
    return [id for id in found if id not in claimed]


def _is_new(id: str, result: Any) -> bool:
    """It is that run, and none that was accepted before under the same key."""
    return isinstance(result, RunRow) and result.id == id
