"""Check of stored rows: find those that cannot be decoded, save their bytes, and isolate them.

A gateway works beside such rows. Isolating them ends their runs and removes them from what the gateway reads.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from atlas_agents.agents.run import decode_options
from atlas_agents.core import store as records
from atlas_agents.core.approvals import Question
from atlas_agents.core.errors import UnreadableRow
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, ToolResult
from atlas_agents.core.paths import write_file
from atlas_agents.tools.journal import EndRecord, HookRecord, read_first_messages

RowKind: TypeAlias = Literal["message", "request", "step", "approval", "schedule"]
_PAGE = 200
_schedules = msgspec.json.Decoder(records.Schedule)
_questions = msgspec.json.Decoder(Question)
_plain = msgspec.json.Decoder[Any]()
_STEPS: dict[str, msgspec.json.Decoder[Any]] = {
    "reply": msgspec.json.Decoder(Message),
    "outcome": msgspec.json.Decoder(ToolResult),
    "hook": msgspec.json.Decoder(HookRecord),
    "asked": _questions,
}


class Unreadable(msgspec.Struct, frozen=True):
    """A row that cannot be decoded. `key` identifies it within its kind: a session, a run or the name of a record."""

    tenant: str
    kind: RowKind
    key: str
    number: int
    problem: str
    body: bytes

    def __str__(self) -> str:
        where = f"of tenant {self.tenant!r}" if self.tenant != "default" else ""
        match self.kind:
            case "message":
                name = f"message {self.number} of session {self.key!r}"
            case "step":
                name = f"step {self.number} of run {self.key!r}"
            case "request" | "approval":
                name = f"the {self.kind} of run {self.key!r}"
            case _:
                name = f"{self.kind} {self.key!r}"
        return f"{name} {where}".rstrip() + f": {self.problem}"


async def find_unreadable(store: records.Store, tenants: Sequence[str]) -> AsyncGenerator[Unreadable, None]:
    """Yield the rows that cannot be decoded: messages, schedules, and open runs with their steps and approvals."""
    for tenant in tenants:
        async for found in _unreadable_messages(store, tenant):
            yield found
        for row in await store.records(tenant, "schedule"):
            if problem := _problem(_schedules.decode, row.body):
                yield Unreadable(tenant, "schedule", row.key, 0, problem, row.body)
        for row in await store.pending_approvals(tenant):
            if problem := _problem(_questions.decode, row.question):
                yield Unreadable(tenant, "approval", row.run_id, 0, problem, row.question)
    async for found in _unreadable_runs(store):
        yield found


async def isolate(store: records.Store, found: Sequence[Unreadable], saved: Path) -> None:
    """Save the bytes of unreadable rows to a file, then replace messages by a note, end runs and remove records."""
    write_file(saved, b"".join(encode(row) + b"\n" for row in found))  # bytes are encoded as base64
    runs = {row.id: row for row in await store.orphaned_runs()}
    for row in found:
        match row.kind:
            case "message":
                (stored,) = await store.messages(row.tenant, row.key, after=row.number - 1, limit=1)
                body = stored.message.to_json()
                await store.commit(row.tenant, [records.ReplaceMessage(row.key, row.number, body)])
            case "schedule":
                await store.commit(row.tenant, [records.DropRecord("schedule", row.key)])
            case _:
                if (run := runs.pop(row.key, None)) is not None:
                    await end_run(store, run, f"{row}; it was ended by `atlas store check --repair`")


async def end_run(store: records.Store, row: records.RunRow, reason: str) -> None:
    """End a run under a new owner epoch, so that its former owner can no longer write."""
    epoch = row.epoch + 1
    ended = records.AddJournal(row.id, epoch, "ended", "", encode(EndRecord("failed", reason)))
    writes = [records.ClaimRun(row.id), ended, records.SetRun(row.id, epoch, "failed", reason)]
    await store.commit(row.tenant, writes)


async def _unreadable_messages(store: records.Store, tenant: str) -> AsyncGenerator[Unreadable, None]:
    before: int | None = None
    while sessions := await store.sessions(tenant, limit=_PAGE, before=before):
        before = sessions[-1].updated_at
        for session in sessions:
            after = 0
            while rows := await store.messages(tenant, session.key, after=after, limit=_PAGE):
                after = rows[-1].seq
                for row in rows:
                    if problem := _problem(Message.from_json, row.body):
                        yield Unreadable(tenant, "message", row.session, row.seq, problem, row.body)


async def _unreadable_runs(store: records.Store) -> AsyncGenerator[Unreadable, None]:
    for row in await store.open_runs():
        if problem := _request_problem(row):
            yield Unreadable(row.tenant, "request", row.id, 0, problem, row.request)
        for step in await store.journal(row.tenant, row.id):
            if problem := _problem(_STEPS.get(step.kind, _plain).decode, step.payload):
                yield Unreadable(row.tenant, "step", row.id, step.seq, problem, step.payload)


def _request_problem(row: records.RunRow) -> str:
    try:
        decode_options(row)
        read_first_messages(row)
    except UnreadableRow as error:
        return str(error.__cause__)
    return ""


def _problem(decode: Callable[[bytes], object], body: bytes) -> str:
    try:
        decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return str(error)
    return ""
