"""The store port: what is kept, and the two verbs that keep it.

Everything that belongs together is written by one `commit`: all of it or nothing, and durable when the call returns.
Every row has a tenant, and no verb can name two of them, the recovery at a start (`open_runs`) and the list of tenants
apart.
"""

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from atlas_agents.core.forgetting import Forget, Forgettable, Forgotten
from atlas_agents.core.jobs import AddJob, ClaimJob, JobRow, JobState, RetryJob, SetJob, TellJob
from atlas_agents.core.records import DropRecord, PutRecord, Record, RecordKind
from atlas_agents.core.shelves import AddPassages, Document, DropDocument, Hit, Kind, PassageRow, PutDocument, Where

RunStatus: TypeAlias = Literal["queued", "running", "waiting", "done", "failed", "cancelled"]
OPEN: tuple[RunStatus, ...] = ("queued", "running", "waiting")
JournalKind: TypeAlias = Literal["accepted", "resumed", "reply", "intent", "outcome", "asked", "answered", "ended"]


class Session(msgspec.Struct, frozen=True):
    """A conversation that is kept. Times are in milliseconds since 1970, here and below."""

    key: str
    agent_id: str = ""
    label: str = ""
    archived: bool = False
    metadata: dict[str, Any] = {}
    created_at: int = 0
    updated_at: int = 0


class StoredMessage(msgspec.Struct, frozen=True):
    """A message in its place; `body` is the message's own JSON, byte for byte."""

    session: str
    seq: int
    id: str
    run_id: str
    body: bytes


class RunRow(msgspec.Struct, frozen=True):
    """A turn, from its acceptance on. `epoch` rises with every owner; who holds an older one cannot write."""

    id: str
    session: str
    agent_id: str
    status: RunStatus
    epoch: int = 0
    user: str = ""
    idempotency_key: str = ""
    request: bytes = b""
    """What is to be done, as JSON: all that a process needs to begin it that has never heard of it."""
    error: str | None = None
    created_at: int = 0
    ended_at: int | None = None
    tenant: str = "default"
    fingerprint: str = ""
    """What a repeated idempotency key must match."""
    events: int = 0
    """No event of this run has a number above this one: they are reserved before they are used."""
    urgency: int = 1
    """Of runs that nobody is at, a higher one is begun before a lower one; the words are `core.jobs.PRIORITIES`."""
    stop: bool = False
    """Somebody wants it stopped; whoever is at it, or takes it on, is to end it."""


class JournalRow(msgspec.Struct, frozen=True):
    """One step of a run: `key` names what it is about (a call's id, the number of a reply); `payload` is JSON."""

    run_id: str
    seq: int
    kind: JournalKind
    key: str
    payload: bytes
    at: int
    previous: str
    hash: str


class AuditRow(msgspec.Struct, frozen=True):
    """An audit entry (JSON) in its tenant's chain."""

    seq: int
    entry: bytes
    previous: str
    hash: str


class EventRow(msgspec.Struct, frozen=True):
    """What a run said, at its place among all it said; `body` is JSON."""

    run_id: str
    seq: int
    body: bytes


class ApprovalRow(msgspec.Struct, frozen=True):
    """A question to a person, bound by hash to the exact bytes; it outlives the process."""

    id: str
    run_id: str
    session: str
    call_id: str
    binding: str
    question: bytes
    expires_at: int
    created_at: int
    answer: bytes | None = None
    answered_at: int | None = None
    grants: str = ""
    """The hash that the answer allows for longer than once, if it does."""


class UsageRow(msgspec.Struct, frozen=True):
    """Tokens and cost, summed over the rows that share these names."""

    day: str
    session: str
    agent_id: str
    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_microcents: int = 0
    turns: int = 0


class PutSession(msgspec.Struct, frozen=True, tag=True):
    """Make a session, or change one: what is None stays. The session is the result."""

    key: str
    agent_id: str | None = None
    label: str | None = None
    archived: bool | None = None
    metadata: dict[str, Any] | None = None


class DropSession(msgspec.Struct, frozen=True, tag=True):
    """Remove a session with its messages, runs, journals, events and approvals; the audit log and the usage stay.

    `Conflict` while a run is open.
    """

    key: str


class AddMessage(msgspec.Struct, frozen=True, tag=True):
    """Put a message at the end of a session; its row is the result.

    Adding the same id to the same session again changes nothing, and the row is the first one. A session that is not
    there is `NotStored`, here and below.
    """

    session: str
    id: str
    body: bytes
    run_id: str = ""


class AcceptRun(msgspec.Struct, frozen=True, tag=True):
    """Accept a turn: running at once if its session is idle, else queued behind the others, or `SessionBusy` if it must
    be `at_once`. Its row is the result.

    With an idempotency key that the session has seen, nothing of the whole commit is written: the known run is the
    result and None stands for every other write, unless its fingerprint was another: then `Conflict`.
    """

    id: str
    session: str
    agent_id: str
    user: str = ""
    idempotency_key: str = ""
    fingerprint: str = ""
    request: bytes = b""
    at_once: bool = False
    urgency: int = 1


class ClaimRun(msgspec.Struct, frozen=True, tag=True):
    """Become the owner of an open run: its epoch rises by one and is the result. One that has ended is `Conflict`."""

    run_id: str


class SetRun(msgspec.Struct, frozen=True, tag=True):
    """Change an open run's status; only its owner may, who else tries is `Fenced`. Ending one starts the next queued
    run of its session, whose id is the result. `Conflict` if it has ended, would go back into the queue, or would be
    the second active one of its session."""

    run_id: str
    epoch: int
    status: RunStatus
    error: str | None = None


class StopRun(msgspec.Struct, frozen=True, tag=True):
    """Want an open run stopped; its row is the result. One that waits in the queue is cancelled by this alone, another
    one by its owner. One that has ended is `Conflict`."""

    run_id: str


class AddJournal(msgspec.Struct, frozen=True, tag=True):
    """Append a step; only the owner may. Its row is the result. The same kind and key twice in a run is `Conflict`, and
    so is a step after the end."""

    run_id: str
    epoch: int
    kind: JournalKind
    key: str
    payload: bytes


class AddAudit(msgspec.Struct, frozen=True, tag=True):
    """Append an entry to the tenant's chain; its row is the result."""

    entry: bytes


class Reserve(msgspec.Struct, frozen=True, tag=True):
    """Count one more call of an agent on a day; the count is the result. Over the limit it is `LimitSpent`.

    Where a day or two later was counted already, the clock was put back, and that day goes on.
    """

    agent_id: str
    day: str
    limit: int


class Release(msgspec.Struct, frozen=True, tag=True):
    """Take back one that was reserved and not made; the count is the result, and never below zero."""

    agent_id: str
    day: str


class PutApproval(msgspec.Struct, frozen=True, tag=True):
    """Keep a question; its row is the result. Asked again about the same (run, call, binding) the row is the first one,
    with its answer; about something else it is `Conflict`."""

    approval: ApprovalRow


class AnswerApproval(msgspec.Struct, frozen=True, tag=True):
    """Answer a question, once: a second answer is `Conflict`, an unknown one `NotStored`. Its row is the result."""

    id: str
    answer: bytes
    grants: str = ""


class ReserveEvents(msgspec.Struct, frozen=True, tag=True):
    """Reserve so many more numbers for a run's events, of an ended run as well; the last of them is the result.

    Who names an epoch must be the run's owner, or it is `Fenced`, here and below. With `takes` the epoch rises, of an
    ended run as well: whoever owned it can say no more.
    """

    run_id: str
    count: int
    epoch: int | None = None
    takes: bool = False


class AddEvents(msgspec.Struct, frozen=True, tag=True):
    """Keep events of a run under reserved numbers, `(seq, body)` each; one that is there already stays as it is."""

    run_id: str
    events: tuple[tuple[int, bytes], ...]
    epoch: int | None = None


class AddUsage(msgspec.Struct, frozen=True, tag=True):
    """Add to the sums."""

    usage: UsageRow


Write: TypeAlias = (
    PutSession
    | DropSession
    | AddMessage
    | AcceptRun
    | ClaimRun
    | SetRun
    | StopRun
    | AddJournal
    | AddAudit
    | Reserve
    | Release
    | PutApproval
    | AnswerApproval
    | ReserveEvents
    | AddEvents
    | AddUsage
    | PutDocument
    | AddPassages
    | DropDocument
    | AddJob
    | ClaimJob
    | SetJob
    | RetryJob
    | TellJob
    | PutRecord
    | DropRecord
    | Forget
)


class Store(Protocol):
    """SQLite and Postgres behave alike behind this; so does memory."""

    async def open(self) -> None:
        """Connect and bring the schema up to date; StoreError in one clear line if that cannot be."""
        ...

    async def close(self) -> None: ...

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        """Write all of it or nothing; durable when this returns. The results stand in the order of the writes."""
        ...

    async def session(self, tenant: str, key: str) -> Session | None: ...

    async def sessions(self, tenant: str, *, limit: int = 100, before: int | None = None) -> list[Session]:
        """The latest changed first; `before` is the `updated_at` to go on from: no two of a tenant share one."""
        ...

    async def messages(
        self,
        tenant: str,
        session: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        last: bool = False,
    ) -> list[StoredMessage]:
        """In order; of more than `limit` the first ones, or the `last`."""
        ...

    async def run(self, tenant: str, run_id: str) -> RunRow | None: ...

    async def runs(self, tenant: str, session: str, *, open_only: bool = False) -> list[RunRow]:
        """All runs of a session, or those that have not ended, in the order they were accepted."""
        ...

    async def open_runs(self) -> list[RunRow]:
        """Every run of every tenant that has not ended: for the start after a stop of any kind."""
        ...

    async def journal(self, tenant: str, run_id: str) -> list[JournalRow]: ...

    async def audit(
        self, tenant: str, *, after: int = 0, limit: int | None = None, last: bool = False
    ) -> list[AuditRow]:
        """In order; of more than `limit` the first ones, or the `last`."""
        ...

    async def approval(self, tenant: str, id: str) -> ApprovalRow | None: ...

    async def pending_approvals(self, tenant: str) -> list[ApprovalRow]:
        """Questions of open runs that nobody has answered, the oldest first."""
        ...

    async def grants(self, tenant: str, binding: str) -> list[ApprovalRow]:
        """Answered questions that allow this hash for longer than once."""
        ...

    async def events(self, tenant: str, run_id: str, *, after: int = 0, limit: int | None = None) -> list[EventRow]: ...

    async def counted(self, tenant: str, agent_id: str, day: str) -> int: ...

    async def usage(self, tenant: str, *, since: str = "", until: str = "9999") -> list[UsageRow]:
        """The sums of the days from `since` up to, and without, `until`."""
        ...

    async def document(self, tenant: str, kind: Kind, id: str) -> Document | None: ...

    async def documents(
        self, tenant: str, where: Where, *, after: str = "", limit: int | None = None
    ) -> list[Document]:
        """In the order of their ids; `after` is the id to go on from."""
        ...

    async def passages(self, tenant: str, ids: Sequence[int]) -> list[PassageRow]:
        """Those that are there, in the order of the ids."""
        ...

    async def passages_of(
        self, tenant: str, kind: Kind, document: str, *, after: int = -1, limit: int | None = None
    ) -> list[PassageRow]:
        """Those of one document in their order; `after` is the place to go on from."""
        ...

    async def matching(self, tenant: str, where: Where, words: Sequence[str], *, limit: int = 50) -> list[Hit]:
        """Passages with any of the words, the best first: those with rarer words, more of them, and shorter."""
        ...

    async def nearest(self, tenant: str, where: Where, model: str, vector: bytes, *, limit: int = 50) -> list[Hit]:
        """Passages whose vectors, made by this model, point nearest to where this one does; the score is the cosine."""
        ...

    async def job(self, tenant: str, id: str) -> JobRow | None: ...

    async def jobs(
        self, tenant: str, *, states: Sequence[JobState] = (), limit: int = 100, before: int | None = None
    ) -> list[JobRow]:
        """The latest first, in these states or in any; `before` is the `seq` to go on from."""
        ...

    async def jobs_under(self, tenant: str, parent: str) -> list[JobRow]:
        """Those that were asked for in a job, in order."""
        ...

    async def pending_jobs(self, tenant: str, now: int, *, limit: int = 1000) -> list[JobRow]:
        """All that there is to do: jobs that run, that have ended and are not told of, that are late, and that are due,
        the most urgent ones first."""
        ...

    async def record(self, tenant: str, kind: RecordKind, key: str) -> Record | None: ...

    async def records(self, tenant: str, kind: RecordKind) -> list[Record]:
        """All of a kind, by key."""
        ...

    async def active(self, tenant: str) -> list[tuple[str, str, int]]:
        """Agents and the users for whom they took turns, and when that was last."""
        ...

    async def tokens(self, tenant: str, since: str, until: str) -> int:
        """All tokens, in and out, of the days from `since` up to, and without, `until`."""
        ...

    async def stored(self, tenant: str) -> int:
        """Bytes of messages, journals and events."""
        ...

    async def forgettable(self, tenant: str, what: Forgettable, before: int) -> Forgotten:
        """How much `Forget` would remove in the end."""
        ...

    async def tenants(self) -> list[str]:
        """Every tenant that has a record of itself."""
        ...
