"""Maintenance of stored data: delete expired data, find rows that cannot be decoded, and isolate them.

A gateway tolerates unreadable rows. Isolating them ends their runs, and the gateway no longer reads them.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from atlas_agents.agents.history import KIND as REQUEST_KIND
from atlas_agents.agents.history import StoredContent
from atlas_agents.agents.run import decode_options
from atlas_agents.core import store as records
from atlas_agents.core.aio import SYSTEM_CLOCK, Clock, utc_day
from atlas_agents.core.approvals import Question
from atlas_agents.core.errors import Conflict, NotFound, StoreError, UnreadableRow
from atlas_agents.core.json import encode
from atlas_agents.core.messages import Message, ToolResult
from atlas_agents.core.paths import write_file
from atlas_agents.tools.journal import EndRecord, HookRecord, read_first_messages

RowKind: TypeAlias = Literal["message", "request", "step", "approval", "schedule"]
logger = logging.getLogger(__name__)
KINDS: tuple[records.Prunable, ...] = get_args(records.Prunable)
INTERVAL = 3600.0
"""Seconds between two rounds."""
FIRST_DELAY = 60.0
"""Seconds from the start of the process to the first round."""
_BATCH_DELAY = 0.05
_DAY = 86_400_000
_CLAIM = ("chore", "forget")
"""Kind and key of the record. Released: they must not change."""
_PAGE = 200
_schedules = msgspec.json.Decoder(records.Schedule)
_questions = msgspec.json.Decoder(Question)
_contents = msgspec.json.Decoder(StoredContent)
_plain = msgspec.json.Decoder[Any]()
_STEPS: dict[str, msgspec.json.Decoder[Any]] = {
    "reply": msgspec.json.Decoder(Message),
    "outcome": msgspec.json.Decoder(ToolResult),
    "hook": msgspec.json.Decoder(HookRecord),
    "asked": _questions,
}


class RetentionPolicy(msgspec.Struct, frozen=True):
    """Days to keep the events and the journal of a run after its end, and the counters of a day; 0 means forever."""

    events: int = 30
    journal: int = 0
    counters: int = 62
    """Days to keep budget counters. More than a month, because counters of the current month are always kept."""

    def cutoff(self, what: records.Prunable, now: float) -> int | None:
        """Return the time (milliseconds) before which a run, or a day, must have ended; None to keep all."""
        days: int = getattr(self, what)
        return int(now * 1000) - days * _DAY if days else None


class _Claim(msgspec.Struct, frozen=True):
    """Record of the latest round in the cluster: its start time."""

    at: int


class RetentionJob:
    """Deletes expired events, journals and counters; never audit rows, messages, approvals or usage.

    In a cluster one process at a time runs it.
    """

    def __init__(self, store: records.Store, tenant: str, policy: RetentionPolicy, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._tenant = tenant
        self._policy = policy
        self._clock = clock

    async def run(self) -> None:
        """Run a round every hour until cancelled."""
        wait = FIRST_DELAY
        while any(self._policy.cutoff(what, 0) is not None for what in KINDS):
            await self._clock.sleep(wait)
            wait = INTERVAL
            try:
                await self.run_round()
            except StoreError as error:
                logger.warning("retention round failed, the next one continues: %s", error)

    async def run_round(self) -> bool:
        """Delete expired data, unless another process started a round within the hour. Returns whether it ran.

        A round that takes longer than an hour may overlap with the next; this is harmless.
        """
        if not await self._claim_round():
            return False
        for what in KINDS:
            pruned = await self.prune(what, delay=_BATCH_DELAY)
            if pruned:
                fields = {"runs": pruned.runs, "rows": pruned.rows, "bytes": pruned.size}
                logger.info("expired %s deleted", what, extra={"fields": fields})
        await self._drop_requests()
        return True

    async def _drop_requests(self) -> None:
        """Delete the contents of requests that no process has used since the oldest journals that are kept."""
        cutoff = self._policy.cutoff("journal", self._clock.time())
        if cutoff is None:
            return
        first_day = utc_day(cutoff / 1000 - _DAY / 1000)
        for found in await self._store.records(self._tenant, REQUEST_KIND):
            if _contents.decode(found.body).day < first_day:
                with suppress(NotFound):
                    await self._store.commit(self._tenant, [records.DropRecord(found.kind, found.key)])
                await self._clock.sleep(_BATCH_DELAY)

    async def prune(
        self,
        what: records.Prunable,
        *,
        delay: float = 0.0,
        on_progress: Callable[[records.Pruned], object] | None = None,
    ) -> records.Pruned:
        """Delete now, in small commits with a pause between them. `on_progress` receives the running total."""
        total = records.Pruned()
        cutoff = self._policy.cutoff(what, self._clock.time())
        while cutoff is not None:
            (pruned,) = await self._store.commit(self._tenant, [records.Prune(what, cutoff)])
            if not pruned:
                break
            total += pruned
            if on_progress is not None:
                on_progress(total)
            await self._clock.sleep(delay)
        return total

    async def due(self, what: records.Prunable) -> records.Pruned:
        """Count the rows that `prune` would delete now."""
        cutoff = self._policy.cutoff(what, self._clock.time())
        return records.Pruned() if cutoff is None else await self._store.prunable(self._tenant, what, cutoff)

    async def _claim_round(self) -> bool:
        """Claim the round by compare-and-set on a record. A clock that was set back does not block it forever."""
        now = int(self._clock.time() * 1000)
        found = await self._store.record(self._tenant, *_CLAIM)
        if found is not None and abs(now - msgspec.json.decode(found.body, type=_Claim).at) < INTERVAL * 1000:
            return False
        claim = records.PutRecord(*_CLAIM, msgspec.json.encode(_Claim(now)), found.version if found else 0)
        with suppress(Conflict):
            await self._store.commit(self._tenant, [claim])
            return True
        return False


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
    before, before_key = None, ""
    while sessions := await store.sessions(tenant, limit=_PAGE, before=before, before_key=before_key):
        before, before_key = sessions[-1].updated_at, sessions[-1].key
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
