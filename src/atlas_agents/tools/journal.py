"""Run journal: the write-ahead log from which a run resumes after a crash.

An intent is recorded before a tool acts and its outcome afterwards. On resume, a call with an outcome is not repeated.
A call with only an intent is repeated if its effect allows it; otherwise its outcome is reported as unknown.
"""

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, repeat
from operator import itemgetter
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from atlas_agents.core import errors
from atlas_agents.core import store as records
from atlas_agents.core.aio import SYSTEM_CLOCK, Alarm, BackgroundTasks, Clock, TimeSlices, utc_day
from atlas_agents.core.approvals import Answer, Question
from atlas_agents.core.budgets import TurnBudget
from atlas_agents.core.events import FailedAttempt, Usage
from atlas_agents.core.json import encode
from atlas_agents.core.messages import TIMING, Conversation, Message, Text, Thinking, ToolCall, ToolResult
from atlas_agents.tools.audit import AuditEntry
from atlas_agents.tools.context import SHARED_STATE, SessionMetadata

logger = logging.getLogger(__name__)
T = TypeVar("T")
_RESUMES_BEFORE_QUARANTINE = 2
_MAX_CRASHES_ALONE = 3
MAX_RESUMES_WITHOUT_PROGRESS = _RESUMES_BEFORE_QUARANTINE + _MAX_CRASHES_ALONE
"""A run that crashed the process this many times without recording a step, the last three times while it was in
quarantine, is failed instead of resumed again."""
ISOLATION_SECONDS = 10.0
"""A run in quarantine that neither ends nor records a step for this long is not to blame for fast crashes. The time
doubles each time it survives that long."""
_MAX_ISOLATION = 600.0
_ADMISSION_DELAY = 0.1
"""Seconds before the first run leaves the queue of the quarantine: a recovery adds several runs."""
_BACKOFF = (0.05, 0.1, 0.2, 0.5, 1.0)
_MAX_BACKOFF = 2.0
_MICROCENTS = 100_000_000
"""Microcents in one dollar."""
_NO_USAGE = Usage()
_results = msgspec.json.Decoder(ToolResult)
_questions = msgspec.json.Decoder(Question)
_answers = msgspec.json.Decoder(Answer)
_loaded: "weakref.WeakSet[Conversation]" = weakref.WeakSet()
"""Conversations whose messages in memory equal those in the store."""


def is_loaded(conversation: Conversation) -> bool:
    """Return whether the messages in memory equal those in the store."""
    return conversation in _loaded


class EndRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """End of a turn: the payload of the last step of its journal.

    `partial` is the content of an incomplete message, `kind` the kind of the error, `used` the usage of the turn as
    metadata, and `failed` the requests to the model that failed since its last reply.
    """

    status: records.RunStatus
    error: str | None
    partial: tuple[Text | Thinking, ...] = ()
    kind: str = ""
    used: dict[str, Any] = msgspec.field(default_factory=dict)
    failed: tuple[FailedAttempt, ...] = ()

    @property
    def usage(self) -> Usage:
        return Usage.from_metadata(self.used)


async def read_end_record(store: records.Store, row: records.RunRow) -> EndRecord | None:
    """Return the end of a turn; None if it has not ended or its journal was deleted by retention."""
    steps = await store.journal(row.tenant, row.id)
    if not steps or steps[-1].kind != "ended":
        return None
    try:
        return msgspec.json.decode(steps[-1].payload, type=EndRecord)
    except msgspec.DecodeError as error:
        logger.warning("step unreadable: run=%s kind=ended error=%s", row.id, error)
        return None


async def read_shared_state(store: records.Store, tenant: str, run_id: str, after: str = "") -> tuple[Any, ...]:
    """Return the shared states that a turn set, oldest first; with `after`, those since the result of that call."""
    steps = await store.journal(tenant, run_id)
    start = next((index for index, step in enumerate(steps) if (step.kind, step.key) == ("outcome", after)), 0)
    return tuple([msgspec.json.decode(step.payload) for step in steps[start:] if step.kind == "state"])


class HookAction(msgspec.Struct, frozen=True, omit_defaults=True):
    """Action of a hook on a tool call, for its audit row."""

    hook: str
    did: Literal["changed arguments", "answered", "refused", "failed", "changed result", "withheld result"]
    reason: str = ""


class HookRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Decision of hooks before a tool call. It is recorded before the call is confirmed or run, so that a resumed run
    does not call the hooks again.

    `arguments` replace those of the model, `answer` is the result of a call that is not run, and `refusal` says why a
    call is refused. `requested` are the arguments of the model, if they were changed.
    """

    actions: tuple[HookAction, ...]
    arguments: dict[str, Any] | None = None
    answer: ToolResult | None = None
    refusal: str = ""
    requested: dict[str, Any] | None = None


_hooks = msgspec.json.Decoder(HookRecord)


class SteerRecord(msgspec.Struct, frozen=True):
    """Messages that entered a running turn after its tool calls, and the runs under which they were accepted."""

    runs: tuple[str, ...]
    messages: tuple[str, ...]
    """Ids of the messages, which are stored in the session."""


_steers = msgspec.json.Decoder(SteerRecord)


_accepted = msgspec.json.Decoder(tuple[str, ...])


class _FirstMessages(msgspec.Struct, frozen=True):
    messages: tuple[msgspec.Raw, ...]


def read_first_messages(row: records.RunRow) -> list[Message]:
    """Return the messages that a run was accepted with."""
    try:
        messages = msgspec.json.decode(row.request, type=_FirstMessages).messages
        return [Message.from_json(bytes(each)) for each in messages]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise errors.UnreadableRow(f"the request of run {row.id!r} cannot be read: {error}") from error


async def read_answering_run(store: records.Store, row: records.RunRow) -> records.RunRow:
    """Return the run that answers the message of a run: the run itself, or the one that a steering message entered."""
    if row.status != "done" or b'"when_busy"' not in row.request:
        return row
    stored = await store.message(row.tenant, row.session, read_first_messages(row)[-1].id)
    if stored is None or stored.run_id == row.id:
        return row
    return await store.run(row.tenant, stored.run_id) or row


def _decode_step(row: records.JournalRow, decode: Callable[[bytes], T]) -> T:
    try:
        return decode(row.payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        where = f"step {row.seq} ({row.kind}) of run {row.run_id!r}"
        raise errors.UnreadableRow(f"{where} cannot be read: {error}") from error


class ShuttingDown(errors.StoreError):
    """The process is shutting down: nothing more is written, and the run resumes in another process."""


class RetryingCommitter:
    """Store writer that retries with backoff while the store is busy, full or unreachable, until `stop` is called."""

    def __init__(self, store: records.Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.stopped = False
        self.fenced = False
        """Another process owns the run now."""

    def stop(self) -> None:
        self.stopped = True

    async def commit(
        self,
        tenant: str,
        writes: Sequence[records.Write],
        step: records.AddJournal | None = None,
        *,
        is_due: bool = False,
    ) -> list[Any]:
        """Commit writes and return their results.

        If a connection broke during a commit, `step` tells whether that commit was applied. The results of a commit
        that turns out to have been applied are unknown and returned as None. Writes that are due were waiting when
        `stop` was called, and are tried once.
        """
        unclear = False
        for attempt, pause in enumerate(chain(_BACKOFF, repeat(_MAX_BACKOFF))):
            if attempt or not is_due:
                self._check_stopped()
            try:
                return await self._store.commit(tenant, writes)
            except (errors.StoreBusy, errors.StoreFull, errors.StoreLost) as error:
                unclear = unclear or (isinstance(error, errors.StoreLost) and error.unclear)
                if attempt % 15 == 0:
                    logger.warning("store unavailable, retrying commit: attempt=%d error=%s", attempt + 1, error)
            except (errors.Conflict, errors.StaleOwner) as refused:
                if unclear and step is not None and await self._was_written(tenant, step):
                    return [None] * len(writes)
                if isinstance(refused, errors.StaleOwner):
                    self.stopped = self.fenced = True
                raise
            await self._clock.sleep(pause)
        raise AssertionError("unreachable")

    async def read(self, query: Callable[[], Awaitable[T]]) -> T:
        """Run a query, retrying while the store is busy or unreachable."""
        for pause in chain(_BACKOFF, repeat(_MAX_BACKOFF)):
            self._check_stopped()
            try:
                return await query()
            except (errors.StoreBusy, errors.StoreLost) as error:
                logger.warning("store unavailable, retrying read: error=%s", error)
            await self._clock.sleep(pause)
        raise AssertionError("unreachable")

    def _check_stopped(self) -> None:
        if self.fenced:
            raise errors.StaleOwner("another process has taken over the run and continues it")
        if self.stopped:
            raise ShuttingDown("the process is shutting down; the turn resumes at the next start")

    async def _was_written(self, tenant: str, step: records.AddJournal) -> bool:
        rows = await self.read(lambda: self._store.journal(tenant, step.run_id))
        return any((row.kind, row.key, row.payload) == (step.kind, step.key, step.payload) for row in rows)


class ResumeRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Payload of a `resumed` step: whether the run was resumed alone, or has survived being alone."""

    alone: bool = False
    survived: bool = False


def _read_resume_record(row: records.JournalRow) -> ResumeRecord:
    try:
        return msgspec.json.decode(row.payload, type=ResumeRecord)
    except msgspec.DecodeError:  # it only means that the run may be blamed less
        return ResumeRecord()


class CrashHistory(msgspec.Struct, frozen=True):
    """Crash counts from the end of a journal: how often the run was resumed since its last recorded step, how often the
    process crashed while the run was alone in quarantine, and how often it survived that."""

    resumes: int = 0
    alone: int = 0
    survived: int = 0

    @classmethod
    def read(cls, past: Sequence[records.JournalRow]) -> "CrashHistory":
        resumes = alone = survived = 0
        for row in reversed(past):
            if row.kind == "asked":  # the run only waited for an answer
                return cls()
            if row.kind != "resumed":
                break
            found = _read_resume_record(row)
            survived += found.survived
            resumes += not found.survived
            alone += found.alone and not survived
        return cls(resumes, alone, survived)

    @property
    def suspicious(self) -> bool:
        return self.resumes >= _RESUMES_BEFORE_QUARANTINE

    @property
    def guilty(self) -> bool:
        return self.alone >= _MAX_CRASHES_ALONE

    @property
    def isolation(self) -> float:
        return min(ISOLATION_SECONDS * 2.0**self.survived, _MAX_ISOLATION)


class Quarantine:
    """Resumes runs that were interrupted repeatedly one at a time, so that a crash shows which of them causes it.

    Those with the fewest crashes go first: if the process crashes again, the others are done by then.
    """

    def __init__(self) -> None:
        self._current = ""
        self._waiting: list[tuple[tuple[int, int], str, asyncio.Future[None]]] = []

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of the run that is resumed alone, if any, and of those that wait for it."""
        waiting = tuple([run_id for _, run_id, _ in sorted(self._waiting, key=itemgetter(0))])
        return (self._current, *waiting) if self._current else waiting

    async def enter(self, run_id: str, history: CrashHistory) -> None:
        """Wait until the run may be resumed alone."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        entry = ((history.alone, history.survived), run_id, turn)
        self._waiting.append(entry)
        if not self._current:
            loop.call_later(_ADMISSION_DELAY, self._admit_next)
        try:
            await turn
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
            self.leave(run_id)
            raise

    def leave(self, run_id: str) -> None:
        """Leave the quarantine after the run has ended, recorded a step or survived: the next may be resumed."""
        if self._current == run_id:
            self._current = ""
            self._admit_next()

    def _admit_next(self) -> None:
        if not self._current and self._waiting:
            entry = min(self._waiting, key=itemgetter(0))
            self._waiting.remove(entry)
            self._current = entry[1]
            entry[2].set_result(None)


class WriteStep(Protocol):
    """Commit a journal step, the run's new status and related writes in one transaction."""

    async def __call__(
        self, kind: records.JournalKind, key: str, payload: bytes, status: records.RunStatus, *writes: records.Write
    ) -> None: ...


class DecidedCall(Protocol):
    """A call that was approved or rejected."""

    @property
    def call(self) -> ToolCall: ...


class JournaledApprovals(msgspec.Struct, eq=False):
    """Approval store of one run: each question is asked once, and its answer is persisted before it takes effect."""

    _store: records.Store
    _tenant: str
    _run_id: str
    _session: str
    _write_step: WriteStep
    _committer: RetryingCommitter
    _clock: Clock
    _asked: set[str] = msgspec.field(default_factory=set)
    _answered: set[str] = msgspec.field(default_factory=set)
    _restored: dict[str, bytes] = msgspec.field(default_factory=dict)

    def restored_answer(self, question_id: str) -> Answer | None:
        """Return an answer that an earlier process recorded; None if it recorded none."""
        found = self._restored.get(question_id)
        return _answers.decode(found) if found is not None else None

    def restore(self, row: records.JournalRow) -> None:
        """Restore a question or an answer from the journal of a resumed run."""
        if row.kind == "asked":
            self._asked.add(row.key)
        elif row.kind == "answered":
            self._answered.add(row.key)
            self._restored[row.key] = row.payload

    async def save_question(self, question: Question) -> tuple[Question, Answer | None]:
        """Persist a question. If it was asked before, return it as it was then, with its answer if there is one."""
        if question.id not in self._asked:
            self._asked.add(question.id)
            asked = self._build_row(question)
            await self._write_step("asked", question.id, asked.question, "waiting", records.PutApproval(asked))
            return question, None
        row = await self._read_approval(question)
        if row is None:
            raise errors.NotFound(f"not found: approval {question.id!r}")
        try:
            answer = _answers.decode(row.answer) if row.answer is not None else None
            return _questions.decode(row.question), answer
        except msgspec.DecodeError as error:
            raise errors.UnreadableRow(f"approval {row.id!r} of run {row.run_id!r} cannot be read: {error}") from error

    async def save_answer(self, question: Question, answer: Answer, grants: str, *, new: bool) -> Answer:
        """Persist an answer and return the one that counts: the first. One that is not `new` is already stored."""
        if question.id in self._answered:
            return answer
        writes = (records.AnswerApproval(question.id, encode(answer), grants),) if new else ()
        try:
            others = self._asked - self._answered - {question.id}
            await self._write_step("answered", question.id, encode(answer), "waiting" if others else "running", *writes)
        except errors.Conflict:
            row = await self._read_approval(question)
            if row is None or row.answer is None:
                raise
            first = _answers.decode(row.answer)
            return first if not new else await self.save_answer(question, first, grants, new=False)
        return answer

    async def find_grants(self, binding: str) -> list[tuple[Question, Answer]]:
        """Return the standing approvals (for a session, or always) of exactly this call."""
        rows = await self._committer.read(lambda: self._store.grants(self._tenant, binding))
        return [(_questions.decode(row.question), _answers.decode(row.answer or b"")) for row in rows]

    async def _read_approval(self, question: Question) -> records.ApprovalRow | None:
        return await self._committer.read(lambda: self._store.approval(self._tenant, question.id))

    def _build_row(self, question: Question) -> records.ApprovalRow:
        return records.ApprovalRow(
            question.id,
            self._run_id,
            self._session,
            question.call_id,
            question.binding,
            encode(question),
            int(question.expires_at * 1000),
            int(self._clock.time() * 1000),
        )


def add_usage(day: str, session: str, agent_id: str, model: str, usage: Usage, turns: int) -> records.AddUsage:
    """Return the write that adds the usage of model calls to the sums of a day."""
    row = records.UsageRow(
        day,
        session,
        agent_id,
        model,
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        round((usage.cost or 0) * _MICROCENTS),
        turns,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
        round((usage.saved or 0) * _MICROCENTS),
    )
    return records.AddUsage(row)


class Journal:
    """The journal of one run.

    Steps of an earlier process are read once, at the start, and then served from memory. A step that is written is
    durable when the call returns; writes are retried for as long as the store is unavailable.
    """

    budget: TurnBudget | None = None
    """Budget of the turn, which is settled with the next step."""
    _approvals: JournaledApprovals | None = None
    """Created when it is needed: it refers to this journal, and only the garbage collector frees such a pair."""
    restored_usage = _NO_USAGE
    """Usage in the recorded steps of earlier processes."""
    _held_reply: tuple[records.AddJournal, *tuple[records.Write, ...]] | None = None
    """A reply that is written with the next step, with its usage and contents; None once it is stored."""
    _on_reply_stored: list[Callable[[], None]]
    _writing_reply: asyncio.Lock
    """Held while a reply is written; other steps wait, because they follow the reply."""
    _waiting_steps = 0
    """Steps that are written with the reply or wait for it."""
    _pending: list[Message]
    """Messages that are written with the next step."""
    _session_row: records.Session | None = None
    """The session as it was when this run was accepted and started."""
    _replies: list[Message]
    _replied_at: list[int]
    _summaries: dict[str, list[Message]]
    _steering: dict[str, list[Message]]
    _hook_records: dict[str, HookRecord]
    _own_messages: dict[str, Message]

    def __init__(
        self,
        store: records.Store,
        tenant: str,
        run_id: str,
        session: str,
        *,
        row: records.RunRow | None = None,
        on_stored: Callable[[Message], None] | None = None,
        on_state: Callable[[Any], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
        shared: bool = False,
        quarantine: Quarantine | None = None,
        metadata: SessionMetadata | None = None,
    ) -> None:
        self._metadata = metadata
        self._quarantine = quarantine or Quarantine()
        self._isolation: Alarm | None = None
        """Ends the quarantine of this run, while it is resumed alone."""
        self._tasks = BackgroundTasks("journal", expected=errors.StoreError)
        self._store, self._tenant = store, tenant
        self._run_id = run_id
        self._session = session
        self._row = row
        self._on_stored, self._on_state = on_stored, on_state
        self._clock = clock
        self._shared = shared
        """Whether other processes write to the same sessions and start the runs that this one accepts."""
        self._committer = RetryingCommitter(store, clock)
        self._epoch = self._state_number = 0
        self._pending, self._on_reply_stored, self._writing_reply = [], [], asyncio.Lock()
        self._first_messages: list[Message] = []
        self._replies, self._replied_at, self._reply_count = [], [], 0
        self._summaries, self._steering, self._hook_records, self._own_messages = {}, {}, {}, {}
        self._intents: set[str] = set()
        self._outcomes: dict[str, ToolResult] = {}
        self._intended_at: dict[str, int] = {}
        self._durations: dict[str, int] = {}
        self._stored: set[str] = set()
        self.restored_messages: frozenset[str] = frozenset()
        """Ids of the messages that earlier processes had stored when this one claimed the run."""
        self._ended = False
        self._crash_history = CrashHistory()

    @property
    def approvals(self) -> JournaledApprovals:
        if self._approvals is None:
            self._approvals = self._create_approvals()
        return self._approvals

    def _create_approvals(self) -> JournaledApprovals:
        identity = (self._tenant, self._run_id, self._session)
        return JournaledApprovals(self._store, *identity, self._write_status_step, self._committer, self._clock)

    @property
    def crash_looping(self) -> bool:
        """Whether the run crashed the process too often. Then only recorded steps are replayed, without new calls."""
        return self._crash_history.guilty

    async def accept(
        self, run: records.AcceptRun, messages: Sequence[Message], *, wait: bool = True, idle: bool = True
    ) -> records.RunRow:
        """Persist an accepted run with its first messages, the last of which is the user's, and return its row.

        The run starts at once if the session is idle. Otherwise it is queued, or SessionBusy is raised without `wait`.
        For an idempotency key that was used before, the row of the earlier run is returned.
        """
        self._first_messages = list(messages)
        if self._shared:
            return await self._accept(msgspec.structs.replace(run, at_once=not wait), [])
        if idle or not wait:
            start = [
                records.ClaimRun(self._run_id),
                *self._message_writes(self._first_messages),
                self._accepted_step(1),
            ]
            try:
                return await self._accept(msgspec.structs.replace(run, at_once=True), start)
            except errors.SessionBusy:
                if not wait:
                    raise
        return await self._accept(msgspec.structs.replace(run, at_once=False), [])

    async def _accept(self, run: records.AcceptRun, start: list[records.Write]) -> records.RunRow:
        try:
            session, row, *more = await self._store.commit(
                self._tenant, [records.PutSession(self._session), run, *start]
            )
        except errors.StoreLost as lost:
            found = await self._store.run(self._tenant, self._run_id) if lost.unclear else None
            if found is None:
                raise
            session, row, more = None, found, [found.epoch] if start else []
        if row.id == self._run_id:
            self._row, self._epoch = row, more[0] if more else 0
            if start:
                self._session_row = session
                self._notify_stored(self._first_messages)
        return row

    def _accepted_step(self, epoch: int) -> records.AddJournal:
        """Build the first step of a run, committed together with its first messages."""
        return records.AddJournal(
            self._run_id, epoch, "accepted", "", encode([message.id for message in self._first_messages])
        )

    async def wait_in_quarantine(self) -> None:
        """Wait until the run may be resumed alone, if it was interrupted repeatedly without recording a step."""
        history = CrashHistory.read(await self._read_past())
        if not history.suspicious or history.guilty:
            return
        logger.error(
            "turn quarantined: the process crashed repeatedly while it ran; it is resumed alone to find the cause: "
            "run=%s session=%s resumes=%d crashes_alone=%d",
            self._run_id,
            self._session,
            history.resumes,
            history.alone,
        )
        await self._quarantine.enter(self._run_id, history)
        self._isolation = self._clock.call_later(history.isolation, lambda: self._tasks.spawn(self._survive()))

    async def _survive(self) -> None:
        """Record that the run is not to blame for fast crashes, and let the next one be resumed."""
        if self._isolation is not None and self._epoch:
            survived = encode(ResumeRecord(survived=True))
            step = records.AddJournal(self._run_id, self._epoch, "resumed", f"{self._epoch} survived", survived)
            await self._committer.commit(self._tenant, [step], step)
        self.leave_quarantine()

    def leave_quarantine(self) -> None:
        isolation, self._isolation = self._isolation, None
        if isolation is not None:
            isolation.cancel()
            self._quarantine.leave(self._run_id)

    async def _read_past(self) -> Sequence[records.JournalRow]:
        """Return the steps of earlier processes."""
        if self._row is None or not self._row.epoch:
            return ()
        return await self._committer.read(lambda: self._store.journal(self._tenant, self._run_id))

    async def begin(self, conversation: Conversation) -> list[Message]:
        """Load the session, claim ownership of the run, and return the messages that the run starts with.

        For a run that was interrupted, the recorded steps are restored.
        """
        if self._must_load(conversation):
            conversation.messages[:] = await self._load_history()
            if self._session_row is None:
                self._session_row = await self._committer.read(lambda: self._store.session(self._tenant, self._session))
            _loaded.add(conversation)
        if self._session_row is not None:
            conversation.metadata.clear()
            conversation.metadata.update(self._session_row.metadata)
        if self._epoch == 0 and self._row is not None:
            await self._resume(self._row)
        return self._first_messages

    def must_read(self, conversation: Conversation) -> bool:
        """Return whether `begin` needs the store: a session that was used before is in memory."""
        return self._must_load(conversation) or (self._epoch == 0 and self._row is not None)

    def _must_load(self, conversation: Conversation) -> bool:
        return self._shared or conversation not in _loaded

    async def _resume(self, row: records.RunRow) -> None:
        """Claim the run, then restore the recorded steps: until it is claimed, its last owner may still add some."""
        epoch, first = row.epoch + 1, not await self._read_past()
        writes: list[records.Write] = [records.ClaimRun(self._run_id), records.SetRun(self._run_id, epoch, "running")]
        writes.append(records.ReleaseBudgets(self._run_id))
        if first:
            unreadable = self._read_first_messages(row)
            writes += self._message_writes(self._first_messages)
            step = self._accepted_step(epoch)
        else:
            unreadable = None
            resumed = encode(ResumeRecord(alone=self._isolation is not None))
            step = records.AddJournal(self._run_id, epoch, "resumed", str(epoch), resumed)
        await self._commit_start([*writes, step], step)
        self._epoch = epoch
        if unreadable is not None:
            raise unreadable
        if first:
            self._notify_stored(self._first_messages)
        else:
            await self._restore_steps(own=step)

    async def _commit_start(self, writes: Sequence[records.Write], step: records.AddJournal) -> None:
        """Commit the first step. An earlier turn that was cancelled while it waited may not have left the queue yet."""
        for pause in _BACKOFF:
            try:
                await self._committer.commit(self._tenant, writes, step)
                return
            except errors.SessionBusy:
                await self._clock.sleep(pause)
        await self._committer.commit(self._tenant, writes, step)

    def _read_first_messages(self, row: records.RunRow) -> errors.UnreadableRow | None:
        """Read the first messages of a run, and return the error if they cannot be read: the run is claimed all the
        same, to record that it failed."""
        try:
            self._first_messages = read_first_messages(row)
        except errors.UnreadableRow as error:
            return error
        return None

    async def _restore_steps(self, own: records.AddJournal) -> None:
        past = [each for each in await self._read_past() if (each.kind, each.key) != (own.kind, own.key)]
        self._first_messages = await self._read_stored_first_messages(past)
        for each in past:
            self._restore(each)
        self._crash_history = history = CrashHistory.read(past)
        if history.guilty:
            logger.error("turn given up: run=%s session=%s crashes=%d", self._run_id, self._session, history.resumes)

    async def _read_stored_first_messages(self, past: Sequence[records.JournalRow]) -> list[Message]:
        """Return the first messages of the run as they are stored in the session."""
        rows = await self._read_messages()
        own = [row.message for row in rows if row.run_id == self._run_id]
        self._own_messages = {message.id: message for message in own}
        self._stored = set(self._own_messages)
        self.restored_messages = frozenset(self._stored)
        ids = _decode_step(past[0], _accepted.decode)
        return [message for message in own if message.id in ids]

    async def _load_history(self) -> list[Message]:
        """Return the messages of earlier turns. They are decoded in slices: a long session does not delay others."""
        slices, history = TimeSlices(), list[Message]()
        for row in await self._read_messages():
            if row.run_id != self._run_id:
                history.append(message := row.message)
                _ = message.pairing  # cached, so that checking the whole history takes no time
                await slices.pause()
        return history

    async def _read_messages(self) -> list[records.StoredMessage]:
        return await self._committer.read(lambda: self._store.messages(self._tenant, self._session))

    async def read_with_retry(self, query: Callable[[], Awaitable[T]]) -> T:
        """Run a query of the same store, retrying while the store is unavailable."""
        return await self._committer.read(query)

    @property
    def row(self) -> records.RunRow | None:
        """The run as it was accepted; None before that."""
        return self._row

    @property
    def epoch(self) -> int:
        """Fencing token of this owner; 0 before the run has started."""
        return self._epoch

    def detach(self) -> None:
        """Stop writing: the run stays open and resumes in another process."""
        self._committer.stop()

    @property
    def detached(self) -> bool:
        return self._committer.stopped

    @property
    def fenced(self) -> bool:
        """Whether another process has taken over the run."""
        return self._committer.fenced

    def invalidate(self, conversation: Conversation) -> None:
        """Make the next turn reload the conversation, because memory may be ahead of the store."""
        _loaded.discard(conversation)

    def is_settled(self, call: ToolCall, *, repeatable: bool) -> bool:
        """Return whether a call has an outcome, or an intent and must not be repeated."""
        return call.id in self._outcomes or (call.id in self._intents and not repeatable)

    def next_reply(self) -> Message | None:
        """Return the next recorded reply of the model; None once all of them were replayed.

        Raises CrashLoop instead of returning None for a run that keeps crashing the process.
        """
        if self._reply_count < len(self._replies):
            self._reply_count += 1
            return self._replies[self._reply_count - 1]
        if self.crash_looping:
            raise errors.CrashLoop(
                f"the process crashed {self._crash_history.resumes} times while resuming this turn, the last "
                f"{_MAX_CRASHES_ALONE} times while it ran alone; it was not resumed"
            )
        return None

    @property
    def replayed_at(self) -> float | None:
        """When the model call of the reply that was replayed last began, in seconds since 1970; None if unknown."""
        if not 0 < self._reply_count <= len(self._replied_at):
            return None
        timing: dict[str, int] = self._replies[self._reply_count - 1].metadata.get(TIMING) or {}
        return (self._replied_at[self._reply_count - 1] - timing.get("total", 0)) / 1000

    def messages_added_with(self, reply: Message) -> list[Message]:
        """Return the messages that hooks added before a recorded reply."""
        return [found for id in reply.metadata.get("added", ()) if (found := self._own_messages.get(id)) is not None]

    def next_summary(self) -> list[Message] | None:
        """Return the summary that was recorded before the next reply, empty if writing it failed; None if not tried."""
        return self._summaries.get(str(self._reply_count + 1))

    def recorded_steering(self) -> list[Message] | None:
        """Return the messages that entered the turn at this point in an earlier process; None if more may enter."""
        found = self._steering.get(str(self._reply_count))
        replaying = self._reply_count < len(self._replies) or self.next_summary() is not None
        return [] if found is None and replaying else found

    async def read_queued_runs(self) -> list[records.RunRow]:
        """Return the runs that wait for this one, as accepted by any process."""
        return await self._committer.read(lambda: self._store.queued_runs(self._tenant, self._session))

    async def record_steering(self, entering: Mapping[str, Sequence[Message]]) -> list[str]:
        """Record that the messages of queued runs enter this one, and end those runs in the same transaction.

        Returns the ids of the runs whose messages entered: others were cancelled or started in the meantime.
        """
        ids = list(entering)
        while ids:
            messages = [message for id in ids for message in entering[id]]
            payload = encode(SteerRecord(tuple(ids), tuple([message.id for message in messages])))
            writes = [*self._message_writes(messages), *[records.MergeRun(id) for id in ids]]
            try:
                await self._write_step("steer", str(self._reply_count), payload, *writes)
            except errors.Conflict:
                queued = {row.id for row in await self.read_queued_runs()}
                if queued.issuperset(ids):
                    raise
                ids = [id for id in ids if id in queued]
            else:
                self._stored.update([message.id for message in messages])
                self._notify_stored(messages)
                break
        return ids

    def outcome(self, call: ToolCall) -> ToolResult | None:
        return self._outcomes.get(call.id)

    def outcome_of(self, decision: DecidedCall) -> ToolResult | None:
        """Return the recorded outcome of a call that was just decided; None if it is to be carried out."""
        return self._outcomes.get(decision.call.id)

    async def check_request(self, provider: Any, build: Callable[[int, str], Awaitable[Any]]) -> None:
        """Compare the request of a reply that was just replayed with the record. Only the journal of a replay does."""

    def duration(self, call: ToolCall) -> int | None:
        """Return the milliseconds that a call took in an earlier process; None if unknown."""
        return self._durations.get(call.id)

    def has_intent(self, call: ToolCall) -> bool:
        """Return whether a call was about to act, or acted, when the process crashed."""
        return call.id in self._intents

    def add(self, message: Message) -> None:
        """Store a message with the next step; adding it twice has no effect."""
        if message.id not in self._stored:
            self._stored.add(message.id)
            self._pending.append(message)

    async def record_reply(
        self,
        message: Message,
        agent_id: str,
        usage: Usage,
        request: bytes = b"",
        contents: Sequence[records.Write] = (),
        *,
        hold: bool = False,
        on_stored: Callable[[], None] | None = None,
    ) -> None:
        """Record a model reply and its usage, before anything acts on it.

        `request` is the record of the request as JSON, and `contents` stores the contents that it refers to;
        `on_stored` is called after they are written.

        With `hold`, it is written with the next step: the end of the turn, or the intent or outcome of its tool call.
        Until then nothing acts on it, and nothing but its text is emitted: see `when_reply_stored`.
        """
        self._reply_count += 1
        self.add(message)
        model = str(message.metadata.get("model") or message.metadata.get("provider") or "")
        used = self._usage_write(agent_id, model, usage, turns=int(self._reply_count == 1))
        payload = message.to_json()
        if request:
            payload = b'%b,"request":%b}' % (payload[:-1], request)
        reply = records.AddJournal(self._run_id, self._epoch, "reply", str(self._reply_count), payload)
        self._held_reply = (reply, used, *contents)
        self._on_reply_stored = [] if on_stored is None else [on_stored]
        if hold:
            return
        try:
            await self.write_held_reply()
        except Exception:  # the turn ends without it
            self._held_reply = None
            raise

    @property
    def holds_reply(self) -> bool:
        """Whether a reply is held that has not been stored."""
        return self._held_reply is not None

    def when_reply_stored(self, callback: Callable[[], None]) -> None:
        """Call a function once the last reply is stored: at once, unless the reply is held."""
        if self._held_reply is None:
            callback()
        else:
            self._on_reply_stored.append(callback)

    async def write_held_reply(self) -> None:
        """Write the reply that is held, if there is one."""
        async with self._writing_reply:
            if self._held_reply is None:
                return
            try:
                await self._commit_step(None)
            except asyncio.CancelledError:  # it may be stored all the same, and the turn ends without it
                self._held_reply = None
                raise

    async def record_summary(self, summary: Message | None, agent_id: str, model: str, usage: Usage) -> None:
        """Record a summary of older messages and its usage before the next reply; None if writing it failed."""
        if summary is not None:
            self.add(summary)
        used = [self._usage_write(agent_id, model, usage)] if model else []
        payload = summary.to_json() if summary is not None else encode(usage.to_metadata() if model else None)
        await self._write_step("summary", str(self._reply_count + 1), payload, *used)

    async def record_usage(self, agent_id: str, model: str, usage: Usage) -> None:
        """Record the usage of a model that a tool called, whether or not the call succeeds."""
        await self._committer.commit(self._tenant, [self._usage_write(agent_id, model, usage)])

    def _usage_write(self, agent_id: str, model: str, usage: Usage, turns: int = 0) -> records.AddUsage:
        return add_usage(utc_day(self._clock.time()), self._session, agent_id, model, usage, turns)

    def hook_record(self, call: ToolCall) -> HookRecord | None:
        """Return the decision of hooks about a call in an earlier process; None if they did nothing."""
        return self._hook_records.get(call.id)

    async def record_hooks(self, call: ToolCall, record: HookRecord) -> None:
        """Record the decision of hooks, before anything acts on it."""
        await self._write_step("hook", call.id, encode(record))

    async def record_intent(self, call: ToolCall, *counts: records.Reserve | records.ReserveBudget) -> None:
        """Record that a call is about to act, and count it against its limits in the same transaction."""
        if call.id in self._intents:
            return
        step = self._write_step("intent", call.id, encode(call), *counts)
        # a call may be cancelled meanwhile, but the next step must know whether the reply is stored
        await (step if self._held_reply is None else asyncio.shield(step))

    async def commit(self, writes: Sequence[records.Write]) -> list[Any]:
        """Commit writes that are not journal steps; retry while the store is unavailable."""
        return await self._committer.commit(self._tenant, writes)

    async def record_outcome(
        self, call: ToolCall, result: ToolResult, entry: AuditEntry, usage: Usage, *more: records.Write
    ) -> None:
        """Record a call's result, usage, audit row and further writes in one transaction."""
        used = usage.to_metadata() if usage != _NO_USAGE else None
        payload = encode({**msgspec.to_builtins(result), **used} if used else result)
        await self._write_step("outcome", call.id, payload, records.AddAudit(encode(entry)), *more)

    async def end(
        self,
        status: records.RunStatus,
        error: str | None = None,
        partial: Sequence[Text | Thinking] = (),
        kind: str = "",
        usage: Usage = _NO_USAGE,
        failed: tuple[FailedAttempt, ...] = (),
    ) -> None:
        """Record the end of the turn with its usage, its last messages and the content of an incomplete reply.

        A run that never started just leaves the queue. A run that an earlier process started and this one could not
        resume stays open.
        """
        if self._ended:
            return
        if self._epoch:
            ended: list[records.Write] = [records.SetRun(self._run_id, self._epoch, status, error)]
            if self.budget is not None:
                ended.append(records.ReleaseBudgets(self._run_id, ended=True))
            used = usage.to_metadata() if usage != _NO_USAGE else {}
            record = EndRecord(status, error, tuple(partial), kind, used, failed)
            await self._write_step("ended", "", encode(record), *ended)
        elif self._row is not None and self._row.epoch:
            self.detach()
        elif self._row is not None:
            epoch = self._row.epoch + 1
            dequeue = [records.ClaimRun(self._run_id), records.SetRun(self._run_id, epoch, status, error)]
            with suppress(errors.Conflict):  # its message has just entered a running turn
                await self._committer.commit(self._tenant, dequeue)
        self._ended = True

    def mark_merged(self) -> None:
        """Stop writing: the message entered another turn, which ended this run."""
        self._ended = True

    @property
    def is_shared(self) -> bool:
        """Whether other processes accept messages of this session."""
        return self._shared

    async def _write_step(self, kind: records.JournalKind, key: str, payload: bytes, *more: records.Write) -> None:
        """Commit a step, together with the reply that is held, if there is one.

        While that is written, other steps wait, and keep their order: none may overtake the result of the call.
        """
        step = records.AddJournal(self._run_id, self._epoch, kind, key, payload)
        if self._held_reply is None and not self._waiting_steps:
            await self._commit_step(step, *more)
            return
        self._waiting_steps += 1
        is_due = not self._committer.stopped
        try:
            async with self._writing_reply:
                await self._commit_step(step, *more, is_due=is_due)
        finally:
            self._waiting_steps -= 1

    async def _commit_step(self, step: records.AddJournal | None, *more: records.Write, is_due: bool = False) -> None:
        """Commit a step with all pending writes, or only the pending writes if there is no step."""
        pending, self._pending = self._pending, []  # messages added during the commit go with the next step
        held = self._held_reply or ()
        settled = self.budget.take_settled() if self.budget is not None else []
        changes = self._metadata.take_changes() if self._metadata is not None else None
        if changes is not None:
            more = (*more, records.SetSessionMetadata(self._session, *changes))
        state, steps = self._state_step(changes), [] if step is None else [step]
        if state is not None:
            steps.insert(0 if step is not None and step.kind == "ended" else len(steps), state)
        try:
            writes = [*self._message_writes(pending), *held, *steps, *settled, *more]
            await self._committer.commit(self._tenant, writes, step or (held[0] if held else None), is_due=is_due)
        except BaseException:
            self._pending[:0] = pending
            if changes is not None and self._metadata is not None:
                self._metadata.put_back(changes)
            if self.budget is not None:
                self.budget.put_back(settled)
            raise
        if self.budget is not None:
            self.budget.committed(settled)
        self.leave_quarantine()
        self._notify_stored(pending)
        if held:
            self._notify_reply_stored()
        if state is not None and self._on_state is not None:
            self._on_state(msgspec.json.decode(state.payload))

    def _notify_reply_stored(self) -> None:
        self._held_reply = None
        callbacks, self._on_reply_stored = self._on_reply_stored, []
        for callback in callbacks:
            callback()

    def _state_step(self, changes: tuple[dict[str, Any], tuple[str, ...]] | None) -> records.AddJournal | None:
        """Return the step that records a change of the shared state; None if it did not change."""
        if changes is None or (SHARED_STATE not in changes[0] and SHARED_STATE not in changes[1]):
            return None
        self._state_number += 1
        payload = encode(changes[0].get(SHARED_STATE))
        return records.AddJournal(self._run_id, self._epoch, "state", str(self._state_number), payload)

    async def _write_status_step(
        self, kind: records.JournalKind, key: str, payload: bytes, status: records.RunStatus, *writes: records.Write
    ) -> None:
        await self._write_step(kind, key, payload, *writes, records.SetRun(self._run_id, self._epoch, status))

    def _message_writes(self, messages: Sequence[Message]) -> list[records.Write]:
        return [records.AddMessage(self._session, message.id, message.to_json(), self._run_id) for message in messages]

    def _notify_stored(self, messages: Sequence[Message]) -> None:
        if self._on_stored is not None:
            for message in messages:
                self._on_stored(message)

    def _restore(self, row: records.JournalRow) -> None:
        if row.kind == "reply":
            self._replies.append(reply := _decode_step(row, Message.from_json))
            self._replied_at.append(row.at)
            self.restored_usage += Usage.from_metadata(reply.metadata)
        elif row.kind == "summary":
            self._restore_summary(row)
        elif row.kind == "steer":
            ids = _decode_step(row, _steers.decode).messages
            self._steering[row.key] = [found for id in ids if (found := self._own_messages.get(id)) is not None]
        elif row.kind == "hook":
            self._hook_records[row.key] = _decode_step(row, _hooks.decode)
        elif row.kind == "intent":
            self._intents.add(row.key)
            self._intended_at[row.key] = row.at
        elif row.kind == "outcome":
            self._outcomes[row.key] = _decode_step(row, _results.decode)
            self.restored_usage += Usage.from_metadata(msgspec.json.decode(row.payload))
            if row.key in self._intended_at:
                self._durations[row.key] = row.at - self._intended_at[row.key]
        elif row.kind == "state":
            self._state_number = int(row.key)
            if self._metadata is not None:
                self._metadata.drop_turn_value(SHARED_STATE)
        else:
            self.approvals.restore(row)

    def _restore_summary(self, row: records.JournalRow) -> None:
        """Restore a summary. If writing it failed, the step has only its usage, or nothing."""
        found: Any = _decode_step(row, msgspec.json.decode) or {}
        summaries = [_decode_step(row, Message.from_json)] if "role" in found else []
        self._summaries[row.key] = summaries
        self.restored_usage += Usage.from_metadata(summaries[0].metadata if summaries else found)
