"""Store port: the rows a store keeps, the writes that change them, and the `Store` protocol.

All writes of one `commit` are applied atomically and are durable when the call returns. Every row belongs to a tenant.
No operation spans two tenants, except `open_runs`, `orphaned_runs` and `tenants`. Times are milliseconds since 1970.
"""

import hashlib
import hmac
import logging
import re
from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, cast, get_args

import msgspec

from atlas_agents.core.messages import Message, Role, Text

logger = logging.getLogger(__name__)

RunStatus: TypeAlias = Literal["queued", "running", "waiting", "done", "failed", "cancelled"]
OPEN: tuple[RunStatus, ...] = ("queued", "running", "waiting")
JournalKind: TypeAlias = Literal[
    "accepted",
    "resumed",
    "summary",
    "reply",
    "steer",
    "hook",
    "intent",
    "outcome",
    "state",
    "asked",
    "answered",
    "ended",
]
JobState: TypeAlias = Literal["queued", "running", "done", "failed", "expired", "cancelled", "dead"]
JobKind: TypeAlias = Literal["delegation", "schedule", "request"]
Priority: TypeAlias = Literal["low", "normal", "high", "urgent"]
PRIORITIES: tuple[Priority, ...] = ("low", "normal", "high", "urgent")
OPEN_JOB: tuple[JobState, ...] = ("queued", "running")
MAX_ATTEMPTS = 5
"""Attempts before a job becomes `dead`. A person can then retry it."""
Missed: TypeAlias = Literal["once", "skip"]
RecordKind: TypeAlias = Literal[
    "schedule", "user", "tenant", "plan", "chore", "pace", "probe", "edit", "device", "oauth", "request"
]
DocumentKind: TypeAlias = Literal["knowledge", "memory"]
Prunable: TypeAlias = Literal["events", "journal", "counters"]
UNREADABLE = "unreadable"
"""Metadata key of the note that replaces a message that cannot be decoded."""
_ROLE = re.compile(rb'"role": ?"(user|assistant)"')


# Rows


class Session(msgspec.Struct, frozen=True):
    """A stored conversation.

    Attributes:
        key: Key of the session.
        agent_id: Agent that answered last.
        label: Title; empty if it has none.
        archived: Whether it is archived.
        metadata: What tools and rules set in the session.
        created_at: When it was created, in milliseconds since 1970.
        updated_at: When it was last changed, in milliseconds since 1970.
    """

    key: str
    agent_id: str = ""
    label: str = ""
    archived: bool = False
    metadata: dict[str, Any] = {}
    created_at: int = 0
    updated_at: int = 0


class SessionTotals(msgspec.Struct, frozen=True):
    """The number of sessions that are not archived, the number of all messages, and the size of everything in bytes.

    A session itself counts as 1,000 bytes and its metadata.
    """

    sessions: int = 0
    messages: int = 0
    size: int = 0


class StoredMessage(msgspec.Struct, frozen=True):
    """A message with its position in the session. `body` is the message's JSON, byte for byte."""

    session: str
    seq: int
    id: str
    run_id: str
    body: bytes

    @property
    def message(self) -> Message:
        """The decoded message. One that cannot be decoded is replaced by a note, so that its session stays usable."""
        try:
            return Message.from_json(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.warning(
                "message unreadable: session=%s seq=%d id=%s error=%s", self.session, self.seq, self.id, error
            )
            return self._placeholder()

    def _placeholder(self) -> Message:
        found = _ROLE.search(self.body)
        role = cast(Role, found[1].decode()) if found else "assistant"
        text = f"[message {self.seq} of this session cannot be read; run: atlas store check]"
        return Message(role, (Text(text),), id=self.id, created_at=0, metadata={UNREADABLE: True})


class RunRow(msgspec.Struct, frozen=True):
    """A turn, from its acceptance on. `epoch` is a fencing token: it increases with every new owner, and writes that
    carry an older one are rejected."""

    id: str
    session: str
    agent_id: str
    status: RunStatus
    epoch: int = 0
    user: str = ""
    idempotency_key: str = ""
    request: bytes = b""
    """The run request as JSON: everything another process needs to execute the run."""
    error: str | None = None
    created_at: int = 0
    ended_at: int | None = None
    tenant: str = "default"
    fingerprint: str = ""
    """Hash of the request. A repeated idempotency key must come with the same hash."""
    events: int = 0
    """Highest event number reserved so far. Numbers are reserved before they are used."""
    urgency: int = 1
    """Index into `PRIORITIES`. Of the runs that wait for a worker, the most urgent starts first."""
    stop: bool = False
    """Cancellation was requested. The current or next owner ends the run."""


class JournalRow(msgspec.Struct, frozen=True):
    """One step of a run. `key` identifies its subject (a call id, the number of a reply); `payload` is JSON."""

    run_id: str
    seq: int
    kind: JournalKind
    key: str
    payload: bytes
    at: int
    previous: str
    hash: str


class AuditRow(msgspec.Struct, frozen=True):
    """An audit entry (JSON) in its tenant's hash chain."""

    seq: int
    entry: bytes
    previous: str
    hash: str


def audit_hash(seq: int, previous: str, entry: bytes, key: bytes | None = None) -> str:
    """Return the hash of an audit row: SHA-256 over the previous hash, the number and the entry, separated by newlines.

    With a key it is an HMAC: `hmac:<id of the key>:<digest>`.
    """
    content = f"{previous}\n{seq}\n".encode() + entry
    if key is None:
        return hashlib.sha256(content).hexdigest()
    return f"hmac:{audit_key_id(key)}:{hmac.digest(key, content, 'sha256').hex()}"


def audit_key_id(key: bytes) -> str:
    """Return the short public id of a key of the audit log."""
    return hashlib.sha256(b"atlas audit key\n" + key).hexdigest()[:8]


def describe_broken_row(row: Any, seq: int, previous: str) -> str:
    """Describe why a row does not continue the chain, in which row `seq` should follow the hash `previous`."""
    if row.seq != seq:
        return f"row {seq} is missing: found row {row.seq} instead"
    if row.previous != previous:
        return f"row {seq} does not match the hash of the row before it: one of them was replaced"
    return f"row {seq} was changed after it was written"


class EventRow(msgspec.Struct, frozen=True):
    """An event emitted by a run; `body` is JSON."""

    run_id: str
    seq: int
    body: bytes


class ApprovalRow(msgspec.Struct, frozen=True):
    """An approval request, bound by hash to the exact bytes of the call. It survives a restart."""

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
    """Hash that the answer allows permanently; empty for a single use."""


class UsageRow(msgspec.Struct, frozen=True):
    """Tokens and cost, summed per day, session, agent and model."""

    day: str
    session: str
    agent_id: str
    model: str
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cost_microcents: int = 0
    turns: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    saved_microcents: int = 0
    """Savings by the vendors' caches; negative if writing to them cost more."""


UsageKey: TypeAlias = Literal["agent_id", "model", "session", "day"]
Amounts: TypeAlias = tuple[int, int, int, int, int]
"""Tokens, model requests, tool calls, cost in microcents and milliseconds."""
NOTHING: Amounts = (0, 0, 0, 0, 0)
Measure: TypeAlias = Literal["tokens", "requests", "tool_calls", "dollars", "seconds"]
MEASURES: tuple[Measure, ...] = get_args(Measure)
"""Names of the measures that a budget limits, in the order of `Amounts`."""


class BudgetRow(msgspec.Struct, frozen=True):
    """Amounts that count against a budget in a period: usage if `run_id` is empty, else the reservation of a run.

    A reservation stops counting at `expires_at`: then it was lost in a crash, and its run was not resumed.
    """

    key: str
    period: str
    run_id: str = ""
    tokens: int = 0
    requests: int = 0
    tool_calls: int = 0
    cost_microcents: int = 0
    milliseconds: int = 0
    expires_at: int | None = None

    @property
    def amounts(self) -> Amounts:
        return (self.tokens, self.requests, self.tool_calls, self.cost_microcents, self.milliseconds)


class BudgetLimit(msgspec.Struct, frozen=True):
    """The limits of a budget in a period, in the order of `Amounts`; None where there is none."""

    key: str
    period: str
    limits: tuple[int | None, ...]


class Chain(msgspec.Struct, frozen=True, omit_defaults=True):
    """Delegation chain of a turn: the agents that delegated to one another (first one first), the run at the root, and
    the job this turn belongs to with its deadline and urgency."""

    root: str = ""
    agents: tuple[str, ...] = ()
    job: str = ""
    deadline: int | None = None
    urgency: int = 1


NO_CHAIN = Chain()
"""The chain of a turn that a person started."""


class JobRow(msgspec.Struct, frozen=True):
    """A job: a task that an agent delegated, that a schedule created or that a person submitted. Each job runs in a
    session of its own, and its outcome is reported to the asker once. The `asker_*` fields are empty if no agent asked.

    Attributes:
        id: Id of the job.
        kind: Whether it was delegated, created by a schedule or requested by a person.
        agent_id: Agent that does the task.
        task: What to do.
        session: Key of the session in which it runs.
        state: `queued`, `running`, `done`, `failed`, `expired`, `cancelled` or `dead`.
        priority: From 0 (`low`) to 3 (`urgent`).
        root: Id of the turn from which the whole delegation started.
        user: The user for whom it runs.
        asker_run: Turn that delegated it.
        asker_call: Tool call that delegated it.
        asker_session: Session of the agent that delegated it.
        asker_agent: Agent that delegated it.
        due_at: When it may start, in milliseconds since 1970.
        deadline: When it is cancelled, in milliseconds since 1970; None for never.
        attempts: How often it was started.
        epoch: Fencing token: it increases with every new owner.
        result: The answer, once it is done; the text so far if it failed at its limit of rounds.
        error: Why it failed.
        created_at: When it was added, in milliseconds since 1970.
        ended_at: When it ended, in milliseconds since 1970; None if it has not.
    """

    id: str
    kind: JobKind
    agent_id: str
    task: str
    session: str
    state: JobState = "queued"
    priority: int = 1
    parent: str = ""
    """The job that delegated it, if any."""
    root: str = ""
    chain: tuple[str, ...] = ()
    """The agents that wait for it, up to the asker."""
    user: str = ""
    asker_run: str = ""
    asker_call: str = ""
    asker_session: str = ""
    asker_agent: str = ""
    due_at: int = 0
    deadline: int | None = None
    attempts: int = 0
    allowed: int = MAX_ATTEMPTS
    """Attempts before it becomes `dead`."""
    epoch: int = 0
    result: str | None = None
    error: str | None = None
    notified: bool = False
    """The asker has received the outcome, or there is no asker."""
    created_at: int = 0
    ended_at: int | None = None
    seq: int = 0
    """Position among all jobs of the tenant."""
    traceparent: str = ""
    """Trace context of the call or the client that asked for it; see `core.telemetry.read_trace_context`."""


class Schedule(msgspec.Struct, frozen=True):
    """A recurring task. Due times that were missed during downtime run `once` in total, or are skipped. `prefix` is
    prepended to the keys of its sessions.

    Attributes:
        name: Unique name.
        cron: When it runs, as five cron fields: `0 9 * * 1-5`.
        agent_id: Agent that does the task.
        task: What to do.
        zone: Time zone of `cron`, such as `Europe/Berlin`.
        missed: Due times that were missed during downtime run `once` in total, or `skip`.
        priority: Priority of its jobs.
        paused: Whether it creates no jobs.
        user: The user for whom its jobs run.
        prefix: Beginning of the keys of its sessions.
        created_at: When it was created, in milliseconds since 1970.
    """

    name: str
    cron: str
    agent_id: str
    task: str
    zone: str = "UTC"
    missed: Missed = "once"
    priority: Priority = "normal"
    paused: bool = False
    user: str = ""
    prefix: str = ""
    created_at: int = 0
    last: int = 0
    """Due times up to this one have been handled."""


class StoredRecord(msgspec.Struct, frozen=True):
    """A small JSON value stored by kind and key, such as a schedule. `version` increases with every change."""

    kind: RecordKind
    key: str
    body: bytes
    version: int


class Document(msgspec.Struct, frozen=True):
    """A searchable document: an ingested file, or one memory. It is split into passages, and a search finds passages.

    `collection` is the category of a file or the owner of a memory; a search within one collection never sees another.
    `hash` is that of the content, and empty until all passages are stored; `model` is the embedding model.
    """

    kind: DocumentKind
    id: str
    collection: str = ""
    source: str = ""
    title: str = ""
    hash: str = ""
    model: str = ""
    about: bytes = b"{}"
    """Further properties, as JSON."""
    passages: int = 0
    created_at: int = 0


class Passage(msgspec.Struct, frozen=True):
    """A part of a document, with the headings above it and its position. `vector` holds 16-bit floats or is empty."""

    heading: str
    text: str
    position: str = ""
    vector: bytes = b""


class PassageRow(msgspec.Struct, frozen=True):
    """A stored passage."""

    id: int
    document: str
    collection: str
    place: int
    heading: str
    text: str
    position: str


class Hit(msgspec.Struct, frozen=True):
    """A passage that matches a search. Higher scores are better; only scores of the same search are comparable."""

    passage: int
    score: float


class Where(msgspec.Struct, frozen=True):
    """Scope of a search: one collection, or all of them if it is None."""

    kind: DocumentKind
    collection: str | None = None


class SessionMatch(msgspec.Struct, frozen=True):
    """A session that matches a search, with its latest match: the number of a message, or 0 for its name."""

    session: str
    seq: int


class SessionMatches(msgspec.Struct, frozen=True):
    """Sessions that match a search, latest match first. `complete` tells whether these are all."""

    matches: tuple[SessionMatch, ...] = ()
    complete: bool = True


class AuditFilter(msgspec.Struct, frozen=True):
    """Conditions for audit rows, combined with AND. `since` is included and `until` is not, in milliseconds since 1970.

    `user` matches a person's actions, requests and decisions.
    """

    agent_id: str | None = None
    tool: str | None = None
    level: str | None = None
    run_id: str | None = None
    user: str | None = None
    since: int | None = None
    until: int | None = None


class AuditMatches(msgspec.Struct, frozen=True):
    """Audit rows that match a filter, latest first. `before` is where to continue; None if there are no more."""

    rows: tuple[AuditRow, ...] = ()
    before: int | None = None


class ToolDay(msgspec.Struct, frozen=True):
    """The calls of one tool on one day, and how long they took together."""

    day: str
    tool: str
    calls: int = 0
    failed: int = 0
    milliseconds: float = 0.0


class Pruned(msgspec.Struct, frozen=True):
    """Result of pruning: the number of runs that have no such rows left, the deleted rows, and their size in bytes."""

    runs: int = 0
    rows: int = 0
    size: int = 0

    def __bool__(self) -> bool:
        return self.runs > 0 or self.rows > 0

    def __add__(self, more: "Pruned") -> "Pruned":
        return Pruned(self.runs + more.runs, self.rows + more.rows, self.size + more.size)


# Writes. Unless stated otherwise, the result is the changed row, and a row that does not exist raises `NotFound`.


class PutSession(msgspec.Struct, frozen=True, tag=True):
    """Create or change a session. Fields that are None keep their value."""

    key: str
    agent_id: str | None = None
    label: str | None = None
    archived: bool | None = None
    metadata: dict[str, Any] | None = None


class SetSessionMetadata(msgspec.Struct, frozen=True, tag=True):
    """Set values in the metadata of a session, and delete keys; the other values stay. The result is the session."""

    key: str
    values: dict[str, Any]
    deleted: tuple[str, ...] = ()


class NameSession(msgspec.Struct, frozen=True, tag=True):
    """Name a session that has no name, or the one that this name `replaces`.

    The result is the session, or None if it was deleted or has another name.
    """

    key: str
    label: str
    replaces: str = ""


class DropSession(msgspec.Struct, frozen=True, tag=True):
    """Delete a session with its messages, runs, journals, events and approvals. Audit log and usage stay.

    Raises `Conflict` while a run is open. No result.
    """

    key: str


class AddMessage(msgspec.Struct, frozen=True, tag=True):
    """Append a message to a session. Repeating an id changes nothing and returns the first row."""

    session: str
    id: str
    body: bytes
    run_id: str = ""


class AddMessages(msgspec.Struct, frozen=True, tag=True):
    """Append several messages, as id and body, to a session; their ids must be new. No result."""

    session: str
    messages: tuple[tuple[str, bytes], ...]


class DropMessages(msgspec.Struct, frozen=True, tag=True):
    """Delete the messages after a number, before their session is deleted. Raises `Conflict` while a run is open."""

    session: str
    after: int


class ReplaceMessage(msgspec.Struct, frozen=True, tag=True):
    """Replace the body of a message that cannot be decoded."""

    session: str
    seq: int
    body: bytes


class AcceptRun(msgspec.Struct, frozen=True, tag=True):
    """Accept a turn: it is running if its session is idle, queued otherwise. With `at_once` a busy session raises
    `SessionBusy` instead.

    If the session has seen the idempotency key, nothing of the commit is written: the result is the earlier run, and
    None for every other write. A different fingerprint raises `Conflict`.
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
    """Become the owner of an open run. The result is its new epoch. Raises `Conflict` if the run has ended."""

    run_id: str


class SetRun(msgspec.Struct, frozen=True, tag=True):
    """Change the status of an open run. Raises `StaleOwner` for an outdated epoch, and `Conflict` if the run has ended,
    would return to the queue, or would be the second active run of its session.

    Ending a run starts the next queued run of its session, whose id is the result.
    """

    run_id: str
    epoch: int
    status: RunStatus
    error: str | None = None


class MergeRun(msgspec.Struct, frozen=True, tag=True):
    """End a queued run as done: its message entered the running turn of its session, which answers it. Raises
    `Conflict` if the run is not queued."""

    run_id: str


class StopRun(msgspec.Struct, frozen=True, tag=True):
    """Request cancellation of an open run. A queued run is cancelled immediately, a running one by its owner. Raises
    `Conflict` if the run has ended."""

    run_id: str


class AddJournal(msgspec.Struct, frozen=True, tag=True):
    """Append a step to the journal of a run. Raises `StaleOwner` for an outdated epoch, and `Conflict` if the run
    has ended or has a step of this kind and key."""

    run_id: str
    epoch: int
    kind: JournalKind
    key: str
    payload: bytes


class AddAudit(msgspec.Struct, frozen=True, tag=True):
    """Append an entry to the tenant's audit chain."""

    entry: bytes


class Reserve(msgspec.Struct, frozen=True, tag=True):
    """Count one more call of an agent on a day. Returns the count; `DailyLimitExceeded` if it would exceed the limit.

    If the clock was set back by a day or two, counting continues on the later day.
    """

    agent_id: str
    day: str
    limit: int


class Release(msgspec.Struct, frozen=True, tag=True):
    """Undo a reservation whose call was not made. The result is the count, never below zero."""

    agent_id: str
    day: str


class ReserveBudget(msgspec.Struct, frozen=True, tag=True):
    """Reserve the maximum usage of a run's next step: `base`, and `unit` as often as possible, up to `most` times.

    The result is that number. `BudgetUnavailable` if it would be less than `least`, or less than `enough` while other
    runs hold reservations. Without a run, the amount counts as used at once. A reservation expires after `lease`
    milliseconds, unless that is 0.
    """

    run_id: str
    budgets: tuple[BudgetLimit, ...]
    base: Amounts
    unit: Amounts = NOTHING
    least: int = 0
    enough: int = 0
    most: int = 0
    lease: int = 0


class SettleBudget(msgspec.Struct, frozen=True, tag=True):
    """Release a run's reservation for a step, and count the usage of the step. No result."""

    run_id: str
    budgets: tuple[BudgetLimit, ...]
    reserved: Amounts
    used: Amounts


class ReleaseBudgets(msgspec.Struct, frozen=True, tag=True):
    """Release all reservations of a run. If it has ended, the counts of its own budget are deleted, unless it delegated
    jobs, which count as well. No result."""

    run_id: str
    ended: bool = False


class RecountBudget(msgspec.Struct, frozen=True, tag=True):
    """Raise the counts of the tenant's budget to the tokens and the cost of the usage sums, because the budget does not
    count while it has no limit. No result."""

    period: str


class PutApproval(msgspec.Struct, frozen=True, tag=True):
    """Store an approval request. Repeating it for the same run, call and binding returns the first row with its answer;
    an id that is used for something else raises `Conflict`."""

    approval: ApprovalRow


class AnswerApproval(msgspec.Struct, frozen=True, tag=True):
    """Answer an approval request. A second answer raises `Conflict`."""

    id: str
    answer: bytes
    grants: str = ""


class ReserveEvents(msgspec.Struct, frozen=True, tag=True):
    """Reserve event numbers for a run, ended or not. The result is the last reserved number.

    An epoch that is outdated raises `StaleOwner`. `takes` increases the epoch, even of an ended run, so that the
    previous owner can add no more events.
    """

    run_id: str
    count: int
    epoch: int | None = None
    takes: bool = False


class AddEvents(msgspec.Struct, frozen=True, tag=True):
    """Store events of a run as `(seq, body)` under reserved numbers; numbers that exist keep their event. No result.

    An epoch that is outdated raises `StaleOwner`.
    """

    run_id: str
    events: tuple[tuple[int, bytes], ...]
    epoch: int | None = None


class AddUsage(msgspec.Struct, frozen=True, tag=True):
    """Add to the usage sums. No result."""

    usage: UsageRow


class AddJob(msgspec.Struct, frozen=True, tag=True):
    """Store a new job. Repeating an id changes nothing and returns the first row. Raises `DailyLimitExceeded` if the
    root run already has `limit` jobs."""

    job: JobRow
    limit: int | None = None


class ClaimJob(msgspec.Struct, frozen=True, tag=True):
    """Become the owner of an open job: its epoch increases and it is running. Claiming a queued job starts another
    attempt. Raises `Conflict` if the job has ended."""

    id: str


class SetJob(msgspec.Struct, frozen=True, tag=True):
    """Change an open job. Raises `Conflict` if it has ended, and `StaleOwner` for an outdated epoch. Without an
    epoch the change always applies, and its owner loses the job. A job that is queued again waits until `due_at`."""

    id: str
    state: JobState
    epoch: int | None = None
    result: str | None = None
    error: str | None = None
    due_at: int | None = None


class RetryJob(msgspec.Struct, frozen=True, tag=True):
    """Queue a job that ended without success for `more` attempts, and remove a deadline that has passed. Raises
    `Conflict` if it is open or done."""

    id: str
    more: int = MAX_ATTEMPTS


class MarkJobNotified(msgspec.Struct, frozen=True, tag=True):
    """Record that the asker received the outcome of a job that ended after this many attempts. It has no effect on a
    job that was retried since. No result."""

    id: str
    attempts: int


class PutRecord(msgspec.Struct, frozen=True, tag=True):
    """Create or replace a record. If `version` is given, it must match the stored one (0: none), otherwise
    `Conflict`."""

    kind: RecordKind
    key: str
    body: bytes
    version: int | None = None


class DropRecord(msgspec.Struct, frozen=True, tag=True):
    """Delete a record. No result."""

    kind: RecordKind
    key: str


class PutDocument(msgspec.Struct, frozen=True, tag=True):
    """Store a document with its first passages, replacing one with the same id. An empty `hash` means that more
    passages follow."""

    document: Document
    passages: tuple[Passage, ...] = ()


class AddPassages(msgspec.Struct, frozen=True, tag=True):
    """Append passages to a document. The last ones carry its hash. The result is the document."""

    kind: DocumentKind
    id: str
    passages: tuple[Passage, ...]
    hash: str = ""


class DropDocument(msgspec.Struct, frozen=True, tag=True):
    """Delete a document and its passages. If a collection is given, a document in another one raises `NotFound`. No
    result."""

    kind: DocumentKind
    id: str
    collection: str | None = None


class Prune(msgspec.Struct, frozen=True, tag=True):
    """Delete events or journals of runs that ended, and emitted their last event, before a time; oldest runs first.
    Or delete the counters of budgets and daily limits of days and months that ended before it.

    Deletes at most `limit` rows of at most `runs` runs, so that other commits do not wait long. The result is a
    `Pruned`, empty when nothing is left to delete. A run loses its last rows first: a reader that comes in between
    finds no terminal event, and a new one is appended.
    """

    what: Prunable
    before: int
    limit: int = 1000
    runs: int = 20


class RefreshIndexes(msgspec.Struct, frozen=True, tag=True):
    """Add a bounded number of rows to the derived tables, such as the search index of sessions, so that other commits
    do not wait long. The result is how many; 0 once the tables are up to date."""


Write: TypeAlias = (
    PutSession
    | SetSessionMetadata
    | NameSession
    | DropSession
    | AddMessage
    | AddMessages
    | DropMessages
    | ReplaceMessage
    | AcceptRun
    | ClaimRun
    | SetRun
    | MergeRun
    | StopRun
    | AddJournal
    | AddAudit
    | Reserve
    | Release
    | ReserveBudget
    | SettleBudget
    | ReleaseBudgets
    | RecountBudget
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
    | MarkJobNotified
    | PutRecord
    | DropRecord
    | Prune
    | RefreshIndexes
)


class Store(Protocol):
    """Persistence port. SQLite, Postgres and the in-memory store implement it with the same behaviour."""

    async def open(self) -> None:
        """Connect, and migrate the schema. Raises `StoreError` if either fails."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...

    async def commit(self, tenant: str, writes: Sequence[Write]) -> list[Any]:
        """Apply all writes or none; durable when this returns. Results are in the order of the writes."""
        ...

    async def session(self, tenant: str, key: str) -> Session | None:
        """Return a session; None if there is none with this key."""
        ...

    async def sessions(
        self,
        tenant: str,
        *,
        limit: int = 100,
        before: int | None = None,
        before_key: str = "",
        prefix: str = "",
        archived: bool | None = None,
        branches: bool = False,
    ) -> list[Session]:
        """Return sessions, latest update first, of all keys or of those that start with `prefix`.

        To page, pass the `updated_at` and the key of the last one as `before` and `before_key`. `branches`: only those
        whose metadata has an object `branch`.
        """
        ...

    async def search_sessions(
        self, tenant: str, query: str, *, limit: int = 30, prefix: str = "", wait: float = 2.0
    ) -> SessionMatches:
        """Search for sessions with all words of the query in their name or in one message, also as a beginning.

        Sessions that changed since the last search are indexed first, for at most `wait` seconds.
        """
        ...

    async def session_totals(self, tenant: str, prefix: str) -> SessionTotals:
        """Return the totals of the sessions whose keys start with `prefix`."""
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
        """Return messages in order. `limit` keeps the first ones, or with `last` the last ones."""
        ...

    async def message(self, tenant: str, session: str, id: str) -> StoredMessage | None:
        """Return a message of a session by its id."""
        ...

    async def run(self, tenant: str, run_id: str) -> RunRow | None:
        """Return a run by its id."""
        ...

    async def runs(
        self, tenant: str, session: str, *, open_only: bool = False, last: int | None = None
    ) -> list[RunRow]:
        """Return the runs of a session, or the `last` ones, in the order of acceptance.

        Ended runs come without their requests.
        """
        ...

    async def failed_runs(self, tenant: str, session: str, first: int, last: int) -> list[RunRow]:
        """Return the failed and cancelled runs that have messages with these numbers, without their requests.

        They are in the order of acceptance. Runs of other messages are not read.
        """
        ...

    async def queued_runs(self, tenant: str, session: str) -> list[RunRow]:
        """Return the runs of a session that wait for its running turn, in the order of acceptance."""
        ...

    async def open_runs(self) -> list[RunRow]:
        """Return every open run of every tenant."""
        ...

    async def orphaned_runs(self) -> list[RunRow]:
        """Return every open run of every tenant, for recovery at start; they may be resumed.

        On SQLite, several processes can open the database, but none can tell which of them owns a run. There, this
        raises `StoreInUse` while another process runs turns.
        """
        ...

    async def journal(self, tenant: str, run_id: str) -> list[JournalRow]:
        """Return the recorded steps of a run, in order."""
        ...

    async def audit(
        self, tenant: str, *, after: int = 0, limit: int | None = None, last: bool = False
    ) -> list[AuditRow]:
        """Return audit rows in order. `limit` keeps the first ones, or with `last` the last ones."""
        ...

    async def find_audit(
        self, tenant: str, where: AuditFilter, *, before: int | None = None, limit: int = 100
    ) -> AuditMatches:
        """Return the latest audit rows that match, with numbers less than `before`. A page can have fewer than `limit`
        rows although more match: continue with the `before` of the result."""
        ...

    async def tool_days(
        self, tenant: str, *, since: str = "", until: str = "9999", limit: int | None = None
    ) -> list[ToolDay]:
        """Return the tool calls of the days from `since` up to `until`, exclusive, from the audit log.

        The latest day is first; `limit` is the most rows.
        """
        ...

    async def approval(self, tenant: str, id: str) -> ApprovalRow | None:
        """Return an approval by its id."""
        ...

    async def pending_approvals(self, tenant: str) -> list[ApprovalRow]:
        """Return unanswered approval requests of open runs, oldest first."""
        ...

    async def grants(self, tenant: str, binding: str) -> list[ApprovalRow]:
        """Return answered requests that allow this hash permanently."""
        ...

    async def events(self, tenant: str, run_id: str, *, after: int = 0, limit: int | None = None) -> list[EventRow]:
        """Return stored events of a run, in order."""
        ...

    async def call_count(self, tenant: str, agent_id: str, day: str) -> int:
        """Return the number of tool calls of an agent on a day."""
        ...

    async def usage(self, tenant: str, *, since: str = "", until: str = "9999") -> list[UsageRow]:
        """Return the sums of the days from `since` up to `until`, exclusive."""
        ...

    async def sum_usage(
        self,
        tenant: str,
        group_by: UsageKey,
        *,
        by_day: bool = False,
        since: str = "",
        until: str = "9999",
        owner: str = "",
        session: str = "",
        limit: int | None = None,
    ) -> list[UsageRow]:
        """Return the sums of the days from `since` up to `until`, exclusive, by one key and, if wanted, by day.

        Fields that are not part of the grouping are empty. `owner` is the beginning of the keys of a user's sessions,
        such as `@ann/`. With `session`, only the usage of this session is summed. Sessions, and the days of one
        session, are sorted by tokens, most first; `limit` is the maximum number of rows.
        """
        ...

    async def document(self, tenant: str, kind: DocumentKind, id: str) -> Document | None:
        """Return a document by its id."""
        ...

    async def documents(
        self, tenant: str, where: Where, *, after: str = "", limit: int | None = None
    ) -> list[Document]:
        """Return documents ordered by id; `after` is the id to continue from."""
        ...

    async def latest_documents(
        self, tenant: str, where: Where, *, before: int | None = None, before_id: str = "", limit: int = 100
    ) -> list[Document]:
        """Return documents, latest first. To page, pass the last `created_at` and `id` as `before` and `before_id`."""
        ...

    async def collections(self, tenant: str, kind: DocumentKind) -> list[str]:
        """Return the names of the collections that have documents of a kind, in order."""
        ...

    async def passages(self, tenant: str, ids: Sequence[int]) -> list[PassageRow]:
        """Return the passages that exist, in the order of the ids."""
        ...

    async def document_passages(
        self, tenant: str, kind: DocumentKind, document: str, *, after: int = -1, limit: int | None = None
    ) -> list[PassageRow]:
        """Return the passages of one document in order; `after` is the place to continue from."""
        ...

    async def search_text(self, tenant: str, where: Where, words: Sequence[str], *, limit: int = 50) -> list[Hit]:
        """Search for passages with any of the words. Rare words, several words and short passages score higher."""
        ...

    async def find_nearest(self, tenant: str, where: Where, model: str, vector: bytes, *, limit: int = 50) -> list[Hit]:
        """Search among the vectors of this model; the score is the cosine similarity."""
        ...

    async def job(self, tenant: str, id: str) -> JobRow | None:
        """Return a job by its id."""
        ...

    async def jobs(
        self,
        tenant: str,
        *,
        states: Sequence[JobState] = (),
        limit: int = 100,
        before: int | None = None,
        prefix: str = "",
    ) -> list[JobRow]:
        """Return jobs, newest first, in the given states or in any, whose session keys start with `prefix`.

        To page, pass the last `seq` as `before`.
        """
        ...

    async def child_jobs(self, tenant: str, parent: str) -> list[JobRow]:
        """Return the jobs that were delegated from within a job, in order."""
        ...

    async def pending_jobs(self, tenant: str, now: int, *, limit: int = 1000) -> list[JobRow]:
        """Return jobs that need work, most urgent first: running, due, past their deadline, or not reported yet."""
        ...

    async def record(self, tenant: str, kind: RecordKind, key: str) -> StoredRecord | None:
        """Return a record of a kind by its key."""
        ...

    async def records(self, tenant: str, kind: RecordKind, *, prefix: str = "") -> list[StoredRecord]:
        """Return the records of a kind whose keys start with `prefix`, ordered by key."""
        ...

    async def last_turns(self, tenant: str) -> list[tuple[str, str, int]]:
        """Return agent, user and time of the last turn for every pair that has had a turn."""
        ...

    async def tokens(self, tenant: str, since: str, until: str) -> int:
        """Return the input and output tokens of the days from `since` up to `until`, exclusive."""
        ...

    async def budget_rows(self, tenant: str, key: str, period: str) -> list[BudgetRow]:
        """Return the rows that count against a budget in a period."""
        ...

    async def storage_bytes(self, tenant: str) -> int:
        """Return the total size of messages, journals and events in bytes."""
        ...

    async def prunable(self, tenant: str, what: Prunable, before: int) -> Pruned:
        """Return the amount of data that repeated `Prune` writes would delete."""
        ...

    async def tenants(self) -> list[str]:
        """Return every tenant that has a tenant record."""
        ...
